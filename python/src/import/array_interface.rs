//! The array interface and the CUDA array interface: dicts that describe memory.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use windrow::dlpack::ForeignTensor;
use windrow::error::{Hint, Mismatch};
use windrow::tensor::MAX_NDIM;
use windrow::{DType, Device, Error, Stream};

use crate::engine::default::default_engine;
use crate::ground::dtype::{dtype_of_typestr, named_dtype};
use crate::ground::errors::{attribute, class_name, shown};
use crate::ground::iterables::is_sequence;
use crate::ground::reserve::push_to;
use crate::ground::stream::{from_handle, is_borrowed};
use crate::import::importer::Importer;
use crate::ownership::buffer::Buffer;

/// The attributes that describe memory.
pub(crate) const ON_HOST: &str = "__array_interface__";
pub(crate) const ON_DEVICE: &str = "__cuda_array_interface__";

impl<'py> Importer<'py> {
    /// Appends what a dict describes: that of `__array_interface__`, or of `__cuda_array_interface__`, versions 2 and 3, which
    /// names no device. Neither keeps anything alive: `object`, which is left to the caller, does. A stream that it names becomes
    /// a producer. TypeError for a dict that lacks an entry or has one of another type, LayoutError for memory that cannot be
    /// read, DeviceError for an address that should be a device's and is not.
    pub fn import_interface(
        &mut self,
        object: &Bound<'py, PyAny>,
        found: Bound<'py, PyAny>,
        name: &'static str,
        index: usize,
    ) -> PyResult<()> {
        let is_on_host = name == ON_HOST;
        let interface = found.cast_into::<PyDict>()?;
        let (dtype, shape, strides) = self.described(object, &interface, name, index)?;
        let strides = strides.as_deref();
        let (data, read_only) = match interface.get_item("data")? {
            Some(pair) if !is_on_host || pair.is_instance_of::<PyTuple>() => {
                let (address, read_only): (usize, bool) = pair.extract()?;
                (std::ptr::with_exposed_provenance_mut::<u8>(address), read_only)
            }
            None if !is_on_host => {
                let text = format!("{}: {name} has no \"data\"", self.named(index));
                return Err(PyTypeError::new_err(text));
            }
            // The memory is that of a buffer, or the object's own, if no address is given.
            holder => {
                let holder = holder.filter(|holder| !holder.is_none());
                let buffer = Buffer::new(holder.as_ref().unwrap_or(object), ffi::PyBUF_SIMPLE)?;
                let offset = interface.get_item("offset")?.filter(|offset| !offset.is_none());
                let offset: i64 = offset.map_or(Ok(0), |offset| offset.extract())?;
                let view = buffer.view();
                let layout = windrow::Layout::try_new(dtype, &shape, strides);
                let span = layout.map_err(|error| self.error(error, index))?.byte_span(dtype);
                let fits = offset.checked_add(span.start).is_some_and(|low| low >= 0)
                    && offset.checked_add(span.end).is_some_and(|high| high <= view.len as i64);
                if !fits {
                    let got = format!("{} bytes from {offset} on", span.end.abs_diff(span.start));
                    let expected = format!("at most {} bytes", view.len);
                    return Err(self.layout_error(index, &expected, &got));
                }
                let data = view.buf.cast::<u8>().wrapping_offset(offset as isize);
                let read_only = view.readonly != 0;
                push_to(&mut self.owner.buffers, buffer)?;
                (data, read_only)
            }
        };
        let is_empty = shape.contains(&0);
        if data.is_null() && !is_empty {
            return Err(self.layout_error(index, "an address", "NULL with elements"));
        }
        let device = match is_empty {
            _ if is_on_host => Device::Cpu,
            false => self.cuda_device_of(data.addr(), index)?,
            // An address without memory says nothing: empty samples are where the others are.
            true if self.list.is_empty() => Device::Cuda(0),
            true => self.list.meta(0).device,
        };
        let stream =
            interface.get_item("stream")?.filter(|stream| !is_on_host && !stream.is_none());
        let stream = stream.map(|stream| self.stream_of(&stream, index)).transpose()?;
        self.push(
            &ForeignTensor { data, dtype, device, shape: &shape, strides, read_only },
            index,
        )?;
        match (stream, device) {
            // Read after this call, when the owner of the stream may have destroyed it.
            (Some(stream), Device::Cuda(ordinal)) if self.owned && is_borrowed(stream) => {
                let adopted = default_engine().adopt(ordinal, stream);
                self.owner.producers.add(adopted.map_err(|error| self.error(error, index))?);
            }
            (Some(stream), _) => self.owner.producers.follow(stream),
            (None, _) => {}
        }
        // The interface may belong to a temporary; the object itself is kept by the caller.
        self.is_lent = true;
        push_to(&mut self.owner.objects, interface.into_any().unbind())
    }

    /// The CUDA device of an address; DeviceError for one of the host.
    fn cuda_device_of(&self, address: usize, index: usize) -> PyResult<Device> {
        match windrow::device::device_of(address) {
            Ok(Device::Cpu) => {
                let got = "an address that the driver does not know";
                Err(self.device_error(index, "memory of a CUDA device", got))
            }
            found => found.map_err(|error| self.error(error, index)),
        }
    }

    /// The stream of a CUDA array interface; ValueError for 0, which the protocol forbids.
    fn stream_of(&self, stream: &Bound<'py, PyAny>, index: usize) -> PyResult<Stream> {
        match stream.extract::<i64>()? {
            0 => Err(PyValueError::new_err(format!(
                "{}: stream 0 in a CUDA array interface; the default streams are \
                 1 (legacy) and 2 (per thread)",
                self.named(index)
            ))),
            handle => from_handle(handle),
        }
    }

    /// Dtype, shape and strides, in elements, of an array interface of either kind; no strides where it is row-major. TypeError
    /// for a missing entry, LayoutError for a mask and for a stride that is no whole number of elements, the error of
    /// [`Importer::foreign_dtype`].
    fn described(
        &self,
        object: &Bound<'py, PyAny>,
        interface: &Bound<'py, PyDict>,
        name: &str,
        index: usize,
    ) -> PyResult<(DType, Vec<i64>, Option<Vec<i64>>)> {
        let required = |key: &str| {
            interface.get_item(key)?.ok_or_else(|| {
                PyTypeError::new_err(format!("{}: {name} has no \"{key}\"", self.named(index)))
            })
        };
        let shape = dims_of(&required("shape")?)?;
        let typestr: String = required("typestr")?.extract()?;
        let is_on_host = name == ON_HOST;
        let dtype = match dtype_of_typestr(typestr.as_bytes()) {
            // The host turns elements round as it reads them; kernels do not.
            Some(dtype) if !dtype.is_native() && !is_on_host => None,
            Some(dtype) => Some(dtype),
            None => {
                let is_swapped =
                    typestr.starts_with(if cfg!(target_endian = "little") { '>' } else { '<' });
                match typestr.get(2..).filter(|_| !is_swapped).and_then(|size| size.parse().ok()) {
                    Some(size) => named_dtype(object, size)?,
                    None => None,
                }
            }
        };
        let Some(dtype) = dtype else {
            let name = attribute(object, "dtype")?.map(|dtype| shown(&dtype)).transpose()?;
            return Err(match name {
                Some(name) => self.foreign_dtype(index, &format!("dtype {name}"), &name),
                None => self.foreign_dtype(index, &format!("typestr {typestr:?}"), &typestr),
            });
        };
        let optional =
            |key: &str| interface.get_item(key).map(|item| item.filter(|item| !item.is_none()));
        if optional("mask")?.is_some() {
            return Err(self.layout_error(index, "an array without a mask", "a masked array"));
        }
        let strides = optional("strides")?.map(|strides| dims_of(&strides)).transpose()?;
        let strides =
            strides.map(|strides| self.in_elements(&shape, &strides, dtype, index)).transpose()?;
        Ok((dtype, shape, strides))
    }

    /// Byte strides to element strides; LayoutError for a stride that is used and no whole number of elements. One that is not
    /// used, of an extent of 1 or an empty array, is rounded toward 0.
    pub fn in_elements(
        &self,
        shape: &[i64],
        strides: &[i64],
        dtype: DType,
        index: usize,
    ) -> PyResult<Vec<i64>> {
        let size = dtype.size() as i64;
        let used = |d: usize| !shape.contains(&0) && shape.get(d).is_some_and(|&extent| extent > 1);
        if strides.iter().enumerate().any(|(d, stride)| used(d) && stride % size != 0) {
            let got = format!("byte strides {strides:?}");
            let mismatch = Mismatch::new(Some(index), "strides of whole elements", got);
            let hint = Hint::Text("numpy.ascontiguousarray of it has them");
            return Err(self.error(Error::Layout(Box::new(mismatch.with_hint(hint))), index));
        }
        Ok(strides.iter().map(|stride| stride / size).collect())
    }
}

/// A sequence of dims, of which one more than there can be is read: it may say anything of its length,
/// and have no end. TypeError for what is no sequence of ints.
fn dims_of(dims: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    if !is_sequence(dims)? {
        let class = class_name(&dims.get_type())?;
        return Err(PyTypeError::new_err(format!("expected a sequence of ints, got {class}")));
    }
    dims.try_iter()?.take(MAX_NDIM + 1).map(|entry| entry?.extract()).collect()
}
