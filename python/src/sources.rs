//! How objects of a Python type are read: found once for each type, then remembered.

use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyDict, PyFloat, PyInt, PyType};
use windrow::dlpack::{DLPackExchangeAPI, DLPACK_EXCHANGE_API};

use crate::batch::PyBatch;
use crate::errors::attribute;
use crate::tensor::PyTensor;

/// The way from an object to a sample.
#[derive(Clone, Copy)]
pub(crate) enum Route {
    /// A `windrow.Tensor`.
    Tensor,
    /// A `windrow.Batch`, which stands for its data.
    Batch,
    /// A Python bool, int or float: a sample without dims.
    Number,
    /// The C exchange API of the type: no Python call for each object. `may_lie` types have lazy
    /// conjugation and negation bits, which that API leaves out; tensors of torch's are never
    /// read-only, and have an allocator for outputs; of `chained` types it is known where an object points to its tensor, and that to its
    /// storage.
    Exchange { api: &'static DLPackExchangeAPI, may_lie: bool, is_torch: bool, chained: bool },
    /// A plain NumPy array: its struct says in a third of the time what a capsule says.
    ArrayStruct,
    /// A masked array of NumPy's: as `Protocols`, none of which says what is masked.
    Masked,
    /// `__dlpack__`, the CUDA array interface, the buffer protocol or `__array_interface__`,
    /// whichever works first.
    Protocols,
}

/// Types are few; a program that makes them without end must not make this grow with it.
const MAX_TYPES: usize = 1024;

struct Known {
    route: Route,
    /// Holds the type, so that its address names no other type.
    _class: Py<PyType>,
}

static KNOWN: Mutex<Option<HashMap<usize, Known>>> = Mutex::new(None);

/// The route of an object's exact type.
pub(crate) fn route_of(object: &Bound<'_, PyAny>) -> PyResult<Route> {
    let class = object.get_type();
    let key = class.as_ptr().addr();
    {
        let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known.as_ref().and_then(|known| known.get(&key)) {
            return Ok(found.route);
        }
    }
    // Looked up without the lock: it runs Python code.
    let route = find_route(&class, object)?;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_with(HashMap::new);
    if known.len() < MAX_TYPES {
        known.insert(key, Known { route, _class: class.unbind() });
    }
    Ok(route)
}

fn find_route(class: &Bound<'_, PyType>, object: &Bound<'_, PyAny>) -> PyResult<Route> {
    let py = class.py();
    if class.is(py.get_type::<PyTensor>()) {
        return Ok(Route::Tensor);
    }
    if class.is(py.get_type::<PyBatch>()) {
        return Ok(Route::Batch);
    }
    // NumPy's scalars are floats too, but say more about themselves.
    let is_number = class.is_subclass_of::<PyInt>()? || class.is_subclass_of::<PyFloat>()?;
    if is_number && !class.hasattr("__array_interface__")? {
        return Ok(Route::Number);
    }
    if is_numpy_array(class)? {
        return Ok(Route::ArrayStruct);
    }
    if let Some(masked) = loaded(py, "numpy.ma", "MaskedArray")? {
        if class.is_subclass(&masked)? {
            return Ok(Route::Masked);
        }
    }
    let Some(api) = exchange_api(class)? else { return Ok(Route::Protocols) };
    let may_lie = class.hasattr("is_neg")? && class.hasattr("is_conj")?;
    let name = class.fully_qualified_name()?;
    let is_torch =
        ["torch.Tensor", "torch.nn.parameter.Parameter"].iter().any(|known| name == *known);
    let chained = is_torch && is_chained(object);
    Ok(Route::Exchange { api, may_lie, is_torch, chained })
}

/// Words from the start of a torch tensor object to the address of its tensor.
pub(crate) const TENSOR_WORD: usize = size_of::<ffi::PyObject>() / size_of::<usize>();
/// Words from the start of that tensor to the address of its storage: after the virtual table and the
/// reference count.
pub(crate) const STORAGE_WORD: usize = 2;

/// Whether this build of torch lays its tensors out as the constants above say, by torch's own word
/// for both addresses.
fn is_chained(object: &Bound<'_, PyAny>) -> bool {
    let address =
        |object: &Bound<'_, PyAny>| -> PyResult<usize> { object.getattr("_cdata")?.extract() };
    let size = object.get_type().getattr("__basicsize__").and_then(|size| size.extract::<usize>());
    let (Ok(tensor), Ok(size)) = (address(object), size) else { return false };
    let Ok(storage) = object.call_method0("untyped_storage").and_then(|storage| address(&storage))
    else {
        return false;
    };
    if size < (TENSOR_WORD + 1) * size_of::<usize>() || tensor == 0 {
        return false;
    }
    // SAFETY: the first word lies inside the object; it is then known to be the address of a live
    // tensor, a C++ object with a virtual table and a reference count before its fields.
    #[allow(unsafe_code)]
    unsafe {
        let first = object.as_ptr().cast::<*const usize>().add(TENSOR_WORD).read();
        first.addr() == tensor && first.add(STORAGE_WORD).read() == storage
    }
}

/// Where tensors of a type point to what they know of gradients: null in those that need none.
#[derive(Clone, Copy)]
pub(crate) struct AutogradWord(*mut ffi::PyTypeObject);

impl AutogradWord {
    /// The word after that of the storage.
    const POSITION: usize = STORAGE_WORD + 1;

    /// For tensors of the type of `object`, if it is laid out as this file says.
    pub fn of(object: &Bound<'_, PyAny>) -> Option<AutogradWord> {
        static SEEN: PyOnceLock<bool> = PyOnceLock::new();
        let Ok(Route::Exchange { chained: true, .. }) = route_of(object) else { return None };
        // SAFETY: a live object has a type.
        #[allow(unsafe_code)]
        let word = AutogradWord(unsafe { ffi::Py_TYPE(object.as_ptr()) });
        // By torch's own example, once: the layout is that of its C++ class, the same for all. Of
        // floats, as integers refuse to require gradients.
        let py = object.py();
        let is_there = SEEN.get_or_try_init(py, || -> PyResult<bool> {
            let kwargs = PyDict::new(py);
            kwargs.set_item("dtype", py.import("torch")?.getattr("float32")?)?;
            let tensor = object.call_method("new_empty", (1,), Some(&kwargs))?;
            let before = word.is_null(&tensor);
            tensor.call_method0("requires_grad_")?;
            Ok(before && !word.is_null(&tensor))
        });
        is_there.is_ok_and(|is_there| *is_there).then_some(word)
    }

    /// Whether it is null; false for an object of another type.
    #[inline]
    pub fn is_null(self, object: &Bound<'_, PyAny>) -> bool {
        // SAFETY: a live object of the type that was found to be laid out so (`is_chained`), and the
        // tensor it points to, which has a field there.
        #[allow(unsafe_code)]
        unsafe {
            ffi::Py_TYPE(object.as_ptr()) == self.0 && {
                let tensor = object.as_ptr().cast::<*const usize>().add(TENSOR_WORD).read();
                tensor.add(AutogradWord::POSITION).read() == 0
            }
        }
    }
}

/// The exchange table of a type, if it has one that we understand.
fn exchange_api(class: &Bound<'_, PyType>) -> PyResult<Option<&'static DLPackExchangeAPI>> {
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

/// Whether a class is NumPy's array type itself, whose `__array_struct__` is believed: others can
/// have its name.
fn is_numpy_array(class: &Bound<'_, PyType>) -> PyResult<bool> {
    if class.fully_qualified_name()? != "numpy.ndarray" {
        return Ok(false);
    }
    Ok(loaded(class.py(), "numpy", "ndarray")?.is_some_and(|known| class.is(&known)))
}

/// A class of a module that somebody has imported.
fn loaded<'py>(py: Python<'py>, module: &str, name: &str) -> PyResult<Option<Bound<'py, PyType>>> {
    // SAFETY: attached; the interpreter's own dict, borrowed, or NULL when that is gone.
    #[allow(unsafe_code)]
    let modules = unsafe { Bound::from_borrowed_ptr_or_opt(py, ffi::PyImport_GetModuleDict()) };
    let modules = modules.and_then(|modules| modules.cast_into::<PyDict>().ok());
    let Some(module) = modules.map_or(Ok(None), |modules| modules.get_item(module))? else {
        return Ok(None);
    };
    Ok(attribute(&module, name)?.and_then(|class| class.cast_into().ok()))
}

/// Whether an object is a tensor rather than a list of some.
pub(crate) fn is_tensor(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(match route_of(object)? {
        Route::Tensor
        | Route::Batch
        | Route::Exchange { .. }
        | Route::ArrayStruct
        | Route::Masked => true,
        Route::Number => false,
        Route::Protocols => {
            object.hasattr("__dlpack__")? || object.hasattr("__cuda_array_interface__")?
        }
    })
}

/// How objects of this type are read: ``"tensor"``, ``"number"``, ``"exchange"``, ``"array struct"`` or ``"protocols"``.
#[pyfunction]
pub(crate) fn import_route(object: &Bound<'_, PyAny>) -> PyResult<&'static str> {
    Ok(match route_of(object)? {
        Route::Tensor | Route::Batch => "tensor",
        Route::Number => "number",
        Route::ArrayStruct => "array struct",
        Route::Exchange { .. } => "exchange",
        Route::Masked | Route::Protocols => "protocols",
    })
}
