//! Export: DLPack, the buffer protocol, `__array_interface__` and the methods named after libraries.
#![allow(unsafe_code)] // Capsules and buffer views are raw structs.

use std::ffi::{c_int, c_void, CStr};
use std::sync::Arc;

use pyo3::exceptions::{PyAttributeError, PyBufferError, PyImportError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyTuple};
use windrow::dlpack::{
    device_to_dl, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned, DLTENSOR,
    DLTENSOR_VERSIONED, FLAG_IS_COPIED,
};
use windrow::{
    Collate, DType, Device, Error, Layout, Leaf, Plan, RunOptions, SampleList, Span, Stage, Stream,
    Tensor,
};

use crate::engine::index_engine;
use crate::errors::{in_words, DeviceError, OrPyErr};
use crate::logging::Records;
use crate::numpy_api::array_of;
use crate::order::{ready_on, Order};
use crate::sources::torch_api;
use crate::stream::from_handle;
use crate::tensor::PyTensor;
use crate::torch_memory;

/// Code letter of the struct module, for dtypes that have one.
fn format_of(dtype: DType) -> Option<&'static CStr> {
    Some(match dtype {
        DType::Bool => c"?",
        DType::I8 => c"b",
        DType::I16 => c"h",
        DType::I32 => c"i",
        DType::I64 => c"q",
        DType::U8 => c"B",
        DType::U16 => c"H",
        DType::U32 => c"I",
        DType::U64 => c"Q",
        DType::F16 => c"e",
        DType::F32 => c"f",
        DType::F64 => c"d",
        DType::C64 => c"Zf",
        DType::C128 => c"Zd",
        _ => return None,
    })
}

/// The dtype of a buffer format. The size decides for `l` and `L`, whose width depends on the prefix.
pub(crate) fn dtype_of_format(format: &[u8], size: usize) -> Option<DType> {
    let foreign_order: &[u8] = if cfg!(target_endian = "little") { b">!" } else { b"<" };
    let code = match format {
        [order, ..] if foreign_order.contains(order) && size > 1 => return None,
        [b'@' | b'=' | b'<' | b'>' | b'!', code @ ..] => code,
        code => code,
    };
    let dtype = match (code, size) {
        (b"?", _) => DType::Bool,
        (b"b", _) => DType::I8,
        (b"B" | b"c", _) => DType::U8,
        (b"h" | b"i" | b"l" | b"q" | b"n", 2) => DType::I16,
        (b"h" | b"i" | b"l" | b"q" | b"n", 4) => DType::I32,
        (b"h" | b"i" | b"l" | b"q" | b"n", 8) => DType::I64,
        (b"H" | b"I" | b"L" | b"Q" | b"N", 2) => DType::U16,
        (b"H" | b"I" | b"L" | b"Q" | b"N", 4) => DType::U32,
        (b"H" | b"I" | b"L" | b"Q" | b"N", 8) => DType::U64,
        (b"e", _) => DType::F16,
        (b"f", _) => DType::F32,
        (b"d", _) => DType::F64,
        (b"Zf" | b"F", _) => DType::C64,
        (b"Zd" | b"D", _) => DType::C128,
        _ => return None,
    };
    (dtype.size() == size).then_some(dtype)
}

/// The array-interface typestr of a dtype that NumPy itself has.
pub(crate) fn typestr_of(dtype: DType) -> Option<String> {
    let kind = match dtype {
        DType::Bool => 'b',
        DType::F16 | DType::F32 | DType::F64 => 'f',
        DType::C64 | DType::C128 => 'c',
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 'u',
        _ if dtype.is_integer() => 'i',
        _ => return None,
    };
    let order = match (dtype.size(), cfg!(target_endian = "little")) {
        (1, _) => '|',
        (_, true) => '<',
        (_, false) => '>',
    };
    Some(format!("{order}{kind}{}", dtype.size()))
}

/// The dtype of an array-interface typestr, in native byte order only.
pub(crate) fn dtype_of_typestr(typestr: &[u8]) -> Option<DType> {
    let [order, kind, size @ ..] = typestr else { return None };
    let size = std::str::from_utf8(size).ok()?.parse().ok()?;
    let native = if cfg!(target_endian = "little") { b'<' } else { b'>' };
    let is_native = size == 1 || [native, b'=', b'|'].contains(order);
    dtype_of_kind(*kind, size).filter(|_| is_native)
}

/// The dtype of an array-interface kind and a size in bytes.
pub(crate) fn dtype_of_kind(kind: u8, size: usize) -> Option<DType> {
    Some(match (kind, size) {
        (b'b', 1) => DType::Bool,
        (b'i', 1) => DType::I8,
        (b'i', 2) => DType::I16,
        (b'i', 4) => DType::I32,
        (b'i', 8) => DType::I64,
        (b'u', 1) => DType::U8,
        (b'u', 2) => DType::U16,
        (b'u', 4) => DType::U32,
        (b'u', 8) => DType::U64,
        (b'f', 2) => DType::F16,
        (b'f', 4) => DType::F32,
        (b'f', 8) => DType::F64,
        (b'c', 8) => DType::C64,
        (b'c', 16) => DType::C128,
        _ => return None,
    })
}

/// `__dlpack_device__`: page-locked memory says here what it is; in a capsule, where torch refuses
/// that, it is host memory.
pub(crate) fn dlpack_device(tensor: &Tensor) -> (i32, i32) {
    let device = device_to_dl(tensor.device());
    match tensor.device() {
        Device::Pinned => (DLDeviceType::CUDA_HOST.0, 0),
        _ => (device.device_type.0, device.device_id),
    }
}

/// A stage of its own, to be dropped at its end.
fn exporting(py: Python<'_>) -> (Span<'static>, Records<'_>) {
    let records = Records::of_call(py);
    (Span::enter(Stage::Export), records)
}

/// The stream that a consumer named; `None` if it waits by itself, or if there is nothing to wait for.
fn consumer_stream(
    py: Python<'_>,
    tensor: &Tensor,
    stream: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Stream>> {
    let handle: Option<i64> = stream
        .map(|stream| stream.extract())
        .transpose()
        .map_err(|e| in_words(py, e, || PyTypeError::new_err("stream is None or an int")))?;
    match (tensor.device(), handle) {
        (Device::Cuda(_), None) => Ok(Some(Stream::LEGACY)),
        (Device::Cuda(_), Some(-1)) | (_, None) => Ok(None),
        (Device::Cuda(_), Some(0)) => Err(PyValueError::new_err(
            "stream=0 is ambiguous; the default streams are 1 (legacy) and 2 (per thread)",
        )),
        (Device::Cuda(_), Some(handle)) => from_handle(handle).map(Some),
        (_, Some(handle)) => Err(PyValueError::new_err(format!(
            "stream={handle} for host memory, which has no streams"
        ))),
    }
}

/// `__dlpack__`.
pub(crate) fn dlpack<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    stream: Option<&Bound<'py, PyAny>>,
    max_version: Option<&Bound<'py, PyAny>>,
    dl_device: Option<&Bound<'py, PyAny>>,
    copy: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let _stage = exporting(py);
    let stream = consumer_stream(py, tensor, stream)?;
    let versioned = match max_version {
        None => false,
        Some(version) => {
            let pair = version.cast::<PyTuple>().ok().filter(|pair| pair.len() == 2);
            let pair = pair.and_then(|pair| pair.extract::<(i64, i64)>().ok());
            pair.ok_or_else(|| PyTypeError::new_err("max_version is None or a tuple of two ints"))?
                .0
                >= 1
        }
    };
    let mut target = tensor.device();
    if let Some(device) = dl_device {
        let asked: (i64, i64) = device.extract().map_err(|e| {
            in_words(py, e, || PyTypeError::new_err("dl_device is None or a tuple of two ints"))
        })?;
        let is = |(kind, id): (i32, i32)| asked == (i64::from(kind), i64::from(id));
        let host = (DLDeviceType::CPU.0, 0);
        if is(host) {
            target = if target == Device::Pinned { target } else { Device::Cpu };
        } else if !is(dlpack_device(tensor)) {
            return Err(PyBufferError::new_err(format!(
                "cannot export memory of {target} to device {asked:?}"
            )));
        }
    }
    let copy = copy
        .map(|copy| copy.cast::<PyBool>().map(|copy| copy.is_true()))
        .transpose()
        .map_err(|_| PyTypeError::new_err("copy is None, True or False"))?;
    let moves = target != tensor.device();
    if moves && copy == Some(false) {
        return Err(PyBufferError::new_err(format!(
            "memory of {} is read on the host through a copy, and copy=False forbids one",
            tensor.device()
        )));
    }
    let copies = moves || copy == Some(true);
    let copied;
    let tensor = if copies {
        copied = py.detach(|| duplicate(tensor, target, stream)).or_py_err(py)?;
        &copied
    } else {
        tensor
    };
    if tensor.is_read_only() && !versioned {
        return Err(PyBufferError::new_err(
            "read-only memory can be exported from DLPack 1.0 on only; ask with max_version",
        ));
    }
    if let Some(stream) = stream {
        ready_on(tensor, stream).or_py_err(py)?;
    }
    let (pointer, name, destructor): (*mut c_void, &CStr, ffi::PyCapsule_Destructor) = if versioned
    {
        let flags = if copies { FLAG_IS_COPIED } else { 0 };
        (tensor.to_dlpack_with(flags).as_ptr().cast(), DLTENSOR_VERSIONED, drop_versioned)
    } else {
        (tensor.to_dlpack_legacy().as_ptr().cast(), DLTENSOR, drop_legacy)
    };
    // SAFETY: a non-NULL pointer, a static name, and the destructor for that name.
    let capsule = unsafe { ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destructor)) };
    if capsule.is_null() {
        // SAFETY: the export just made, which nothing else has.
        unsafe {
            match versioned {
                true => delete_versioned(pointer.cast()),
                false => delete_legacy(pointer.cast()),
            }
        }
    }
    // SAFETY: a new reference, or NULL with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

/// # Safety
/// `managed` is an export nothing has taken.
unsafe fn delete_versioned(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: the caller's promise; our exports always have a deleter.
    unsafe {
        if let Some(deleter) = (*managed).deleter {
            deleter(managed);
        }
    }
}

/// # Safety
/// As [`delete_versioned`].
unsafe fn delete_legacy(managed: *mut DLManagedTensor) {
    // SAFETY: as above.
    unsafe {
        if let Some(deleter) = (*managed).deleter {
            deleter(managed);
        }
    }
}

// A capsule that was consumed has another name, and nothing is left to free. The deleters raise
// nothing, and what they let go of leaves an exception in flight as it is (`Keep`).
unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: called by Python with a capsule; the name says what it holds.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, DLTENSOR_VERSIONED.as_ptr()) == 1 {
            delete_versioned(
                ffi::PyCapsule_GetPointer(capsule, DLTENSOR_VERSIONED.as_ptr()).cast(),
            );
        }
    }
}

unsafe extern "C" fn drop_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, DLTENSOR.as_ptr()) == 1 {
            delete_legacy(ffi::PyCapsule_GetPointer(capsule, DLTENSOR.as_ptr()).cast());
        }
    }
}

/// A row-major copy on a device in memory of its own.
fn duplicate(tensor: &Tensor, device: Device, stream: Option<Stream>) -> windrow::Result<Tensor> {
    copy_of(tensor, &Collate::stack().device(device), stream)?.select(0)
}

/// What a form makes of one tensor, behind all that still writes it. Not in the user's counters.
pub(crate) fn copy_of(
    tensor: &Tensor,
    collate: &Collate,
    stream: Option<Stream>,
) -> windrow::Result<Tensor> {
    let mut one = SampleList::new();
    one.push_view(&tensor.into());
    let order = Order::of(tensor);
    let mut options = RunOptions::default();
    options.stream = stream.or(order.current);
    options.producers = order.producers;
    options.keep = order.tensors.iter().map(|tensor| Arc::clone(tensor.owner())).collect();
    let leaf = Leaf { samples: &one, collate, path: "", out: None };
    let filled = index_engine().run_with(Plan::for_leaves(&[leaf])?, options)?;
    filled.into_iter().find_map(|filled| filled.data).ok_or(Error::Empty)
}

/// `__array_interface__` of a host tensor.
pub(crate) fn array_interface<'py>(
    py: Python<'py>,
    tensor: &Tensor,
) -> PyResult<Bound<'py, PyDict>> {
    let typestr =
        typestr_of(tensor.dtype()).filter(|_| !matches!(tensor.device(), Device::Cuda(_)));
    let typestr = typestr.ok_or_else(|| {
        PyAttributeError::new_err(format!("{} has no __array_interface__", tensor.dtype()))
    })?;
    described(py, tensor, &typestr)
}

/// `__cuda_array_interface__` of a device tensor, version 3. The legacy default stream is ordered
/// behind the tensor and named: ours may be gone before the consumer looks.
pub(crate) fn cuda_array_interface<'py>(
    py: Python<'py>,
    tensor: &Tensor,
) -> PyResult<Bound<'py, PyDict>> {
    let typestr = typestr_of(tensor.dtype()).filter(|_| matches!(tensor.device(), Device::Cuda(_)));
    let typestr = typestr.ok_or_else(|| {
        let (dtype, device) = (tensor.dtype(), tensor.device());
        PyAttributeError::new_err(format!("{dtype} on {device} has no __cuda_array_interface__"))
    })?;
    ready_on(tensor, Stream::LEGACY).or_py_err(py)?;
    let interface = described(py, tensor, &typestr)?;
    interface.set_item("stream", Stream::LEGACY.handle())?;
    Ok(interface)
}

/// What the array interfaces have in common.
fn described<'py>(py: Python<'py>, tensor: &Tensor, typestr: &str) -> PyResult<Bound<'py, PyDict>> {
    let size = tensor.dtype().size() as i64;
    let is_empty_on_device =
        matches!(tensor.device(), Device::Cuda(_)) && tensor.shape().contains(&0);
    let address = if is_empty_on_device { 0 } else { tensor.data_ptr().expose_provenance() };
    let interface = PyDict::new(py);
    interface.set_item("version", 3)?;
    interface.set_item("shape", PyTuple::new(py, tensor.shape())?)?;
    interface.set_item("typestr", typestr)?;
    interface.set_item("data", (address, tensor.is_read_only()))?;
    interface.set_item(
        "strides",
        PyTuple::new(py, tensor.strides().iter().map(|stride| stride * size))?,
    )?;
    Ok(interface)
}

/// Refuses what only host memory can do.
fn on_host(tensor: &Tensor, what: &str) -> PyResult<()> {
    match tensor.device() {
        Device::Cuda(ordinal) => Err(DeviceError::new_err(format!(
            "{what} reads host memory, and this is on cuda:{ordinal}; assemble it with \
             device=\"cpu\", or take .torch(), .cupy() or .jax() of it"
        ))),
        _ => Ok(()),
    }
}

/// Whether the elements are without gaps, the first dim's next to each other.
fn is_column_major(tensor: &Tensor) -> bool {
    let turned = |dims: &[i64]| dims.iter().rev().copied().collect::<Vec<_>>();
    let (shape, strides) = (turned(tensor.shape()), turned(tensor.strides()));
    Layout::try_new(tensor.dtype(), &shape, Some(&strides)).is_ok_and(|layout| layout.is_compact())
}

/// Fills in a buffer view.
///
/// # Safety
/// `view` is the view that Python passed to `bf_getbuffer` of `owner`, which holds `tensor`.
pub(crate) unsafe fn get_buffer(
    tensor: &Tensor,
    owner: Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("no view to fill in"));
    }
    // SAFETY: Python's view; NULL marks a failed request.
    unsafe { (*view).obj = std::ptr::null_mut() };
    on_host(tensor, "the buffer protocol")?;
    let wants = |flag: c_int| flags & flag == flag;
    let Some(format) = format_of(tensor.dtype()) else {
        return Err(PyBufferError::new_err(format!("{} has no buffer format", tensor.dtype())));
    };
    if wants(ffi::PyBUF_WRITABLE) && tensor.is_read_only() {
        return Err(PyBufferError::new_err("the memory is read-only"));
    }
    let row_major = tensor.layout().is_compact();
    let is_in_order = if wants(ffi::PyBUF_F_CONTIGUOUS) {
        is_column_major(tensor)
    } else if wants(ffi::PyBUF_ANY_CONTIGUOUS) {
        row_major || is_column_major(tensor)
    } else {
        row_major || wants(ffi::PyBUF_STRIDES) && !wants(ffi::PyBUF_C_CONTIGUOUS)
    };
    if !is_in_order {
        return Err(PyBufferError::new_err("the memory has not the order that was asked for"));
    }
    let size = tensor.dtype().size();
    let ndim = tensor.shape().len();
    let strides = tensor.strides().iter().map(|&stride| stride as isize * size as isize);
    let dims: Box<[isize]> =
        tensor.shape().iter().map(|&extent| extent as isize).chain(strides).collect();
    let dims = Box::into_raw(Box::new(dims));
    // SAFETY: Python's view, filled in once; `internal` owns the dims until `release_buffer`.
    unsafe {
        let (shape, strides) = ((**dims).as_mut_ptr(), (**dims).as_mut_ptr().add(ndim));
        (*view).buf = tensor.data_ptr().cast();
        (*view).len = tensor.nbytes() as isize;
        (*view).readonly = c_int::from(tensor.is_read_only());
        (*view).itemsize = size as isize;
        (*view).format = if wants(ffi::PyBUF_FORMAT) {
            format.as_ptr().cast_mut()
        } else {
            std::ptr::null_mut()
        };
        (*view).ndim = ndim as c_int;
        (*view).shape = if wants(ffi::PyBUF_ND) { shape } else { std::ptr::null_mut() };
        (*view).strides = if wants(ffi::PyBUF_STRIDES) { strides } else { std::ptr::null_mut() };
        (*view).suboffsets = std::ptr::null_mut();
        (*view).internal = dims.cast();
        (*view).obj = owner.into_ptr();
    }
    Ok(())
}

/// # Safety
/// `view` was filled in by [`get_buffer`] and is released once.
pub(crate) unsafe fn release_buffer(view: *mut ffi::Py_buffer) {
    // SAFETY: `internal` is the box that `get_buffer` left there.
    unsafe { drop(Box::from_raw((*view).internal.cast::<Box<[isize]>>())) };
}

/// Zero-copy NumPy array; types NumPy lacks come with those of ml_dtypes.
pub(crate) fn numpy<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let _stage = exporting(py);
    on_host(tensor, "NumPy")?;
    if let Some(array) = array_of(py, tensor)? {
        return Ok(array);
    }
    let numpy = py.import(intern!(py, "numpy"))?;
    let asarray = |tensor: Tensor| {
        numpy.call_method1(intern!(py, "asarray"), (Bound::new(py, PyTensor::from(tensor))?,))
    };
    if format_of(tensor.dtype()).is_some() {
        return asarray(tensor.clone());
    }
    let types = py.import("ml_dtypes").map_err(|_| {
        PyImportError::new_err(format!(
            "NumPy has no {}; the package ml_dtypes adds it",
            tensor.dtype()
        ))
    })?;
    asarray(tensor.as_bits())?.call_method1("view", (types.getattr(tensor.dtype().name())?,))
}

/// Zero-copy torch tensor.
pub(crate) fn torch<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    if let Some(whole) = torch_memory::whole_of(py, tensor)? {
        return Ok(whole);
    }
    if let Device::Cuda(_) = tensor.device() {
        // Asked by torch itself, which names its current stream.
        let object = Bound::new(py, PyTensor::from(tensor.clone()))?;
        return py
            .import(intern!(py, "torch"))?
            .call_method1(intern!(py, "from_dlpack"), (object,));
    }
    if let Some(exchanged) = through_exchange(py, tensor)? {
        return Ok(exchanged);
    }
    let version = (1, 3).into_pyobject(py)?.into_any();
    let capsule = dlpack(py, tensor, None, Some(&version), None, None)?;
    py.import(intern!(py, "torch.utils.dlpack"))?
        .call_method1(intern!(py, "from_dlpack"), (capsule,))
}

/// A torch tensor of host memory by torch's own exchange table, where it has one: a third of what `from_dlpack`
/// takes, which is told of memory that must not be written to.
fn through_exchange<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(take) = torch_api(py)?.and_then(|api| api.managed_tensor_to_py_object_no_sync) else {
        return Ok(None);
    };
    if tensor.is_read_only() {
        return Ok(None);
    }
    let _stage = exporting(py);
    let (managed, mut object) = (tensor.to_dlpack(), std::ptr::null_mut());
    // SAFETY: a function from torch's table, which takes the export over unless it fails; attached.
    unsafe {
        if take(managed.as_ptr(), &mut object) != 0 {
            delete_versioned(managed.as_ptr());
            return Err(PyErr::fetch(py));
        }
        Bound::from_owned_ptr_or_err(py, object.cast()).map(Some)
    }
}

/// JAX array, zero-copy where JAX takes the alignment.
pub(crate) fn jax<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let object = Bound::new(py, PyTensor::from(tensor.clone()))?;
    py.import("jax.dlpack")?.call_method1("from_dlpack", (object,))
}

/// CuPy array; of host memory a copy on the current device.
pub(crate) fn cupy<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    if let Device::Cuda(_) = tensor.device() {
        let object = Bound::new(py, PyTensor::from(tensor.clone()))?;
        return py.import("cupy")?.call_method1(intern!(py, "from_dlpack"), (object,));
    }
    py.import("cupy")?.call_method1("asarray", (numpy(py, tensor)?,))
}

/// `__array__` in NumPy's protocol.
pub(crate) fn array<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    dtype: Option<&Bound<'py, PyAny>>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    let array = numpy(py, tensor)?;
    let array = match dtype {
        None => array,
        Some(dtype) => {
            let same = array
                .getattr("dtype")?
                .eq(py.import("numpy")?.getattr("dtype")?.call1((dtype,))?)?;
            if copy == Some(false) && !same {
                return Err(PyValueError::new_err(
                    "a cast needs a copy, and copy=False forbids one",
                ));
            }
            let kwargs = PyDict::new(py);
            kwargs.set_item("copy", false)?;
            array.call_method("astype", (dtype,), Some(&kwargs))?
        }
    };
    if copy == Some(true) {
        array.call_method0("copy")
    } else {
        Ok(array)
    }
}
