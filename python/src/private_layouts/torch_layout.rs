//! torch's tensors and storages, read from the words of their C++ objects. To ask for attributes, or to call the function of the
//! exchange table, takes longer than all else of an import.
//!
//! ```text
//! Python object --> TensorImpl --> StorageImpl --> memory
//!                       |
//!                       +--> AutogradMeta --> base, if the tensor is a view
//! ```
//!
//! Another thread may write these words while torch runs without the interpreter's lock, as `resize_` does: each is read as an
//! atomic. What they then say may be of no one moment, as with torch's own functions.
#![allow(unsafe_code)] // Words of foreign objects.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU16, AtomicU8, AtomicUsize, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use windrow::bindings::prefetch;
use windrow::DType;

use crate::ground::modules::{loaded, module};
use crate::private_layouts::{check_switch, Reason, HAS_LOCK};

/// The minor releases of torch 2 that this was tested with: the word of `TensorImpl` that has the number of dims, and the byte of
/// `AutogradMeta` that says that a tensor requires grad.
const TORCHES: [(std::ops::RangeInclusive<u32>, usize, usize); 2] =
    [(10..=12, 8, 144), (13..=15, 7, 128)];

/// Words from the start of a tensor's Python object to the address of the tensor.
const TENSOR: usize = size_of::<ffi::PyObject>() / size_of::<usize>();
/// Words of a tensor: the addresses of its storage and of its autograd metadata, null if it never had any.
const STORAGE: usize = 2;
const AUTOGRAD: usize = 3;
/// A word of autograd metadata: the function that the tensor came from.
const GRAD_FN: usize = 6;
/// Words from a tensor's tangents, null if it never had any, to the byte that says that it requires grad.
const TANGENTS: usize = 8;
/// Flags of autograd metadata: whether the tensor requires grad by itself, and whether it is a view.
const REQUIRES_GRAD: usize = 0;
const IS_VIEW: usize = 2;
/// Words of a `std::mutex`, which is before the base of a view.
const MUTEX: usize = if cfg!(target_arch = "aarch64") { 6 } else { 5 };
/// Words of a storage: the address of its memory, what releases that, and its Python object, null until there is one.
const MEMORY: usize = 2;
const RELEASE: usize = 3;
const STORAGE_OBJECT: usize = 10;

/// Shapes and strides of more dims are not within the tensor.
pub(crate) const MAX_DIMS: usize = 5;

/// How many samples ahead the last object of a chain is asked for, the base of a view; each one before it in the chain as many
/// more ahead.
const PREFETCH_STEP: usize = 4;
/// How many samples ahead the first object of a chain is asked for, the Python object.
pub(crate) const FARTHEST: usize = 4 * PREFETCH_STEP;

/// The positions of words that differ between releases, and values that torch was asked for.
pub(crate) struct TorchReader {
    /// The word of a tensor that has the number of dims; then come the extents, then the strides, room for [`MAX_DIMS`] each.
    sizes: usize,
    /// The byte of autograd metadata from which on its flags are: [`REQUIRES_GRAD`], [`IS_VIEW`].
    flags: usize,
    /// The dispatch keys of a dense tensor on the host, and those of lazy conjugation and negation.
    plain_keys: usize,
    lazy_keys: usize,
    /// The function that releases memory shared copy-on-write.
    shared_release: usize,
    /// `Tensor.untyped_storage`, which takes nothing but the tensor: to look it up costs as much as it does.
    untyped_storage: ffi::PyCFunction,
}

/// The fields of a dense tensor.
pub(crate) struct DenseFields<'a> {
    pub data: *const u8,
    pub dtype: DType,
    pub shape: &'a [AtomicI64],
    pub strides: &'a [AtomicI64],
}

/// The word at a position in an object, as it is now.
///
/// # Safety
/// `start` is the address of a live object of more than `position` words.
#[inline(always)]
unsafe fn word(start: usize, position: usize) -> usize {
    let start = std::ptr::with_exposed_provenance_mut::<usize>(start);
    debug_assert!(!start.is_null() && start.is_aligned());
    // SAFETY: the caller's promise.
    unsafe { AtomicUsize::from_ptr(start.add(position)).load(Ordering::Relaxed) }
}

static READER: PyOnceLock<Result<TorchReader, Reason>> = PyOnceLock::new();

/// The reader of the torch that is imported, or why there is none; `None` where torch is not imported.
pub(crate) fn reader(py: Python<'_>) -> Option<&'static Result<TorchReader, Reason>> {
    if READER.get(py).is_none() {
        module(py, "torch").ok()??;
    }
    // The probe runs on a thread of its own, because modes, which belong to a thread, make other tensors.
    let make = || {
        let thread = std::thread::Builder::new().spawn(|| Python::attach(TorchReader::make));
        thread.ok()?.join().ok()
    };
    let failed = || Err("the check of its tensors failed".to_owned());
    Some(READER.get_or_init(py, || py.detach(make).unwrap_or_else(failed)))
}

/// The reader, if it is on and was made before. Runs no Python code.
pub(crate) fn reader_made(py: Python<'_>) -> Option<&'static TorchReader> {
    READER.get(py)?.as_ref().ok()
}

impl TorchReader {
    /// The reader for torch's tensor class and subclasses; `None` for other classes, and where the reader is off.
    pub fn for_class(class: &Bound<'_, PyType>) -> Option<&'static TorchReader> {
        let torch = loaded(class.py(), "torch._C", "TensorBase").ok()??;
        // SAFETY: two live types. Not `issubclass`, which a class may override.
        match unsafe { ffi::PyType_IsSubtype(class.as_type_ptr(), torch.as_type_ptr()) } {
            0 => None,
            _ => reader(class.py())?.as_ref().ok(),
        }
    }

    /// The reader, or why there is none: the switch, the release, or a check that failed.
    fn make(py: Python<'_>) -> Result<TorchReader, Reason> {
        check_switch()?;
        let minor = minor_release(py).ok().flatten();
        let known =
            TORCHES.iter().find(|known| minor.is_some_and(|minor| known.0.contains(&minor)));
        let Some(&(_, sizes, flags)) = known.filter(|_| cfg!(target_os = "linux")) else {
            return Err("tested with 2.10 to 2.15 on Linux".to_owned());
        };
        match TorchReader::check(py, sizes, flags) {
            Ok(Some(reader)) => Ok(reader),
            _ => Err("its tensors are laid out in another way".to_owned()),
        }
    }

    /// Compares what is read of tensors that torch makes with what torch says of them; `None` if they differ.
    fn check(py: Python<'_>, sizes: usize, flags: usize) -> PyResult<Option<TorchReader>> {
        let probe = py.import("windrow._torch_probe")?;
        let cases = probe.call_method0("cases")?;
        let cases =
            cases.try_iter()?.map(|case| case?.extract()).collect::<PyResult<Vec<Case<'_>>>>()?;
        let unasked = probe.call_method0("unasked")?;
        let clones = probe.call_method0("lazy_clones")?.extract::<Vec<Bound<'_, PyAny>>>()?;
        let Some(plain) = cases.first() else { return Ok(None) };
        let of_lazy = cases.iter().filter(|case| case.is_lazy);
        let lazy_keys = of_lazy.fold(0, |bits, case| bits | (case.keys ^ plain.keys));
        let Some(untyped_storage) = untyped_storage(&plain.tensor) else { return Ok(None) };
        let mut reader = TorchReader {
            sizes,
            flags,
            plain_keys: plain.keys,
            lazy_keys,
            shared_release: 0,
            untyped_storage,
        };
        // SAFETY: tensors that torch has just made, which the cases hold with their storages; all are found to be chained first.
        Ok(unsafe {
            if !cases.iter().all(|case| reader.agrees(case)) || !reader.has_no_object(&unasked) {
                return Ok(None);
            }
            if let Some(clone) = clones.first() {
                reader.shared_release = word(word(tensor_of(clone.as_ptr()), STORAGE), RELEASE);
            }
            let are_told = clones.iter().all(|clone| reader.may_be_shared(clone.as_ptr()))
                && !cases.iter().any(|case| reader.may_be_shared(case.tensor.as_ptr()));
            are_told.then_some(reader)
        })
    }

    /// Whether the words of a tensor say what torch says.
    ///
    /// # Safety
    /// The objects of the case are alive.
    unsafe fn agrees(&self, case: &Case<'_>) -> bool {
        let object = case.tensor.as_ptr();
        // SAFETY: the caller's promise; a step from one object to the next is taken only where torch has the same address.
        unsafe {
            let [tensor, storage, memory] = case.addresses;
            let is_chained = tensor_of(object) == tensor
                && word(tensor, STORAGE) == storage
                && word(storage, MEMORY) == memory;
            let is_storage = || match word(storage, STORAGE_OBJECT) {
                object if HAS_LOCK => object == case.storage.as_ptr().addr(),
                _ => true,
            };
            let is_dense = || match (self.fields_of(object), &case.dense) {
                (Some(fields), Some((dtype, shape, strides, address))) => {
                    fields.dtype.name() == dtype
                        && fields.data.addr() == *address
                        && are_dims(fields.shape, shape)
                        && are_dims(fields.strides, strides)
                }
                (fields, dense) => fields.is_none() && dense.is_none(),
            };
            is_chained
                && is_storage()
                && word(tensor, self.keys()) == case.keys
                && self.is_plain(object) == case.is_plain
                && is_dense()
        }
    }

    /// Whether the storage of a tensor has no Python object.
    ///
    /// # Safety
    /// A live tensor of torch's own.
    unsafe fn has_no_object(&self, tensor: &Bound<'_, PyAny>) -> bool {
        // SAFETY: the caller's promise.
        unsafe { word(word(tensor_of(tensor.as_ptr()), STORAGE), STORAGE_OBJECT) == 0 }
    }

    /// The position of the word of a tensor that has its dispatch keys.
    #[inline]
    fn keys(&self) -> usize {
        self.sizes + 14
    }

    /// The position of the word of a view's autograd metadata that has the tensor of which it is a
    /// view.
    #[inline]
    fn base(&self) -> usize {
        self.flags / size_of::<usize>() + 2 + MUTEX
    }

    /// The position of the word of autograd metadata that has the tangents of forward-mode AD.
    #[inline]
    fn tangents(&self) -> usize {
        self.flags / size_of::<usize>() - TANGENTS
    }

    /// The word of a tensor's storage that has the address of its memory; `None` for a tensor without a storage.
    ///
    /// # Safety
    /// A live object of a class that [`TorchReader::for_class`] was asked for.
    #[inline]
    pub unsafe fn memory_of(&self, object: *mut ffi::PyObject) -> Option<NonNull<AtomicUsize>> {
        // SAFETY: as in `is_plain`.
        let storage = unsafe { storage_of(object) };
        let storage = NonNull::new(std::ptr::with_exposed_provenance_mut::<AtomicUsize>(storage))?;
        // SAFETY: a storage has this word.
        Some(unsafe { storage.add(MEMORY) })
    }

    /// Whether a tensor shares its memory copy-on-write, as lazy clones do.
    ///
    /// # Safety
    /// A live object of a class that [`TorchReader::for_class`] was asked for.
    pub unsafe fn may_be_shared(&self, object: *mut ffi::PyObject) -> bool {
        // SAFETY: as in `is_plain`.
        unsafe {
            let storage = storage_of(object);
            storage != 0
                && self.shared_release != 0
                && word(storage, RELEASE) == self.shared_release
        }
    }

    /// Whether memory is shared copy-on-write, as [`may_be_shared`](TorchReader::may_be_shared) tells, by the word with
    /// its address: in a storage, or in another object that has a word behind it.
    ///
    /// # Safety
    /// The word is that of a live storage, or of a NumPy array.
    #[inline]
    pub unsafe fn is_word_of_shared(&self, memory: NonNull<AtomicUsize>) -> bool {
        const { assert!(RELEASE == MEMORY + 1) };
        debug_assert!(memory.is_aligned());
        // SAFETY: the caller's promise. Behind the address an array has the number of its dims.
        let next = unsafe { memory.add(1).as_ref() }.load(Ordering::Relaxed);
        self.shared_release != 0 && next == self.shared_release
    }

    /// The object of a tensor's storage, which keeps it; `None` if a `__torch_function__` gives another. torch makes one for each
    /// storage, once; to ask for it costs half as much as all else of an import, each time.
    ///
    /// # Safety
    /// A live object of a class that [`TorchReader::for_class`] was asked for.
    pub unsafe fn storage_object<'py>(
        &self,
        object: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        // SAFETY: as in `is_plain`. An object that is there belongs to the live storage, and to no thread but this
        // while it is attached (`HAS_LOCK`). torch releases that mark the address while the storage owns its object,
        // and not the other way round, make it odd. Otherwise it is a method of torch's base class without arguments,
        // of an object of that class.
        unsafe {
            let object_word = || match storage_of(object.as_ptr()) {
                storage if storage == 0 || !HAS_LOCK => 0,
                storage => word(storage, STORAGE_OBJECT),
            };
            let found = object_word();
            let is_object = found != 0 && found % align_of::<ffi::PyObject>() == 0;
            if is_object {
                let found = std::ptr::with_exposed_provenance_mut(found);
                debug_assert!(ffi::Py_REFCNT(found) > 0);
                return Ok(Some(Bound::from_borrowed_ptr(object.py(), found)));
            }
            let made = (self.untyped_storage)(object.as_ptr(), std::ptr::null_mut());
            let made = Bound::from_owned_ptr_or_err(object.py(), made)?;
            let is_its = !HAS_LOCK || object_word() & !1 == made.as_ptr().addr();
            Ok(is_its.then_some(made))
        }
    }

    /// Whether a tensor has its values in memory as they are, does not require grad and has no tangent; false also
    /// where that is not to be seen here.
    ///
    /// # Safety
    /// A live object of a class that [`TorchReader::for_class`] was asked for.
    #[inline]
    pub unsafe fn is_plain(&self, object: *mut ffi::PyObject) -> bool {
        // SAFETY: subclasses of torch's tensors have their layout, which `check` has seen; what a tensor points to lives with it.
        unsafe { self.has_its_values(object) && self.has_no_grad(object) }
    }

    /// Whether a tensor has its values in memory as they are, whatever its gradients.
    ///
    /// # Safety
    /// A live object of a class that [`TorchReader::for_class`] was asked for.
    #[inline]
    pub unsafe fn has_its_values(&self, object: *mut ffi::PyObject) -> bool {
        // SAFETY: as in `is_plain`.
        unsafe {
            let tensor = tensor_of(object);
            tensor != 0 && word(tensor, self.keys()) & self.lazy_keys == 0
        }
    }

    /// Whether a tensor is plain by [`TorchReader::is_plain`], dense, on the host and not of inference mode: it may be
    /// written to.
    ///
    /// # Safety
    /// As of [`TorchReader::is_plain`].
    #[inline]
    pub unsafe fn is_plain_on_host(&self, object: *mut ffi::PyObject) -> bool {
        // SAFETY: as in `is_plain`.
        unsafe {
            let tensor = tensor_of(object);
            tensor != 0 && word(tensor, self.keys()) == self.plain_keys && self.has_no_grad(object)
        }
    }

    /// Whether a tensor does not require grad and has no tangent; false also where that is not to be seen here.
    ///
    /// # Safety
    /// A live object of a class that [`TorchReader::for_class`] was asked for, whose tensor is there.
    #[inline]
    pub unsafe fn has_no_grad(&self, object: *mut ffi::PyObject) -> bool {
        // SAFETY: as in `is_plain`.
        unsafe {
            let autograd = word(tensor_of(object), AUTOGRAD);
            if autograd == 0 {
                return true;
            }
            let base_has_none = || match word(autograd, self.base()) {
                0 => false,
                base => word(base, AUTOGRAD) == 0,
            };
            word(autograd, GRAD_FN) == 0
                && word(autograd, self.tangents()) == 0
                && !self.flag(autograd, REQUIRES_GRAD)
                && (!self.flag(autograd, IS_VIEW) || base_has_none())
        }
    }

    /// A flag of autograd metadata.
    ///
    /// # Safety
    /// The address of live metadata.
    unsafe fn flag(&self, autograd: usize, at: usize) -> bool {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(autograd);
        // SAFETY: the caller's promise.
        unsafe { AtomicU8::from_ptr(start.add(self.flags + at)).load(Ordering::Relaxed) != 0 }
    }

    /// The dtype of a tensor, if it is one of those that torch reports as they are by DLPack, and we have it.
    ///
    /// # Safety
    /// As of [`has_no_grad`](TorchReader::has_no_grad).
    #[inline]
    pub unsafe fn dtype_of(&self, object: *mut ffi::PyObject) -> Option<DType> {
        // SAFETY: as in `is_plain`.
        unsafe {
            let tensor = std::ptr::with_exposed_provenance_mut::<AtomicI64>(tensor_of(object));
            debug_assert!(!tensor.is_null() && tensor.is_aligned());
            let number = AtomicU16::from_ptr(tensor.add(self.sizes + 13).cast());
            dtype_of(number.load(Ordering::Relaxed))
        }
    }

    /// The fields of a tensor, if it is dense, on the host, in memory, and of few dims.
    ///
    /// # Safety
    /// A live object of a class that [`TorchReader::for_class`] was asked for; attached.
    // Its figure is beside `ColumnReader::read_at`.
    #[inline(always)]
    pub unsafe fn fields_of<'a>(&self, object: *mut ffi::PyObject) -> Option<DenseFields<'a>> {
        // SAFETY: as in `is_plain`; the words of shape and strides are within the tensor.
        unsafe {
            let tensor = tensor_of(object);
            if tensor == 0 || word(tensor, self.keys()) != self.plain_keys {
                return None;
            }
            let (storage, ndim) = (word(tensor, STORAGE), word(tensor, self.sizes));
            if storage == 0 || ndim > MAX_DIMS {
                return None;
            }
            let words = std::ptr::with_exposed_provenance_mut::<AtomicI64>(tensor).add(self.sizes);
            let dtype = self.dtype_of(object)?;
            let memory = std::ptr::with_exposed_provenance::<u8>(word(storage, MEMORY));
            if memory.is_null() {
                return None;
            }
            let offset = word(tensor, self.sizes + 11);
            let data = memory.wrapping_add(offset.wrapping_mul(dtype.size()));
            let shape = std::slice::from_raw_parts(words.add(1), ndim);
            let strides = std::slice::from_raw_parts(words.add(1 + MAX_DIMS), ndim);
            Some(DenseFields { data, dtype, shape, strides })
        }
    }

    /// Tensors made long ago are anywhere: without this an import waits for memory four times for each. `at`: the object of a
    /// list this many places ahead; `class`: that of the tensors; `is_kept`: the objects of their storages are read too.
    ///
    /// # Safety
    /// The objects are alive, and [`TorchReader::for_class`] was asked for the class.
    // Out of line, which the compiler chose once the crate had grown, a stack of 1024 small tensors takes 13 instructions a row more.
    #[inline(always)]
    pub unsafe fn prefetch_ahead(
        &self,
        class: *mut ffi::PyTypeObject,
        is_kept: bool,
        at: impl Fn(usize) -> Option<*mut ffi::PyObject>,
    ) {
        let line = |address: usize| prefetch(std::ptr::with_exposed_provenance(address), 1);
        let word_at = |start: usize, position: usize| start + size_of::<usize>() * position;
        // Objects begin at multiples of 16 bytes, not of a line: what is read of them may be in the next one.
        if let Some(object) = at(FARTHEST) {
            prefetch(object.cast(), 1);
            line(word_at(object.addr(), TENSOR));
        }
        let tensor_at = |step: usize| {
            // SAFETY: a live object, whose class is found first.
            let same = |object: &*mut ffi::PyObject| unsafe { ffi::Py_TYPE(*object) } == class;
            let object = at(step * PREFETCH_STEP).filter(same)?;
            // SAFETY: as in `is_plain`.
            Some(unsafe { tensor_of(object) }).filter(|&tensor| tensor != 0)
        };
        if let Some(tensor) = tensor_at(3) {
            (0..3).for_each(|count| line(tensor + 64 * count));
            line(word_at(tensor, self.keys()));
        }
        if let Some(tensor) = tensor_at(2) {
            // SAFETY: as in `is_plain`.
            let (storage, autograd) = unsafe { (word(tensor, STORAGE), word(tensor, AUTOGRAD)) };
            line(word_at(storage, MEMORY));
            if is_kept {
                line(word_at(storage, STORAGE_OBJECT));
            }
            if autograd != 0 {
                line(word_at(autograd, GRAD_FN));
                line(autograd + self.flags);
                line(word_at(autograd, self.base()));
            }
        }
        if let Some(tensor) = tensor_at(1) {
            // SAFETY: as in `has_no_grad`. The metadata of a tensor that is no view ends before the word of a base.
            unsafe {
                match word(tensor, AUTOGRAD) {
                    0 => {}
                    autograd if self.flag(autograd, IS_VIEW) => {
                        line(word_at(word(autograd, self.base()), AUTOGRAD));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// The address of the tensor of a Python object; 0 if it has none.
///
/// # Safety
/// A live object of torch's tensor class or a subclass.
#[inline]
unsafe fn tensor_of(object: *mut ffi::PyObject) -> usize {
    // SAFETY: the caller's promise.
    unsafe { word(object.expose_provenance(), TENSOR) }
}

/// The address of the storage of a Python object's tensor; 0 if it has none.
///
/// # Safety
/// As of [`tensor_of`].
#[inline]
unsafe fn storage_of(object: *mut ffi::PyObject) -> usize {
    // SAFETY: the caller's promise; a tensor lives with its object.
    unsafe {
        match tensor_of(object) {
            0 => 0,
            tensor => word(tensor, STORAGE),
        }
    }
}

/// The minor release of the torch that is imported; `None` if it is no torch 2.
fn minor_release(py: Python<'_>) -> PyResult<Option<u32>> {
    let Some(torch) = module(py, "torch")? else { return Ok(None) };
    let version = torch.getattr("__version__")?.str()?.to_string();
    let minor = version.strip_prefix("2.").and_then(|rest| rest.split('.').next()?.parse().ok());
    Ok(minor)
}

/// The C function of a tensor's method, if it is one without arguments.
fn untyped_storage(tensor: &Bound<'_, PyAny>) -> Option<ffi::PyCFunction> {
    let method = tensor.getattr("untyped_storage").ok()?;
    let object = method.as_ptr();
    // SAFETY: a live object; what it is of a C function is asked of one only.
    unsafe {
        let is_method = ffi::PyCFunction_Check(object) != 0
            && ffi::PyCFunction_GetFlags(object) == ffi::METH_NOARGS
            && ffi::PyCFunction_GetSelf(object) == tensor.as_ptr();
        is_method.then(|| ffi::PyCFunction_GetFunction(object)).flatten()
    }
}

/// Whether dims are the known ones now.
fn are_dims(dims: &[AtomicI64], known: &[i64]) -> bool {
    let now = dims.iter().map(|dim| dim.load(Ordering::Relaxed));
    now.eq(known.iter().copied())
}

/// The dtype by torch's number for it, `c10::ScalarType`; `None` for those that are read in another way, or not at all.
#[inline]
fn dtype_of(number: u16) -> Option<DType> {
    Some(match number {
        0 => DType::U8,
        1 => DType::I8,
        2 => DType::I16,
        3 => DType::I32,
        4 => DType::I64,
        5 => DType::F16,
        6 => DType::F32,
        7 => DType::F64,
        9 => DType::C64,
        10 => DType::C128,
        11 => DType::Bool,
        15 => DType::BF16,
        27 => DType::U16,
        28 => DType::U32,
        29 => DType::U64,
        _ => return None,
    })
}

/// A tensor, its storage, and what torch says of them.
#[derive(FromPyObject)]
struct Case<'py> {
    tensor: Bound<'py, PyAny>,
    storage: Bound<'py, PyAny>,
    /// Addresses of the tensor, of its storage and of its memory.
    addresses: [usize; 3],
    keys: usize,
    is_lazy: bool,
    is_plain: bool,
    /// Dtype, shape, strides and address of one that is dense, on the host and of few dims.
    dense: Option<(String, Vec<i64>, Vec<i64>, usize)>,
}
