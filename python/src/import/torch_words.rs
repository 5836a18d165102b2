//! Gradients and lazy signs of a torch tensor, read from the words of its C++ objects: to ask for
//! attributes costs more than all else of an import.
//!
//! No header promises where those words are. They are found by trial on tensors that torch makes for it
//! (`_torch_probe.py`), and believed only if they agree with torch's attributes for every one of these.
#![allow(unsafe_code)] // Words of foreign objects.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use windrow::bindings::prefetch;

use crate::ground::modules::loaded;

/// Words from the start of a tensor's Python object to the address of the tensor.
pub(crate) const TENSOR: usize = size_of::<ffi::PyObject>() / size_of::<usize>();
/// Words from the start of a tensor to the address of its storage: after the virtual table and the reference count.
pub(crate) const STORAGE: usize = 2;
/// Its autograd metadata, null if it never had any.
const AUTOGRAD: usize = 3;
/// Words from the start of a storage to the address of its memory.
pub(crate) const MEMORY: usize = 2;

/// Where the words are that are not in the same place in every release.
#[derive(Debug)]
pub(crate) struct TorchWords {
    /// In a tensor: its dispatch keys, among them those of lazy conjugation and negation.
    keys: usize,
    lazy: usize,
    /// In a tensor's autograd metadata: the class, of a tensor and of a view, and the function it came from.
    classes: [usize; 2],
    grad_fn: usize,
    /// The byte that says that it requires grad by itself.
    flag: usize,
    /// In that of a view: the tensor it is a view of.
    base: usize,
    /// In a storage: its Python object, null until there is one. `None` if that is not to be seen.
    wrapper: Option<usize>,
    /// In a storage: the word of the function that releases its memory, and that of memory shared copy-on-write.
    copy_on_write: Option<(usize, usize)>,
    /// `Tensor.untyped_storage`, which takes nothing but the tensor: to look it up costs as much as it does.
    untyped_storage: ffi::PyCFunction,
}

/// How far the objects are searched.
const KEYS: std::ops::Range<usize> = 4..28;
const GRAD_FN: std::ops::Range<usize> = 5..12;
const FLAG_WORDS: usize = 13;
const BASE_WORDS: usize = 16;
const WRAPPER: std::ops::Range<usize> = 7..12;

/// How many samples ahead the farthest object of a chain is asked for; those before it by as many more each.
const PREFETCH_STEP: usize = 4;
/// How many samples ahead the farthest object is asked for.
pub(crate) const FARTHEST: usize = 4 * PREFETCH_STEP;

/// Whether nothing else runs Python code, and so releases objects, while this thread is attached: objects of
/// interpreters without that lock have more words.
pub(crate) const HAS_LOCK: bool = size_of::<ffi::PyObject>() == 2 * size_of::<usize>();

/// # Safety
/// `start` is the address of a live object with so many words and one more.
pub(crate) unsafe fn word(start: usize, position: usize) -> usize {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::with_exposed_provenance::<usize>(start).add(position).read() }
}

/// # Safety
/// `start` is the address of a live object with more bytes than `position`.
unsafe fn byte(start: usize, position: usize) -> u8 {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::with_exposed_provenance::<u8>(start).add(position).read() }
}

impl TorchWords {
    /// torch's, if it is laid out so, for a class of its tensors.
    pub fn of(class: &Bound<'_, PyType>) -> Option<&'static TorchWords> {
        static FOUND: PyOnceLock<Option<TorchWords>> = PyOnceLock::new();
        let py = class.py();
        let torch = loaded(py, "torch._C", "TensorBase").ok()??;
        // SAFETY: two live types. Not `issubclass`, which a class may override.
        let is_tensor =
            unsafe { ffi::PyType_IsSubtype(class.as_type_ptr(), torch.as_type_ptr()) } != 0;
        if !is_tensor {
            return None;
        }
        // On a thread of its own, as modes, which are a thread's, make other tensors.
        let found = FOUND.get_or_init(py, || {
            let probe = || Python::attach(|py| TorchWords::probe(py).ok().flatten());
            py.detach(|| std::thread::Builder::new().spawn(probe).ok()?.join().ok()?)
        });
        found.as_ref()
    }

    fn probe(py: Python<'_>) -> PyResult<Option<TorchWords>> {
        let probe = py.import("windrow._torch_probe")?;
        let cases = probe.call_method0("cases")?;
        let cases =
            cases.try_iter()?.map(|case| Case::read(&case?)).collect::<PyResult<Vec<_>>>()?;
        let unasked = probe.call_method0("unasked")?;
        let clones = probe.call_method0("lazy_clones")?.extract::<Vec<Bound<'_, PyAny>>>()?;
        // SAFETY: tensors that torch has just made; the cases hold them and their storages.
        Ok(unsafe {
            TorchWords::find(&cases, &unasked).map(|words| {
                let copy_on_write = find_copy_on_write(&cases, &clones);
                TorchWords { copy_on_write, ..words }
            })
        })
    }

    /// # Safety
    /// The objects of all cases are alive; `unasked` is another of torch's own tensors.
    unsafe fn find(cases: &[Case<'_>], unasked: &Bound<'_, PyAny>) -> Option<TorchWords> {
        let [plain, leaf, view, ..] = cases else { return None };
        // SAFETY: the caller's promise. Each step below is on objects that the first has found to be a tensor and a
        // storage, and autograd metadata is read of cases that have some.
        unsafe {
            if !cases.iter().all(|case| case.is_chained()) {
                return None;
            }
            if plain.autograd() != 0 || leaf.autograd() == 0 || view.autograd() == 0 {
                return None;
            }
            // Searched no further than to the first match, which a tensor has.
            let keys = KEYS.into_iter().find(|&at| word(plain.tensor, at) == plain.keys)?;
            let of_lazy = cases.iter().filter(|case| case.is_lazy);
            let lazy = of_lazy.fold(0, |bits, case| bits | (case.keys ^ plain.keys));
            let (grad_fn, flag) = find_gradients(cases)?;
            let bases = flag / 8 + 1..flag / 8 + BASE_WORDS;
            let base = bases.into_iter().find(|&at| word(view.autograd(), at) == view.base)?;
            let classes = [word(leaf.autograd(), 0), word(view.autograd(), 0)];
            let untyped_storage = untyped_storage(&plain.object)?;
            let wrapper = find_wrapper(cases, unasked);
            let words = TorchWords {
                keys,
                lazy,
                classes,
                grad_fn,
                flag,
                base,
                wrapper,
                copy_on_write: None,
                untyped_storage,
            };
            cases.iter().all(|case| words.agrees(case)).then_some(words)
        }
    }

    /// Whether these words say of a tensor what torch says.
    ///
    /// # Safety
    /// The objects of the case are alive, and chained as torch's are.
    unsafe fn agrees(&self, case: &Case<'_>) -> bool {
        // SAFETY: the caller's promise; words of autograd metadata that all of it has.
        unsafe {
            let is_view = case.base != 0;
            let is_plain = !case.is_lazy && !case.requires_grad;
            let is_known = case.autograd() == 0
                || word(case.autograd(), 0) == self.classes[usize::from(is_view)]
                    && (!is_view || word(case.autograd(), self.base) == case.base);
            is_known
                && word(case.tensor, self.keys) == case.keys
                && (case.keys & self.lazy != 0) == case.is_lazy
                && self.is_plain(case.object.as_ptr()) == is_plain
        }
    }

    /// In a tensor, the word of its dispatch keys.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// The storage of a tensor, and the word of it that has the address of its memory; NULL if it has none.
    ///
    /// # Safety
    /// A live object of a class that [`TorchWords::of`] was asked for.
    #[inline]
    pub unsafe fn memory_of(&self, object: *mut ffi::PyObject) -> *const usize {
        // SAFETY: as in `is_plain`.
        let storage = unsafe {
            match word(object.expose_provenance(), TENSOR) {
                0 => 0,
                tensor => word(tensor, STORAGE),
            }
        };
        match storage {
            0 => std::ptr::null(),
            storage => std::ptr::with_exposed_provenance::<usize>(storage).wrapping_add(MEMORY),
        }
    }

    /// Whether a tensor may share its memory copy-on-write; true also where that is not to be seen here.
    ///
    /// # Safety
    /// A live object of a class that [`TorchWords::of`] was asked for.
    pub unsafe fn may_be_shared(&self, object: *mut ffi::PyObject) -> bool {
        let Some((at, release)) = self.copy_on_write else { return true };
        // SAFETY: as in `is_plain`.
        unsafe {
            let tensor = word(object.expose_provenance(), TENSOR);
            let storage = if tensor == 0 { 0 } else { word(tensor, STORAGE) };
            storage != 0 && word(storage, at) == release
        }
    }

    /// The object of a tensor's storage, which keeps it. torch makes one for each storage, once; to ask for it
    /// costs half as much as all else of an import, each time.
    ///
    /// # Safety
    /// A live object of a class that [`TorchWords::of`] was asked for.
    pub unsafe fn storage_of<'py>(
        &self,
        object: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: as in `is_plain`. An object that is there belongs to the live storage, and to no thread but
        // this while it is attached (`HAS_LOCK`). torch releases that mark the address while the storage owns
        // its object, and not the other way round, make it odd. Else a method of torch's base class without
        // arguments, of an object of that class.
        unsafe {
            if let (Some(at), tensor @ 1..) =
                (self.wrapper, word(object.as_ptr().expose_provenance(), TENSOR))
            {
                let storage = word(tensor, STORAGE);
                let wrapper = if storage == 0 { 0 } else { word(storage, at) };
                if wrapper != 0 && wrapper % align_of::<ffi::PyObject>() == 0 {
                    let wrapper = std::ptr::with_exposed_provenance_mut(wrapper);
                    return Ok(Bound::from_borrowed_ptr(object.py(), wrapper));
                }
            }
            let storage = (self.untyped_storage)(object.as_ptr(), std::ptr::null_mut());
            Bound::from_owned_ptr_or_err(object.py(), storage)
        }
    }

    /// Whether a tensor has its values in memory as they are, and does not require grad; false also where that
    /// is not to be seen here.
    ///
    /// # Safety
    /// A live object of a class that [`TorchWords::of`] was asked for.
    #[inline]
    pub unsafe fn is_plain(&self, object: *mut ffi::PyObject) -> bool {
        // SAFETY: the words were found in objects of torch's own (`find`), which have no other layout in its
        // subclasses; what a tensor points to lives with it.
        unsafe {
            let tensor = word(object.expose_provenance(), TENSOR);
            tensor != 0 && word(tensor, self.keys) & self.lazy == 0 && self.has_no_grad(object)
        }
    }

    /// Whether a tensor does not require grad; false also where that is not to be seen here.
    ///
    /// # Safety
    /// A live object of a class that [`TorchWords::of`] was asked for, whose tensor is there.
    #[inline]
    pub unsafe fn has_no_grad(&self, object: *mut ffi::PyObject) -> bool {
        // SAFETY: as in `is_plain`.
        unsafe {
            let autograd = word(word(object.expose_provenance(), TENSOR), AUTOGRAD);
            if autograd == 0 {
                return true;
            }
            if word(autograd, self.grad_fn) != 0 || byte(autograd, self.flag) != 0 {
                return false;
            }
            let [of_tensor, of_view] = self.classes;
            let class = word(autograd, 0);
            class == of_tensor
                || class == of_view && {
                    let base = word(autograd, self.base);
                    base != 0 && word(base, AUTOGRAD) == 0
                }
        }
    }

    /// Tensors made long ago are anywhere: without this an import waits for memory four times for each. `at`: the object of a
    /// list so many places ahead; `class`: that of the tensors; `is_kept`: the objects of their storages are read too.
    ///
    /// # Safety
    /// The objects are alive, and [`TorchWords::of`] was asked for the class.
    #[inline]
    pub unsafe fn prefetch_ahead(
        &self,
        class: *mut ffi::PyTypeObject,
        is_kept: bool,
        at: impl Fn(usize) -> Option<*mut ffi::PyObject>,
    ) {
        // SAFETY: a live object has a type.
        let same = |object: &*mut ffi::PyObject| unsafe { ffi::Py_TYPE(*object) } == class;
        let [tensor, storage, base] = [3, 2, 1].map(|step| at(step * PREFETCH_STEP).filter(same));
        // SAFETY: live objects, of the class but for the farthest.
        unsafe { self.prefetch([at(FARTHEST), tensor, storage, base], is_kept) };
    }

    /// Asks for the memory that the reading of a list touches, of four of its objects: of the farthest that of its Python object, of
    /// the next one that of its tensor, then of the storage and what torch says of gradients, then of the tensor that it is a view of.
    ///
    /// # Safety
    /// The objects are alive and, but for the farthest, of a class that [`TorchWords::of`] was asked for.
    #[inline]
    unsafe fn prefetch(&self, ahead: [Option<*mut ffi::PyObject>; 4], is_kept: bool) {
        let line = |address: usize| prefetch(std::ptr::with_exposed_provenance(address), 1);
        let [object, tensor, storage, base] = ahead;
        // SAFETY: as in `is_plain`.
        let tensor_of = |object: *mut ffi::PyObject| unsafe {
            Some(word(object.expose_provenance(), TENSOR)).filter(|&tensor| tensor != 0)
        };
        // SAFETY: as in `has_no_grad`.
        let autograd_of = |tensor: usize| unsafe {
            Some(word(tensor, AUTOGRAD)).filter(|&autograd| autograd != 0)
        };
        let word_at = |start: usize, position: usize| start + size_of::<usize>() * position;
        // Objects begin at multiples of 16 bytes, not of a line: what is read of them may be in the next one.
        if let Some(object) = object {
            prefetch(object.cast(), 1);
            line(word_at(object.addr(), TENSOR));
        }
        if let Some(tensor) = tensor.and_then(tensor_of) {
            (0..3).for_each(|count| line(tensor + 64 * count));
            line(word_at(tensor, self.keys));
        }
        if let Some(tensor) = storage.and_then(tensor_of) {
            // SAFETY: a live object points to a live tensor.
            let storage = unsafe { word(tensor, STORAGE) };
            line(word_at(storage, MEMORY));
            if let Some(wrapper) = self.wrapper.filter(|_| is_kept) {
                line(word_at(storage, wrapper));
            }
            if let Some(autograd) = autograd_of(tensor) {
                line(autograd);
                line(word_at(autograd, self.grad_fn));
                line(autograd + self.flag);
                line(word_at(autograd, self.base));
            }
        }
        if let Some(autograd) = base.and_then(tensor_of).and_then(autograd_of) {
            // SAFETY: as in `has_no_grad`: metadata of a view has this word.
            let base = unsafe {
                (word(autograd, 0) == self.classes[1]).then(|| word(autograd, self.base))
            };
            base.into_iter().for_each(|base| line(word_at(base, AUTOGRAD)));
        }
    }
}

/// In autograd metadata, the word of the function that a tensor came from, and the byte that says that it requires grad by
/// itself: the first that agree with torch for all cases.
///
/// # Safety
/// The objects of all cases are alive, and chained as torch's are.
unsafe fn find_gradients(cases: &[Case<'_>]) -> Option<(usize, usize)> {
    // SAFETY: the caller's promise; objects with a mutex behind what is searched.
    unsafe {
        let with_grad = || cases.iter().filter(|case| case.autograd() != 0);
        let is_grad_fn = |case: &Case<'_>, at| (word(case.autograd(), at) != 0) == case.has_fn;
        let grad_fn =
            GRAD_FN.into_iter().find(|&at| with_grad().all(|case| is_grad_fn(case, at)))?;
        let is_flag = |case: &Case<'_>, at| byte(case.autograd(), at) == u8::from(case.by_itself);
        let mut flags = 8 * (grad_fn + 1)..8 * (grad_fn + FLAG_WORDS);
        let flag = flags.find(|&at| with_grad().all(|case| is_flag(case, at)))?;
        Some((grad_fn, flag))
    }
}

/// In a storage, the word of its Python object, which one of a tensor that nothing has asked for it has not.
///
/// # Safety
/// The objects of all cases are alive, and chained as torch's are; `unasked` is another of torch's own tensors.
unsafe fn find_wrapper(cases: &[Case<'_>], unasked: &Bound<'_, PyAny>) -> Option<usize> {
    let is_its = |case: &Case<'_>, at| {
        // SAFETY: searched no further than to the first match; no storage has fewer words.
        unsafe { word(case.storage, at) == case.storage_object.as_ptr().expose_provenance() }
    };
    // SAFETY: as above, for the storage of a tensor of torch's own.
    let has_none = |at| unsafe {
        let tensor = word(unasked.as_ptr().expose_provenance(), TENSOR);
        word(word(tensor, STORAGE), at) == 0
    };
    WRAPPER
        .filter(|_| HAS_LOCK)
        .find(|&at| cases.iter().all(|case| is_its(case, at)) && has_none(at))
}

/// In a storage, the word of the function that releases its memory, and that of memory shared copy-on-write, by lazy clones of
/// tensors that share nothing with each other.
///
/// # Safety
/// The objects of all cases are alive, and chained as torch's are; the clones are others of torch's own tensors.
unsafe fn find_copy_on_write(
    cases: &[Case<'_>],
    clones: &[Bound<'_, PyAny>],
) -> Option<(usize, usize)> {
    // SAFETY: the caller's promise; a storage has both words behind the address of its memory.
    unsafe {
        let storage_of = |tensor: &Bound<'_, PyAny>| {
            word(word(tensor.as_ptr().expose_provenance(), TENSOR), STORAGE)
        };
        let Some((first, others)) = clones.split_first() else {
            // A torch without lazy clones: no release function is at 0.
            return Some((MEMORY + 1, 0));
        };
        let is_its = |at: usize| {
            let release = word(storage_of(first), at);
            others.iter().all(|other| word(storage_of(other), at) == release)
                && cases.iter().all(|case| word(case.storage, at) != release)
        };
        let at = (MEMORY + 1..MEMORY + 3).find(|&at| is_its(at))?;
        Some((at, word(storage_of(first), at)))
    }
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

/// A tensor, and what torch says of it.
struct Case<'py> {
    object: Bound<'py, PyAny>,
    storage_object: Bound<'py, PyAny>,
    tensor: usize,
    storage: usize,
    memory: usize,
    base: usize,
    keys: usize,
    is_lazy: bool,
    requires_grad: bool,
    has_fn: bool,
    by_itself: bool,
}

impl<'py> Case<'py> {
    /// Whether the object leads to the tensor, that to the storage, and that to the memory.
    ///
    /// # Safety
    /// The objects are alive: the first word after the head of a tensor's object is then known for the address of a
    /// tensor, and its third for that of a storage, both C++ objects of more words than are read.
    unsafe fn is_chained(&self) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            word(self.object.as_ptr().expose_provenance(), TENSOR) == self.tensor
                && word(self.tensor, STORAGE) == self.storage
                && word(self.storage, MEMORY) == self.memory
        }
    }

    /// The address of the tensor's autograd metadata; 0 if it has none.
    ///
    /// # Safety
    /// The objects are alive and [chained](Case::is_chained): the word after that of the storage is a field of every
    /// tensor.
    unsafe fn autograd(&self) -> usize {
        // SAFETY: the caller's promise.
        unsafe { word(self.tensor, AUTOGRAD) }
    }

    fn read(case: &Bound<'py, PyAny>) -> PyResult<Case<'py>> {
        let (
            object,
            storage_object,
            tensor,
            storage,
            memory,
            base,
            keys,
            is_lazy,
            requires_grad,
            has_fn,
            by_itself,
        ) = case.extract()?;
        Ok(Case {
            object,
            storage_object,
            tensor,
            storage,
            memory,
            base,
            keys,
            is_lazy,
            requires_grad,
            has_fn,
            by_itself,
        })
    }
}
