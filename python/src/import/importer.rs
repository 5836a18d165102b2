//! The list that an import fills, what keeps its samples alive, and its errors. See `items` for the entry points.
#![allow(unsafe_code)] // Foreign pointers enter here.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use windrow::bindings::{set_handed_out, PipelinedCopy};
use windrow::dlpack::{DLDeviceType, ForeignTensor};
use windrow::error::{Hint, Mismatch, MoveSide};
use windrow::{Collate, DType, Device, Engine, Error, SampleList, Stream};

use crate::ground::dtype::{hint_for, in_other_order, is_small};
use crate::ground::errors::{at, shown, to_py_err, ErrorSubject};
use crate::ground::reserve::push_to;
use crate::import::routes::{ImportRoute, Lazy};
use crate::ownership::column::Entries;
use crate::ownership::holder::{has_moved, producers_of, Holder};
use crate::ownership::storage_watch::{moved, StorageWatch};

/// How objects are read.
#[derive(Clone, Copy, Default)]
pub(crate) struct Reading<'a> {
    /// The leaf they belong to, for errors.
    pub path: &'a str,
    /// Whether they are kept after the call: owned tensors are asked for even where a borrowed one would do, since those know if
    /// they are read-only, and moves of their memory are watched.
    pub owned: bool,
    /// Whether to refuse what has no memory of its own, which would have to be copied.
    pub must_be_view: bool,
    /// The stream of the work on them, if that is known.
    pub stream: Option<Stream>,
    /// The form that they are assembled in, which has an operator that keeps gradients.
    pub form: Option<&'static str>,
    /// The engine that may stack them, by these options, while they are read.
    pub stacker: Option<(&'a Engine, &'a Collate)>,
    /// Whether a list or tuple of Python numbers is a sample.
    pub rows: bool,
    /// The side of pairs that the samples are, if any. Read-only destinations are refused unless they are read as
    /// borrowed ones.
    pub side: Option<MoveSide>,
}

impl Reading<'_> {
    /// How samples are read that are kept after the call.
    pub const OWNED: Self = Reading {
        path: "",
        owned: true,
        must_be_view: false,
        stream: None,
        form: None,
        stacker: None,
        rows: true,
        side: None,
    };
}

/// The storage of a torch tensor, which the tensor itself can exchange for another.
pub(crate) struct HeldStorage {
    pub object: Py<PyAny>,
    pub watch: StorageWatch,
}

/// Reads objects one after the other into a list.
pub(crate) struct Importer<'py> {
    pub py: Python<'py>,
    /// Copies rows while later ones are read, as long as all are alike. Dropped before `owner`.
    pub ahead: Option<PipelinedCopy>,
    pub list: SampleList<'static>,
    pub owner: Holder,
    /// The object that keeps each sample of a kept list in place of the sample itself (see `keepers`), Python's None where that is
    /// not made yet; shorter than the list where all that follow are kept by themselves.
    pub keepers: Vec<Option<Py<PyAny>>>,
    /// The torch tensor that each sample of a kept list is; shorter than the list where those that follow are none.
    pub tensors: Vec<Option<Py<PyAny>>>,
    /// Whether the last sample was lent, and `owner` has what gives it back.
    pub is_lent: bool,
    /// Whether the values of the last sample are among the numbers of `owner`.
    pub is_number: bool,
    /// Whether the last sample is not in pageable memory, where that was not looked at before.
    pub is_on_device: bool,
    /// Watches of the memory of samples that are kept.
    pub watches: Entries<StorageWatch>,
    /// The storage of the last torch tensor, if it has one.
    pub storage: Option<HeldStorage>,
    /// The leaf these samples belong to, for errors.
    pub path: String,
    /// The leaf of each, if they are several.
    pub paths: Vec<String>,
    pub owned: bool,
    /// Whether to refuse what has no memory of its own.
    pub must_be_view: bool,
    /// Whether a list or tuple of Python numbers is a sample.
    pub rows: bool,
    /// The dtype of a row without numbers, where no sample has been read yet.
    pub empty_dtype: DType,
    /// The stream of the work on the samples, if that is known.
    pub stream: Option<Stream>,
    /// The form that they are assembled in.
    pub form: Option<&'static str>,
    /// The argument that the one object is: there is no list that it has a position in.
    pub argument: Option<&'static str>,
    /// The side of pairs that the objects are.
    pub side: Option<MoveSide>,
    /// The class of the last object, which is held so that no other has its address, and how its objects are read.
    pub last: Option<(Bound<'py, PyType>, ImportRoute, Lazy)>,
    /// Whether torch has said that it records nothing, and only samples of `last`'s class, which run no code of others, came
    /// since.
    pub is_unrecorded: bool,
    /// Whether the last sample was read without running any code of others.
    pub is_quiet: bool,
    /// Arguments of `__dlpack__`, for the host and for devices.
    pub dlpack_kwargs: [Option<Bound<'py, PyDict>>; 2],
}

impl<'py> Importer<'py> {
    /// An importer without samples, which reads as `reading` says.
    pub fn new(py: Python<'py>, reading: Reading<'_>) -> Importer<'py> {
        Importer {
            py,
            list: SampleList::new(),
            owner: Holder::default(),
            keepers: Vec::new(),
            tensors: Vec::new(),
            is_lent: false,
            is_number: false,
            is_on_device: false,
            watches: Entries::default(),
            storage: None,
            path: reading.path.to_owned(),
            paths: Vec::new(),
            owned: reading.owned,
            must_be_view: reading.must_be_view,
            rows: reading.rows,
            empty_dtype: DType::F64,
            stream: reading.stream,
            form: reading.form,
            argument: None,
            side: reading.side,
            last: None,
            is_unrecorded: false,
            is_quiet: false,
            ahead: None,
            dlpack_kwargs: [None, None],
        }
    }

    /// Whether samples are released one by one: those of a list that is kept.
    pub fn is_per_sample(&self) -> bool {
        self.owned && self.argument.is_none()
    }

    /// Sets the device of memory that a producer says is page-locked or managed, as the driver knows it: DLPack has no ordinal
    /// for these, and the former may be claimed of any host memory. LayoutError for managed memory that the driver does not know.
    /// Leaves memory of other kinds, and tensors without elements, as they are.
    pub fn place(
        &self,
        foreign: &mut ForeignTensor<'_>,
        kind: DLDeviceType,
        index: usize,
    ) -> PyResult<()> {
        let is_known = !matches!(kind, DLDeviceType::CUDA_HOST | DLDeviceType::CUDA_MANAGED);
        if !is_known && !foreign.shape.contains(&0) {
            match windrow::device::device_of(foreign.data.addr()) {
                Ok(Device::Cpu) if foreign.device != Device::Cpu => {
                    let got = "an address that the driver does not know";
                    return Err(self.layout_error(index, "managed memory", got));
                }
                Ok(device) => foreign.device = device,
                // Host memory can be read without a driver.
                Err(_) if foreign.device == Device::Cpu => {}
                Err(error) => return Err(self.error(error, index)),
            }
        }
        Ok(())
    }

    /// Notes that the last sample was read without running any code of others, and copies it ahead if a copy has begun; one that
    /// is unlike the first ends that.
    pub fn push_ahead(&mut self) {
        self.is_quiet = true;
        match &mut self.ahead {
            None => {}
            // SAFETY: just read and of the first one's kind; the caller keeps it alive.
            Some(ahead) if self.list.is_uniform() => unsafe {
                ahead.push(self.list.address(self.list.len() - 1));
            },
            Some(_) => self.ahead = None,
        }
    }

    /// The exception of an error of sample `index`, or of the argument or the pair that it is, with the path of the leaf.
    pub fn error(&self, error: Error, index: usize) -> PyErr {
        let error = match (self.argument, self.side) {
            (None, None) => error.at_index(index),
            (None, Some(side)) => error.at_side(side, index),
            (Some(name), _) => error.about(name),
        };
        to_py_err(self.py, &error.at_path(&self.path))
    }

    /// The object in the text of an error.
    pub fn named(&self, index: usize) -> String {
        format!("{}{}", self.subject(index), at(&self.path))
    }

    /// The subject of an error of sample `index`: a sample, a side of a pair, or an argument.
    pub fn subject(&self, index: usize) -> ErrorSubject {
        match (self.argument, self.side) {
            (None, None) => ErrorSubject::Sample(index),
            (None, Some(side)) => ErrorSubject::Pair(side, index),
            (Some(name), _) => ErrorSubject::Argument(name),
        }
    }

    /// The LayoutError of sample `index`.
    pub fn layout_error(&self, index: usize, expected: &str, got: &str) -> PyErr {
        self.error(Error::Layout(Box::new(Mismatch::new(Some(index), expected, got))), index)
    }

    /// The DeviceError of sample `index`.
    pub fn device_error(&self, index: usize, expected: &str, got: &str) -> PyErr {
        self.error(Error::Device(Box::new(Mismatch::new(Some(index), expected, got))), index)
    }

    /// The error of a dtype that no batch can have, DTypeError where its values are no whole bytes, else LayoutError: `got` names
    /// it with a word before it, `dtype` is that name.
    pub fn foreign_dtype(&self, index: usize, got: &str, dtype: &str) -> PyErr {
        let (kind, expected): (fn(_) -> _, _) = match is_small(dtype) {
            true => (Error::DType, "a dtype of whole bytes"),
            false => (Error::Layout, "a native number format"),
        };
        let mismatch = Mismatch::new(Some(index), expected, got);
        self.error(kind(Box::new(mismatch.with_hint(Hint::Text(hint_for(dtype))))), index)
    }

    /// The producer's own words, their first line, as a LayoutError with its cause.
    pub fn wrap(&self, cause: PyErr, index: usize) -> PyErr {
        let text = match shown(cause.value(self.py)) {
            Ok(text) => text,
            Err(error) => return error,
        };
        // torch appends a C++ backtrace.
        let first_line = text.lines().next().unwrap_or_default();
        let error = self.layout_error(index, "memory that can be expressed", first_line);
        error.set_cause(self.py, Some(cause));
        error
    }

    /// LayoutError for a destination, read last, that is read-only or follows one that is.
    #[inline]
    pub fn check_writable(&self, index: usize) -> PyResult<()> {
        match self.side.is_some_and(MoveSide::is_written) && self.list.is_read_only() {
            true => Err(self.layout_error(index, "writable memory", "read-only memory")),
            false => Ok(()),
        }
    }

    /// Appends a sample, whose memory the caller or `owner` keeps alive. LayoutError for a layout that cannot be expressed and,
    /// with `must_be_view`, for foreign byte order.
    pub fn push(&mut self, foreign: &ForeignTensor<'_>, index: usize) -> PyResult<()> {
        self.is_quiet = false;
        if self.must_be_view && !foreign.dtype.is_native() {
            let error = Error::Layout(in_other_order(Some(index), foreign.dtype));
            return Err(self.error(error, index));
        }
        self.is_on_device = foreign.device != Device::Cpu;
        // SAFETY: the producer vouches for its tensor, whose owner the caller or `owner` holds.
        let pushed = unsafe {
            self.list.push(
                foreign.data,
                foreign.dtype,
                foreign.device,
                foreign.shape,
                foreign.strides,
            )
        };
        pushed.map_err(|error| self.error(error, index))?;
        if foreign.read_only {
            self.list.mark_last_read_only();
        }
        Ok(())
    }

    /// Appends a tensor of ours, which counts as handed out; LayoutError if its memory was moved. `owner` keeps it, and knows
    /// what it waits for, unless it is in pageable memory: that is left to the caller.
    pub fn push_tensor(&mut self, tensor: &windrow::Tensor, index: usize) -> PyResult<()> {
        set_handed_out(tensor, true);
        if has_moved(self.py, tensor)? {
            return Err(self.error(moved(index), index));
        }
        let foreign = ForeignTensor {
            data: tensor.data_ptr(),
            dtype: tensor.dtype(),
            device: tensor.device(),
            shape: tensor.shape(),
            strides: Some(tensor.strides()),
            read_only: tensor.is_read_only(),
        };
        self.push(&foreign, index)?;
        if tensor.device() == Device::Cpu {
            return Ok(());
        }
        self.owner.producers.merge(&producers_of(tensor));
        push_to(&mut self.owner.tensors, tensor.clone())
    }
}
