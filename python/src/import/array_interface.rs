//! The array interface and the CUDA array interface: dicts that describe memory.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{ffi, intern};
use windrow::dlpack::ForeignTensor;
use windrow::{DType, Device, Error, Mismatch, Stream, MAX_NDIM};

use crate::engine::default::default_engine;
use crate::ground::dtype::{dtype_of_typestr, named_dtype};
use crate::ground::errors::{attribute, class_name, shown};
use crate::ground::iterables::is_sequence;
use crate::ground::reserve::push_to;
use crate::ground::stream::{from_handle, is_borrowed};
use crate::import::importer::Importer;
use crate::ownership::buffer::Buffer;

impl<'py> Importer<'py> {
    /// A NumPy scalar that is not a number, by what tells its dtype: most are then refused for it.
    pub fn import_described(&mut self, object: &Bound<'py, PyAny>, index: usize) -> PyResult<()> {
        let found = object.getattr(intern!(self.py, "__array_interface__"))?;
        self.import_array_interface(object, found, index)
    }

    pub fn import_array_interface(
        &mut self,
        object: &Bound<'py, PyAny>,
        found: Bound<'py, PyAny>,
        index: usize,
    ) -> PyResult<()> {
        let interface = found.cast_into::<PyDict>()?;
        let (dtype, shape, strides) =
            self.described(object, &interface, "__array_interface__", index)?;
        let optional =
            |key: &str| interface.get_item(key).map(|item| item.filter(|item| !item.is_none()));
        let (data, read_only) = match optional("data")? {
            Some(pair) if pair.is_instance_of::<PyTuple>() => {
                let (address, read_only): (usize, bool) = pair.extract()?;
                (std::ptr::with_exposed_provenance_mut::<u8>(address), read_only)
            }
            // Without an address the memory is that of a buffer, or the object's own.
            holder => {
                let buffer = Buffer::new(holder.as_ref().unwrap_or(object), ffi::PyBUF_SIMPLE)?;
                let offset: i64 = optional("offset")?.map_or(Ok(0), |offset| offset.extract())?;
                let view = buffer.view();
                let layout = windrow::Layout::try_new(dtype, &shape, strides.as_deref());
                let span = layout.map_err(|error| self.error(error, index))?.byte_span(dtype);
                let fits = offset.checked_add(span.start).is_some_and(|low| low >= 0)
                    && offset.checked_add(span.end).is_some_and(|high| high <= view.len as i64);
                if !fits {
                    let got = format!("{} bytes from {offset} on", span.end.abs_diff(span.start));
                    return Err(self.layout_error(
                        index,
                        &format!("at most {} bytes", view.len),
                        &got,
                    ));
                }
                let data = view.buf.cast::<u8>().wrapping_offset(offset as isize);
                let read_only = view.readonly != 0;
                push_to(&mut self.owner.buffers, buffer)?;
                (data, read_only)
            }
        };
        if data.is_null() && !shape.contains(&0) {
            return Err(self.layout_error(index, "an address", "NULL with elements"));
        }
        let foreign = ForeignTensor {
            data,
            dtype,
            device: Device::Cpu,
            shape: &shape,
            strides: strides.as_deref(),
            read_only,
        };
        self.push(&foreign, index)?;
        // The interface may belong to a temporary; the object itself is kept by the caller.
        self.is_lent = true;
        push_to(&mut self.owner.objects, interface.into_any().unbind())
    }

    /// The CUDA array interface, versions 2 and 3: it names no device and keeps nothing alive.
    pub fn import_cuda_array_interface(
        &mut self,
        object: &Bound<'py, PyAny>,
        found: Bound<'py, PyAny>,
        index: usize,
    ) -> PyResult<()> {
        let interface = found.cast_into::<PyDict>()?;
        let (dtype, shape, strides) =
            self.described(object, &interface, "__cuda_array_interface__", index)?;
        let Some(data) = interface.get_item("data")? else {
            return Err(PyTypeError::new_err(format!(
                "{}: __cuda_array_interface__ has no \"data\"",
                self.named(index)
            )));
        };
        let (address, read_only): (usize, bool) = data.extract()?;
        let is_empty = shape.contains(&0);
        if address == 0 && !is_empty {
            return Err(self.layout_error(index, "an address", "NULL with elements"));
        }
        let device = match is_empty {
            // An address without memory says nothing: empty samples are where the others are.
            true => match self.list.is_empty() {
                true => Device::Cuda(0),
                false => self.list.meta(0).device,
            },
            false => self.cuda_device_of(address, index)?,
        };
        let stream = interface.get_item("stream")?.filter(|stream| !stream.is_none());
        let stream = stream.map(|stream| self.stream_of(&stream, index)).transpose()?;
        let data = std::ptr::with_exposed_provenance_mut::<u8>(address);
        let strides = strides.as_deref();
        let foreign = ForeignTensor { data, dtype, device, shape: &shape, strides, read_only };
        self.push(&foreign, index)?;
        match (stream, device) {
            // Read after this call, when the owner of the stream may have destroyed it.
            (Some(stream), Device::Cuda(ordinal)) if self.owned && is_borrowed(stream) => {
                let adopted = default_engine().adopt(ordinal, stream);
                self.owner.producers.add(adopted.map_err(|error| self.error(error, index))?);
            }
            (Some(stream), _) => {
                self.owner.producers.add(stream);
                self.owner.producers.current.get_or_insert(stream);
            }
            (None, _) => {}
        }
        // The interface may belong to a temporary; the object itself is kept by the caller.
        self.is_lent = true;
        push_to(&mut self.owner.objects, interface.into_any().unbind())
    }

    /// The CUDA device of an address.
    fn cuda_device_of(&self, address: usize, index: usize) -> PyResult<Device> {
        match windrow::device_of(address) {
            Ok(Device::Cpu) => {
                let mismatch = Mismatch::new(
                    Some(index),
                    "memory of a CUDA device",
                    "an address that the driver does not know",
                );
                Err(self.error(Error::Device(Box::new(mismatch)), index))
            }
            found => found.map_err(|error| self.error(error, index)),
        }
    }

    /// The stream of a CUDA array interface.
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

    /// Dtype, shape and strides, in elements, of an array interface of either kind.
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
        let is_on_host = name == "__array_interface__";
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

    /// Byte strides to element strides.
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
            return Err(self.layout_error(
                index,
                "strides of whole elements",
                &format!("byte strides {strides:?}"),
            ));
        }
        Ok(strides.iter().map(|stride| stride / size).collect())
    }
}

/// A sequence of dims, of which one more than there can be is read: it may say anything of its length,
/// and have no end.
fn dims_of(dims: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    if !is_sequence(dims)? {
        let class = class_name(&dims.get_type())?;
        return Err(PyTypeError::new_err(format!("expected a sequence of ints, got {class}")));
    }
    dims.try_iter()?.take(MAX_NDIM + 1).map(|entry| entry?.extract()).collect()
}
