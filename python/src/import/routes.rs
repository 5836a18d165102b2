//! How objects of a Python type are read: found once for each type, then remembered.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{
    PyBytes, PyCapsule, PyFloat, PyInt, PyList, PyTuple, PyType, PyWeakrefReference,
};
use windrow::dlpack::{DLPackExchangeAPI, DLPACK_EXCHANGE_API};
use windrow::DType;

use crate::ground::batch::PyBatch;
use crate::ground::dtype::dtype_of_kind;
use crate::ground::errors::attribute;
use crate::ground::modules::{grad_is_enabled, has_tangent, loaded, module, requires_grad};
use crate::ground::tensor::PyTensor;
use crate::import::numpy_layout::is_laid_out;
use crate::private_layouts::torch_layout::TorchReader;

/// The way from an object to a sample.
#[derive(Clone, Copy)]
pub(crate) enum ImportRoute {
    /// A `windrow.Tensor`.
    Tensor,
    /// A `windrow.Batch`, which stands for its data.
    Batch,
    /// A Python bool, int or float: a sample without dims.
    Number,
    /// A list or tuple, of Python numbers: a sample of one dim.
    Row,
    /// The C exchange API of the type: no Python call for each object. torch tensors are never
    /// read-only, and have an allocator for outputs; dense ones of the host's are read without a call at all.
    Exchange { api: &'static DLPackExchangeAPI, is_torch: bool },
    /// A plain NumPy array, read from its struct.
    Array,
    /// The same where NumPy's structs are not those that we know, and arrays of subclasses: `__array_struct__` says in a third
    /// of the time what a capsule says.
    ArrayStruct,
    /// A NumPy masked array: read as `Protocols`, none of which transfers the mask.
    Masked,
    /// A NumPy scalar of this dtype: a sample without dims.
    Scalar(DType),
    /// A NumPy scalar that is not a number: its buffer may be raw bytes, its array interface has the dtype.
    Described,
    /// The stand-in for an array while JAX traces a function.
    Tracer,
    /// `__dlpack__`, the CUDA array interface, the buffer protocol or `__array_interface__`,
    /// whichever works first.
    Protocols,
}

/// Whether objects of a type may require grad, or have their values in memory conjugated or negated, neither
/// of which the exchange API says.
#[derive(Clone, Copy)]
pub(crate) enum Lazy {
    No,
    /// Tensors may share memory; this reader sees it in the words of the object.
    Layout(&'static TorchReader),
    /// Tensors may share memory; the object has to be asked, by its methods.
    Methods,
}

/// Types are few; a program that makes them without end must not make this grow with it.
const MAX_TYPES: usize = 1024;

struct CachedRoute {
    route: (ImportRoute, Lazy),
    /// Weak, so that a class goes with its objects; another may have its address then.
    class: Py<PyWeakrefReference>,
}

impl CachedRoute {
    /// Whether the type is that of an object. Runs no Python code.
    fn is_of(&self, object: &Bound<'_, PyAny>) -> bool {
        let class = self.class.bind(object.py()).upgrade();
        class.is_some_and(|class| std::ptr::eq(class.as_ptr().cast(), object.get_type_ptr()))
    }
}

/// The types that were looked up, by their addresses.
static CACHED: Mutex<Option<HashMap<usize, Arc<CachedRoute>>>> = Mutex::new(None);

thread_local! {
    /// The type that this thread looked up last.
    static LAST: RefCell<Option<Arc<CachedRoute>>> = const { RefCell::new(None) };
}

/// The route of an object's exact type.
pub(crate) fn route_of(object: &Bound<'_, PyAny>) -> PyResult<(ImportRoute, Lazy)> {
    if let Some(route) = cached_route(object) {
        return Ok(route);
    }
    // The lookup runs Python code, so it holds no lock.
    let (py, class) = (object.py(), object.get_type());
    let route = (find_route(&class, object)?, find_lazy(&class)?);
    let found = CachedRoute { route, class: PyWeakrefReference::new(&class)?.unbind() };
    let mut cached = CACHED.lock().unwrap_or_else(PoisonError::into_inner);
    let cached = cached.get_or_insert_with(HashMap::new);
    // No Python code runs: weak references have no callback, and a class, which refers to itself, is not gone with one of ours.
    if cached.len() >= MAX_TYPES {
        cached.retain(|_, cached| cached.class.bind(py).upgrade().is_some());
    }
    if cached.len() < MAX_TYPES {
        cached.insert(class.as_ptr().addr(), Arc::new(found));
    }
    Ok(route)
}

/// The route of [`route_of`] for a type that was looked up before; `None` for others, and for those beyond
/// [`MAX_TYPES`]. Runs no Python code.
#[inline]
pub(crate) fn cached_route(object: &Bound<'_, PyAny>) -> Option<(ImportRoute, Lazy)> {
    let is_last = |last: &RefCell<Option<Arc<CachedRoute>>>| {
        last.borrow().as_ref().filter(|last| last.is_of(object)).map(|last| last.route)
    };
    if let Some(route) = LAST.try_with(is_last).ok().flatten() {
        return Some(route);
    }
    let cached = CACHED.lock().unwrap_or_else(PoisonError::into_inner);
    let found = cached.as_ref()?.get(&object.get_type_ptr().addr());
    let found = Arc::clone(found.filter(|found| found.is_of(object))?);
    drop(cached);
    let route = found.route;
    // This fails only while the thread ends.
    let _ = LAST.try_with(|last| last.replace(Some(found)));
    Some(route)
}

/// Whether an object may be of a class that has words, [`Lazy::Layout`]: false for a class that is known to have none. Runs no
/// Python code.
pub(crate) fn may_have_words(object: &Bound<'_, PyAny>) -> bool {
    cached_route(object).is_none_or(|(_, lazy)| matches!(lazy, Lazy::Layout(_)))
}

/// The route of a class, of which `object` is one. Runs Python code.
fn find_route(class: &Bound<'_, PyType>, object: &Bound<'_, PyAny>) -> PyResult<ImportRoute> {
    let py = class.py();
    if class.is(py.get_type::<PyTensor>()) {
        return Ok(ImportRoute::Tensor);
    }
    if class.is(py.get_type::<PyBatch>()) {
        return Ok(ImportRoute::Batch);
    }
    // NumPy's scalars are floats too, but say more about themselves.
    let is_number = class.is_subclass_of::<PyInt>()? || class.is_subclass_of::<PyFloat>()?;
    if is_number && !class.hasattr("__array_interface__")? {
        return Ok(ImportRoute::Number);
    }
    let is_list = class.is_subclass_of::<PyList>()? || class.is_subclass_of::<PyTuple>()?;
    if is_list && !has_interface(class)? {
        return Ok(ImportRoute::Row);
    }
    if is_numpy_array(class)? {
        return Ok(if is_laid_out(py) { ImportRoute::Array } else { ImportRoute::ArrayStruct });
    }
    let is_of = |module, name| -> PyResult<bool> {
        loaded(py, module, name)?.map_or(Ok(false), |known| class.is_subclass(&known))
    };
    if is_of("numpy.ma", "MaskedArray")? {
        return Ok(ImportRoute::Masked);
    }
    if is_of("numpy", "generic")? {
        match number_of_numpy(object)? {
            None => return Ok(ImportRoute::Described),
            // Other libraries have dtypes of these kinds too.
            Some(Some(dtype)) if class.getattr("__module__")?.eq("numpy")? => {
                return Ok(ImportRoute::Scalar(dtype));
            }
            Some(_) => {}
        }
    }
    if is_plain_subclass(class)? {
        return Ok(ImportRoute::ArrayStruct);
    }
    if is_of("jax.core", "Tracer")? {
        return Ok(ImportRoute::Tracer);
    }
    let Some(api) = exchange_api(class)? else { return Ok(ImportRoute::Protocols) };
    let name = class.fully_qualified_name()?;
    let is_torch =
        ["torch.Tensor", "torch.nn.parameter.Parameter"].iter().any(|known| name == *known);
    Ok(ImportRoute::Exchange { api, is_torch })
}

/// Whether a class has `__dlpack__`, `__cuda_array_interface__` or `__array_interface__`; the
/// buffer protocol alone does not count.
pub(crate) fn has_interface(class: &Bound<'_, PyType>) -> PyResult<bool> {
    for name in ["__dlpack__", "__cuda_array_interface__", "__array_interface__"] {
        if class.hasattr(name)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The dtype of a NumPy scalar that is a bool, an integer, a float or a complex number, `Some(None)` if we have not
/// that; `None` for any other, such as durations, though their class is one of integers.
fn number_of_numpy(scalar: &Bound<'_, PyAny>) -> PyResult<Option<Option<DType>>> {
    let Some(dtype) = attribute(scalar, "dtype")? else { return Ok(None) };
    let kind = attribute(&dtype, "kind")?.and_then(|kind| kind.extract::<String>().ok());
    let size = attribute(&dtype, "itemsize")?.and_then(|size| size.extract().ok());
    let kind = kind.filter(|kind| ["b", "i", "u", "f", "c"].contains(&kind.as_str()));
    let dtype = |kind: String| dtype_of_kind(kind.as_bytes()[0], size.unwrap_or(0));
    Ok(kind.map(dtype))
}

/// How objects of a class say that they require grad, or that their values are not in memory as they are.
fn find_lazy(class: &Bound<'_, PyType>) -> PyResult<Lazy> {
    Ok(match TorchReader::for_class(class) {
        Some(layout) => Lazy::Layout(layout),
        None if class.hasattr("is_neg")? && class.hasattr("is_conj")? => Lazy::Methods,
        None => Lazy::No,
    })
}

/// The exchange table of a type, if it has one that we understand.
pub(crate) fn exchange_api(
    class: &Bound<'_, PyType>,
) -> PyResult<Option<&'static DLPackExchangeAPI>> {
    let found = attribute(class, "__dlpack_c_exchange_api__")?;
    // An older form of this attribute is an int; only the capsule carries a promise.
    let capsule = found.and_then(|found| found.cast_into::<PyCapsule>().ok());
    let name: &CStr = DLPACK_EXCHANGE_API;
    let table = capsule.and_then(|capsule| capsule.pointer_checked(Some(name)).ok());
    // SAFETY: a capsule of this name holds a table that lives as long as the process.
    #[allow(unsafe_code)]
    let api = table.and_then(|table| unsafe { DLPackExchangeAPI::find(table.as_ptr().cast()) });
    Ok(api.filter(|api| api.managed_tensor_from_py_object_no_sync.is_some()))
}

/// The exchange table for torch tensors, once torch is imported. Its class is held: one that stands in for torch's may own it.
pub(crate) fn torch_api(py: Python<'_>) -> PyResult<Option<&'static DLPackExchangeAPI>> {
    type TorchApi = (Py<PyType>, &'static DLPackExchangeAPI);
    static FOUND: PyOnceLock<Option<TorchApi>> = PyOnceLock::new();
    let find = || match loaded(py, "torch", "Tensor")? {
        Some(class) => Ok(exchange_api(&class)?.map(|api| (class.unbind(), api))),
        None => Ok::<_, PyErr>(None),
    };
    let has_torch = || Ok::<_, PyErr>(FOUND.get(py).is_some() || module(py, "torch")?.is_some());
    match has_torch()? {
        true => Ok(FOUND.get_or_try_init(py, find)?.as_ref().map(|(_, api)| *api)),
        false => Ok(None),
    }
}

/// Whether a class is NumPy's array type itself, whose `__array_struct__` is believed: others can
/// have its name.
fn is_numpy_array(class: &Bound<'_, PyType>) -> PyResult<bool> {
    if class.fully_qualified_name()? != "numpy.ndarray" {
        return Ok(false);
    }
    Ok(loaded(class.py(), "numpy", "ndarray")?.is_some_and(|known| class.is(&known)))
}

/// Whether a class is `numpy.ndarray` or one below it that leaves the array interfaces, `__dlpack__`
/// and the look-up of attributes as NumPy has them. By a capsule such an array would be kept by a reference that the
/// garbage collector does not see.
fn is_plain_subclass(class: &Bound<'_, PyType>) -> PyResult<bool> {
    let Some(array) = loaded(class.py(), "numpy", "ndarray")? else { return Ok(false) };
    if !class.is_subclass(&array)? {
        return Ok(false);
    }
    for name in ["__array_struct__", "__array_interface__", "__dlpack__", "__getattribute__"] {
        // A NumPy before 1.22 has no `__dlpack__`.
        let (of_class, of_array) = (class.getattr_opt(name)?, array.getattr_opt(name)?);
        let is_same = match (of_class, of_array) {
            (Some(of_class), Some(of_array)) => of_class.is(&of_array),
            (of_class, of_array) => of_class.is_none() && of_array.is_none(),
        };
        if !is_same {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether an object is a torch tensor, or of a class that has `is_neg` and `is_conj` as torch's have.
pub(crate) fn is_torch(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(!matches!(route_of(object)?.1, Lazy::No))
}

/// Whether what torch makes of a tensor now has a part in its gradients, of either mode.
#[allow(unsafe_code)]
pub(crate) fn keeps_gradients(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    match route_of(object)?.1 {
        Lazy::No => Ok(false),
        // SAFETY: a live object of a class that has words.
        Lazy::Layout(torch) if unsafe { torch.is_plain(object.as_ptr()) } => Ok(false),
        _ => Ok(requires_grad(object)? && grad_is_enabled(object.py())? || has_tangent(object)?),
    }
}

/// Whether an object is a nested tensor of torch: a list of tensors, of either of its layouts.
pub(crate) fn is_nested(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(is_torch(object)? && object.getattr("is_nested")?.is_truthy()?)
}

/// The kind of a torch tensor that has no memory of one shape, and the hint; `None` for any other object.
pub(crate) fn shapeless(object: &Bound<'_, PyAny>) -> PyResult<Option<(String, &'static str)>> {
    if !is_torch(object)? {
        return Ok(None);
    }
    if object.getattr("is_nested")?.is_truthy()? {
        let hint = "it is a list of samples: give it in place of the list, or unbind() it";
        return Ok(Some(("a nested tensor".to_owned(), hint)));
    }
    let layout = object.getattr("layout")?.str()?.to_string();
    Ok((layout != "torch.strided")
        .then(|| (format!("a tensor of layout {layout}"), "use to_dense()")))
}

/// Whether an object is a `Tensor`, a NumPy array or of a class with an exchange table: no list, mapping or table, which is
/// dearer to find out. False for a batch, a masked array, and arrays that have protocols alone, as JAX's.
pub(crate) fn is_array(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    use ImportRoute::{Array, ArrayStruct, Exchange, Tensor};
    Ok(matches!(route_of(object)?.0, Tensor | Exchange { .. } | Array | ArrayStruct))
}

/// Whether an object is a tensor rather than a list of some. A batch is one if its samples are the rows of its data: those of
/// padded and joined ones are not. An object that has protocols alone is one by any of them: lists of numbers that lend a buffer
/// too, such as `array.array`, whose numbers have a dtype. bytes are text.
#[allow(unsafe_code)]
pub(crate) fn is_tensor(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(match route_of(object)?.0 {
        ImportRoute::Batch => {
            let batch = object.cast::<PyBatch>()?.get();
            batch.batch().fields().bounds().are_rows()
        }
        ImportRoute::Tensor
        | ImportRoute::Exchange { .. }
        | ImportRoute::Array
        | ImportRoute::ArrayStruct
        | ImportRoute::Masked
        | ImportRoute::Tracer => true,
        ImportRoute::Number
        | ImportRoute::Row
        | ImportRoute::Scalar(_)
        | ImportRoute::Described => false,
        ImportRoute::Protocols => {
            // SAFETY: a live object, attached.
            let has_buffer = unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0;
            (has_buffer && !object.is_instance_of::<PyBytes>())
                || object.hasattr("__dlpack__")?
                || object.hasattr("__cuda_array_interface__")?
                || object.hasattr("__array_interface__")?
        }
    })
}

/// How objects of this type are read: ``"tensor"``, a batch too, ``"number"``, a NumPy scalar too, ``"row"``, ``"exchange"``,
/// ``"array"``, ``"array struct"`` or, all others, ``"protocols"``.
#[pyfunction]
#[pyo3(name = "_import_route")]
pub(crate) fn import_route(object: &Bound<'_, PyAny>) -> PyResult<&'static str> {
    Ok(match route_of(object)?.0 {
        ImportRoute::Tensor | ImportRoute::Batch => "tensor",
        ImportRoute::Number | ImportRoute::Scalar(_) => "number",
        ImportRoute::Row => "row",
        ImportRoute::Array => "array",
        ImportRoute::ArrayStruct => "array struct",
        ImportRoute::Exchange { .. } => "exchange",
        ImportRoute::Masked
        | ImportRoute::Described
        | ImportRoute::Tracer
        | ImportRoute::Protocols => "protocols",
    })
}
