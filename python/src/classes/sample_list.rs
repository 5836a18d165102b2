//! The methods of `SampleList`.

use pyo3::exceptions::PyTypeError;
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PySlice, PyTuple};

use crate::collate::forms::stack_taken;
use crate::ground::arguments::device_of;
use crate::ground::batch::PyBatch;
use crate::ground::errors::OrPyErr;
use crate::ground::iterables::{check_list, tuple_from, tuple_items};
use crate::ground::reserve::try_vec;
use crate::import::importer::Reading;
use crate::import::integers::integers;
use crate::import::tensor::table_of;
use crate::ownership::holder::Visited;
use crate::samples::arrow::is_arrow;
use crate::samples::imported::Imported;
use crate::samples::list::{ListSamples, PySampleList};
use crate::samples::list_import::{import_list, rows_of_arrow};
use crate::samples::pickle::reduce_list;
use crate::samples::pieces::{pieces, shaped_pieces};

#[pymethods]
impl PySampleList {
    // Makes a list, which is empty without `samples`; a list made of another one shares the memory of its samples.
    #[new]
    #[pyo3(signature = (samples = None))]
    fn new(samples: Option<&Bound<'_, PyAny>>) -> PyResult<PySampleList> {
        let Some(samples) = samples else {
            return Ok(PySampleList::from_imported(Imported::default()));
        };
        match samples.cast_exact::<PySampleList>() {
            Ok(list) => list.get().__copy__(samples.py()),
            Err(_) => import_list(samples).map(PySampleList::from_samples),
        }
    }

    /// The samples at these positions, in this order, as a new list that shares their memory, and keeps
    /// alive what this one does.
    ///
    /// After `to_device`, the host neither reads nor waits for indices on that device (int32 or int64, of any library): the work
    /// reads them in the order of their stream, and in a CUDA graph at each launch. The result can be stacked, or padded to a given
    /// ``size``; any other use, which would depend on the samples, raises ValueError. An index out of range gives padding (0 in a
    /// stack) and raises IndexError late: at ``Batch.check()``, and at the next use of this list.
    ///
    /// Args:
    ///     indices: an integer array-like of one dim, or a list of ints; negative ones count from the end.
    ///
    /// Raises:
    ///     IndexError: a position is not in the list, or a device found one of an earlier call out of range.
    ///     TypeError: the indices are not ints (a mask of bools is refused too), or on a device not int32 or int64.
    ///     DeviceError: after `to_device`, the indices are on another device than the samples.
    fn take(&self, indices: &Bound<'_, PyAny>) -> PyResult<PySampleList> {
        self.taken(indices).map(PySampleList::from_samples)
    }

    /// Makes the samples selectable by indices in the memory of their device: see `take`. Uploads once 8 bytes for each sample,
    /// and 4 more where samples differ in shape, or nothing for the rows of one table, and waits for the upload. After an
    /// `append` or `extend` the next `take` of such indices uploads anew.
    ///
    /// Args:
    ///     device: ``"cuda"`` or ``"cuda:1"``, where all samples are: they are not moved.
    ///
    /// Returns:
    ///     SampleList: this list.
    ///
    /// Raises:
    ///     DeviceError: for samples that are elsewhere. ValueError: for an empty list. TypeError: for a list of trees.
    ///     CudaUnavailable, CudaError: as for ``windrow.stack``.
    fn to_device<'py>(
        slf: Bound<'py, Self>,
        device: &Bound<'_, PyAny>,
    ) -> PyResult<Bound<'py, Self>> {
        if let ListSamples::Trees(trees) = slf.get().snapshot(slf.py()) {
            let class = trees.class(slf.py())?;
            return Err(PyTypeError::new_err(format!(
                "to_device takes samples that are array-likes, and those of this list are trees ({class}); make a SampleList of each leaf"
            )));
        }
        slf.get().unmoved(slf.py(), "")?;
        slf.get().resident_on(slf.py(), device_of(device)?)?;
        Ok(slf)
    }

    /// A batch of the samples at these positions: as ``windrow.stack`` of ``take(indices)``, without the list
    /// between.
    ///
    /// Args:
    ///     indices: as for `take`.
    ///     common: as for ``windrow.stack``, ``out`` among them.
    ///
    /// Returns:
    ///     Batch: ``data[len(indices), *shape]``.
    ///
    /// Raises:
    ///     IndexError: for a position that is not in the list; and what ``windrow.stack`` raises, whose ``index``
    ///         is a position in ``indices``. TypeError: for a list of trees, which ``windrow.collate`` takes.
    ///
    /// Examples:
    ///     >>> import windrow as wr
    ///     >>> rows = wr.SampleList([b"ab", b"cd", b"ef"])
    ///     >>> bytes(rows.stack([2, 0]))
    ///     b'efab'
    #[pyo3(signature = (indices, *, engine = None, **common), text_signature = "($self, indices, *, dtype=None, device=None, out=None, stream=None, transform=None, saturate=False, copy=True, engine=None)")]
    fn stack(
        &self,
        indices: &Bound<'_, PyAny>,
        engine: Option<&Bound<'_, PyAny>>,
        common: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyBatch> {
        stack_taken(self, indices, engine, common)
    }

    /// The consecutive pieces of one tensor, with no Python object for each of them: sample ``i`` is
    /// ``values[offsets[i]:offsets[i + 1]]``, as Arrow's lists and ragged batches are in memory.
    ///
    /// Args:
    ///     values: an array-like of at least one dim.
    ///     offsets: integers ``[N + 1]`` that never decrease.
    ///     shapes: integers ``[N, k]``; ``values`` is then flat, row-major, and sample ``i`` has the
    ///         shape ``shapes[i]``.
    ///
    /// Raises:
    ///     ShapeError: offsets decrease or reach beyond ``values``; or a shape has another number of elements than its piece, or there
    ///         is not one shape for each piece.
    ///     LayoutError: ``shapes`` with ``values`` that are not flat and contiguous.
    ///     TypeError: ``offsets`` or ``shapes`` are not integers of one and two dims.
    ///
    /// Example:
    ///     >>> import windrow as wr
    ///     >>> words = wr.SampleList.split(b"abcdef", [0, 1, 4, 6])
    ///     >>> [bytes(row) for row in wr.pad(words, value=46).numpy()]
    ///     [b'a..', b'bcd', b'ef.']
    #[staticmethod]
    #[pyo3(signature = (values, offsets, shapes = None))]
    fn split(
        values: &Bound<'_, PyAny>,
        offsets: &Bound<'_, PyAny>,
        shapes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PySampleList> {
        let table = table_of(values, "values", Reading::OWNED)?;
        let (offsets, _) = integers(offsets, "offsets", 1)?;
        let list = match shapes {
            None => pieces(&table, &offsets),
            Some(shapes) => {
                let (shapes, extents) = integers(shapes, "shapes", 2)?;
                shaped_pieces(&table, &offsets, &shapes, &extents)
            }
        };
        let list = list.or_py_err(values.py())?;
        Imported::from_parts(values.py(), table, list).map(PySampleList::from_imported)
    }

    /// Imports one more sample; in a list of trees it must have the same structure. An error names the position it would have had.
    fn append(&self, sample: &Bound<'_, PyAny>) -> PyResult<()> {
        self.add(sample.py(), vec![sample.clone()])
    }

    /// Imports more samples; on any error, MemoryError included, none of them is added.
    ///
    /// Args:
    ///     samples: an iterable of array-likes, or of trees of the same structure; or another list,
    ///         which is joined as it is; or an Arrow array, whose rows are samples: its errors name a row of it.
    fn extend(&self, samples: &Bound<'_, PyAny>) -> PyResult<()> {
        if let Ok(other) = samples.cast_exact::<PySampleList>() {
            return self.join(samples.py(), other.get().snapshot(samples.py()));
        }
        if is_arrow(samples)? {
            return self.join(samples.py(), rows_of_arrow(samples)?);
        }
        check_list(samples)?;
        self.add(samples.py(), tuple_items(&tuple_from(samples)?)?)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Visited {
        self.visit(&visit)
    }

    fn __clear__(&self) {
        self.clear();
    }

    fn __len__(&self) -> usize {
        self.len()
    }

    /// A sample as a tensor, or as a tree of tensors; for a slice, a list that shares the samples.
    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (py, contents) = (index.py(), self.snapshot(index.py()));
        if let ListSamples::Leaves(imported) = &contents {
            imported.list.check_known().or_py_err(py)?;
        }
        if let Ok(slice) = index.cast::<PySlice>() {
            let taken = contents.taken(py, positions_of(slice, contents.len())?)?;
            return Ok(Bound::new(py, PySampleList::from_samples(taken))?.into_any());
        }
        let position = PySampleList::position(index, contents.len())?;
        match contents {
            ListSamples::Leaves(imported) => imported.object(py, position, ""),
            ListSamples::Trees(trees) => trees.sample(py, position),
        }
    }

    /// Replaces a sample: the list refers to the new one from now on, no memory is written, and the old one is released
    /// unless another list refers to it. Lists that were taken before keep it. TypeError for a
    /// slice.
    fn __setitem__(&self, index: &Bound<'_, PyAny>, sample: &Bound<'_, PyAny>) -> PyResult<()> {
        if index.is_instance_of::<PySlice>() {
            let text =
                "a slice of a SampleList cannot be assigned; assign one sample after the other";
            return Err(PyTypeError::new_err(text));
        }
        self.replace(PySampleList::position(index, self.len())?, sample)
    }

    /// TypeError: positions stay what they are, so that samples are replaced and not removed.
    fn __delitem__(&self, _index: &Bound<'_, PyAny>) -> PyResult<()> {
        let text = "samples of a SampleList cannot be deleted; assign another one, or take(indices) of those to keep";
        Err(PyTypeError::new_err(text))
    }

    /// Pickles have the samples by value, copied from a device and back to it.
    fn __reduce_ex__<'py>(
        &self,
        py: Python<'py>,
        _protocol: i32,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        reduce_list(py, self)
    }

    /// Shares the memory of the samples; the copy has references of its own to what keeps it.
    fn __copy__(&self, py: Python<'_>) -> PyResult<PySampleList> {
        self.snapshot(py).unshared(py).map(PySampleList::from_samples)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.snapshot(py) {
            ListSamples::Leaves(imported) => {
                let (len, num_metas) = (imported.list.len(), imported.list.metas().len());
                let plural = |n: usize| if n == 1 { "" } else { "s" };
                format!(
                    "SampleList({len} sample{}, {num_metas} layout{})",
                    plural(len),
                    plural(num_metas)
                )
            }
            ListSamples::Trees(trees) => {
                format!("SampleList({} trees, {} leaves)", trees.len(), trees.num_leaves())
            }
        }
    }
}

/// The positions, all below `len`, that a slice of a list of `len` samples takes, in its order. MemoryError, or the slice's own
/// error, such as TypeError for bounds that are no ints.
fn positions_of(slice: &Bound<'_, PySlice>, len: usize) -> PyResult<Vec<i64>> {
    let slice = slice.indices(len as isize)?;
    let mut positions = try_vec(slice.slicelength)?;
    positions
        .extend((0..slice.slicelength as i64).map(|k| slice.start as i64 + k * slice.step as i64));
    Ok(positions)
}
