//! One leaf of a call, ready to be planned.

use std::sync::Arc;

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use windrow::bindings::PipelinedCopy;
use windrow::error::{Hint, Mismatch};
use windrow::plan::{BatchShape, Leaf, Target};
use windrow::tensor::Owner;
use windrow::{Collate, Engine, Error, Stream, Tensor};

use crate::collate::options::{Options, LIST};
use crate::collate::options_cache::CopyMode;
use crate::ground::batch::tensor_in;
use crate::ground::errors::{at, class_of, located, quoted, to_caller, to_py_err, Spec};
use crate::ground::reserve::try_vec;
use crate::import::importer::Reading;
use crate::import::routes::is_torch;
use crate::import::storages::lent;
use crate::import::tensor::tensor_of;
use crate::ownership::holder::{held_by, producers_of, HeldObjects, Holder};
use crate::ownership::producers::Producers;
use crate::samples::imported::Imported;

/// One leaf, ready to be planned.
pub(crate) struct Job {
    /// The copy that began during the import, if one did. Declared before `samples`, which it reads, so that it is dropped first.
    pub ahead: Option<PipelinedCopy>,
    pub samples: Arc<Imported>,
    /// Leaves of a call have it in common.
    pub collate: Arc<Collate>,
    pub path: String,
    /// The engine that runs it; `None` is that of the call.
    pub engine: Option<Engine>,
    /// Whether it is a leaf of a tree: the hints of errors then name a spec in place of a call.
    in_tree: bool,
    /// Whether it has one sample of a leaf whose samples stay separate.
    pub is_single: bool,
    /// Whether the leaf is within a class whose leaves take no other form.
    pub is_form_fixed: bool,
    out: Option<Box<JobOutput>>,
    pub stream: Option<Stream>,
    pub copy: CopyMode,
}

/// Memory of the caller's that a job writes to.
struct JobOutput {
    tensor: Tensor,
    /// The memory of the scales, where the batch is quantised.
    scales: Option<Tensor>,
    /// The torch tensors among both, whose versions are raised when they were written.
    torch: Vec<Py<PyAny>>,
}

impl Job {
    /// The job of a call without trees, which writes to the `out` of its options; `import` as for [`Job::new`].
    pub fn for_call(
        options: &Options<'_>,
        import: impl FnOnce(Reading<'_>) -> PyResult<(Arc<Imported>, Option<PipelinedCopy>)>,
    ) -> PyResult<Job> {
        let job = Job::new(options, options.out.as_ref(), String::new(), import)?;
        Ok(Job { in_tree: false, ..job })
    }

    /// The job of a leaf that was imported before: a copy in memory of the engine's, by the engine of the call. It names no
    /// stream, and hints of its errors name a spec.
    pub fn for_leaf(samples: Arc<Imported>, collate: impl Into<Arc<Collate>>, path: String) -> Job {
        Job {
            ahead: None,
            samples,
            collate: collate.into(),
            path,
            engine: None,
            in_tree: true,
            is_single: false,
            is_form_fixed: false,
            out: None,
            stream: None,
            copy: CopyMode::Always,
        }
    }

    /// The job of a leaf, whose samples `import` reads and may copy ahead. `out` is read after them; that of the options is not
    /// used. Hints of its errors name a spec.
    pub fn new(
        options: &Options<'_>,
        out: Option<&Bound<'_, PyAny>>,
        path: String,
        import: impl FnOnce(Reading<'_>) -> PyResult<(Arc<Imported>, Option<PipelinedCopy>)>,
    ) -> PyResult<Job> {
        let (stream, copy) = (options.stream, options.copy);
        let may_start = options.may_start && out.is_none() && copy == CopyMode::Always;
        let stacker = may_start.then_some((&options.engine, &*options.collate));
        let owned = copy != CopyMode::Always && out.is_none();
        let must_be_view = owned && copy == CopyMode::Never;
        let (samples, ahead) = import(Reading {
            path: &path,
            owned,
            must_be_view,
            stream,
            form: Some(options.collate.form().name()),
            stacker,
            rows: true,
            side: None,
        })?;
        let has_scales = options.collate.is_quantised();
        let out = out.map(|out| JobOutput::new(out, &path, stream, has_scales));
        let out = out.transpose()?.map(Box::new);
        let engine = Some(options.engine.clone());
        let job = Job::for_leaf(samples, Arc::clone(&options.collate), path);
        Ok(Job { ahead, engine, out, stream, copy, ..job })
    }

    /// A job for each sample of a leaf whose samples stay separate, by the engine and on the stream of this one. Each copies its
    /// sample, also where this one may give a view, and has neither `out` nor a copy ahead.
    ///
    /// # Errors
    /// What an assembly of each sample by itself raises; DTypeError for samples of several dtypes, DeviceError of several
    /// devices.
    pub fn singles(self, py: Python<'_>) -> PyResult<Vec<Job>> {
        let mut first = None;
        let mut check = |index: usize, samples: &Imported| -> windrow::Result<()> {
            let shape = BatchShape::new(&samples.list, &self.collate)?;
            let (dtype, device) = *first.get_or_insert((shape.dtype, shape.source));
            let unlike = |expected: String, got: String| Mismatch::new(Some(index), expected, got);
            if shape.dtype != dtype {
                let found = unlike(dtype.to_string(), shape.dtype.to_string());
                return Err(Error::DType(Box::new(found.with_hint(Hint::Cast))));
            }
            if shape.source != device {
                let found = unlike(device.to_string(), shape.source.to_string());
                return Err(Error::Device(Box::new(found)));
            }
            Ok(())
        };
        let mut singles = try_vec(self.samples.list.len())?;
        for index in 0..self.samples.list.len() {
            let samples = self.samples.lent(py, &[index as i64])?;
            let refused = |error: Error| {
                let error = error.at_index(index).at_path(&self.path);
                to_caller(
                    py,
                    &error,
                    Some(Spec { class: LIST.to_owned(), is_fixed: self.is_form_fixed }),
                )
            };
            check(index, &samples).map_err(refused)?;
            let (collate, path) = (Arc::clone(&self.collate), self.path.clone());
            singles.push(Job {
                engine: self.engine.clone(),
                stream: self.stream,
                is_single: true,
                ..Job::for_leaf(Arc::new(samples), collate, path)
            });
        }
        Ok(singles)
    }

    /// Whether the job writes to the one allocation of the call for samples that stay separate, and not to memory of
    /// the caller's.
    pub fn is_part(&self) -> bool {
        self.is_single && self.out.is_none()
    }

    /// The memory that the job writes to; `None` if that is not the caller's.
    pub fn out(&self) -> Option<&Tensor> {
        self.out.as_ref().map(|out| &out.tensor)
    }

    /// The memory that the job's scales are written to; `None` if that is not the caller's.
    pub fn scales_out(&self) -> Option<&Tensor> {
        self.out.as_ref().and_then(|out| out.scales.as_ref())
    }

    /// The `out` of the job with its scales, as the engine's target; `None` without `out`.
    pub fn target(&self) -> Option<Target<'_>> {
        let target = target_of(self.out()?);
        Some(match self.scales_out() {
            Some(scales) => target.with_scales(target_of(scales)),
            None => target,
        })
    }

    /// The torch tensors that the job writes to, whose versions are raised afterwards.
    pub fn torch_outs(&self) -> &[Py<PyAny>] {
        self.out.as_ref().map_or(&[], |out| &out.torch)
    }

    /// Has it write to `out`, new memory without history in torch: no version is raised for it. Drops the copy ahead, and an
    /// `out` and scales that it had. Errors as of [`output_of`], after which the job is as before.
    pub fn write_to(&mut self, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let tensor = output_of(out, &self.path, self.stream)?;
        self.out = Some(Box::new(JobOutput { tensor, scales: None, torch: Vec::new() }));
        self.ahead = None;
        Ok(())
    }
}

impl JobOutput {
    /// Reads `out`: with `has_scales` a pair of data and scales, else TypeError.
    fn new(
        out: &Bound<'_, PyAny>,
        path: &str,
        stream: Option<Stream>,
        has_scales: bool,
    ) -> PyResult<JobOutput> {
        if has_scales {
            let Some([data, scales]) = pair_in(out)? else {
                let text = format!(
                    "out{} of a wr.Quantize must be a pair (data, scales), got {}",
                    at(path),
                    quoted(out)?
                );
                return Err(located(out.py(), PyTypeError::new_err(text), None, path));
            };
            let data = JobOutput::new(&data, path, stream, false)?;
            let found = JobOutput::new(&scales, path, stream, false)?;
            let torch = data.torch.into_iter().chain(found.torch).collect();
            return Ok(JobOutput { tensor: data.tensor, scales: Some(found.tensor), torch });
        }
        let tensor = output_of(out, path, stream)?;
        let torch = torch_of(out.py(), &tensor)?.into_iter().collect();
        Ok(JobOutput { tensor, scales: None, torch })
    }
}

/// The two objects of a list or tuple of two; `None` for anything else.
fn pair_in<'py>(out: &Bound<'py, PyAny>) -> PyResult<Option<[Bound<'py, PyAny>; 2]>> {
    if !out.is_instance_of::<PyTuple>() && !out.is_instance_of::<PyList>() || out.len()? != 2 {
        return Ok(None);
    }
    Ok(Some([out.get_item(0)?, out.get_item(1)?]))
}

/// The exception of an error of these jobs. Its hint names a spec if the error has the path of a leaf of a tree, else
/// the call.
pub(crate) fn job_error<'j>(
    py: Python<'_>,
    error: &Error,
    jobs: impl IntoIterator<Item = &'j Job>,
) -> PyErr {
    let is_its = |job: &&Job| job.in_tree && error.mismatch().is_some_and(|m| m.path == job.path);
    let spec = |job: &'j Job| Spec {
        class: if job.is_single { LIST.to_owned() } else { class_of(job.collate.form()) },
        is_fixed: job.is_form_fixed,
    };
    to_caller(py, error, jobs.into_iter().find(is_its).map(spec))
}

/// The memory of `out=`, made ready by its library for work on `stream`. LayoutError for read-only or moved memory, RuntimeError
/// for an inference tensor outside of inference mode. A tensor of ours that shares memory with a lazy clone of torch's owns its
/// memory afterwards.
pub(super) fn output_of(
    out: &Bound<'_, PyAny>,
    path: &str,
    stream: Option<Stream>,
) -> PyResult<Tensor> {
    let reading = Reading { path, stream, rows: false, ..Reading::OWNED };
    let tensor = tensor_of(out, "out", reading)?;
    if tensor.is_read_only() {
        let mismatch = Mismatch::new(None, "writable memory", "read-only memory");
        return Err(to_py_err(out.py(), &Error::Layout(Box::new(mismatch)).at_path(path)));
    }
    if tensor_in(out).is_some() {
        // The tensor's memory may have come to be shared with a lazy clone since it was made.
        lent(out.py(), &tensor)?;
    }
    refuse_inference(out.py(), &tensor, path)?;
    Ok(tensor)
}

/// RuntimeError for a torch tensor that was made in inference mode while that mode is off, as of torch's own `out=`.
fn refuse_inference(py: Python<'_>, tensor: &Tensor, path: &str) -> PyResult<()> {
    match torch_of(py, tensor)? {
        Some(out) if is_frozen(out.bind(py))? => {
            let text = format!("out{}: {FROZEN}", at(path));
            Err(located(py, PyRuntimeError::new_err(text), None, path))
        }
        _ => Ok(()),
    }
}

pub(crate) const FROZEN: &str =
    "expected a tensor that may be written to here, got an inference tensor outside of inference mode; clone() it";

/// Whether a torch tensor was made in inference mode, and that mode is off now; AttributeError for other objects.
pub(crate) fn is_frozen(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = tensor.py();
    Ok(tensor.call_method0(intern!(py, "is_inference"))?.is_truthy()?
        && !py.import("torch")?.call_method0("is_inference_mode_enabled")?.is_truthy()?)
}

/// The torch tensor whose memory an output is, by way of `asarray` and earlier results too; `None` for other memory.
pub(super) fn torch_of(py: Python<'_>, output: &Tensor) -> PyResult<Option<Py<PyAny>>> {
    torch_of_owner(py, output.owner())
}

/// The torch tensor of [`torch_of`], for memory that `owner` keeps alive.
pub(crate) fn torch_of_owner(py: Python<'_>, owner: &Owner) -> PyResult<Option<Py<PyAny>>> {
    torch_in(py, held_by(owner))
}

/// The torch tensor of [`torch_of`], for memory that `object`, one of the owners of a list, keeps alive or is; `object`
/// itself if it is a torch tensor.
pub(crate) fn torch_of_object(py: Python<'_>, object: &Py<PyAny>) -> PyResult<Option<Py<PyAny>>> {
    let object = object.bind(py);
    match object.cast_exact::<Holder>() {
        Ok(holder) => torch_in(py, holder.get().held()),
        Err(_) => match tensor_in(object) {
            Some(tensor) => torch_of(py, tensor),
            None => Ok(is_torch(object)?.then(|| object.clone().unbind())),
        },
    }
}

/// The first torch tensor among objects that are held, else among those of the last [`Holder`] of them, or of the one tensor that
/// is held; several tensors are not searched.
fn torch_in(py: Python<'_>, held: HeldObjects<'_>) -> PyResult<Option<Py<PyAny>>> {
    let mut next = Some(held);
    while let Some(held) = next {
        next = match held.tensors {
            [inner] => Some(held_by(inner.owner())),
            _ => None,
        };
        for object in held.objects.into_iter().flatten() {
            match object.bind(py).cast_exact::<Holder>() {
                Ok(holder) => next = Some(holder.get().held()),
                Err(_) if is_torch(object.bind(py))? => return Ok(Some(object.clone_ref(py))),
                Err(_) => {}
            }
        }
    }
    Ok(None)
}

/// The job as a leaf for the engine's planner, with this output.
pub(crate) fn leaf_of<'s>(job: &'s Job, out: Option<&'s Target<'s>>) -> Leaf<'s, 'static> {
    Leaf { samples: &job.samples.list, collate: &job.collate, path: &job.path, out }
}

/// Memory of `out=`, to be written to, with its owner if it is windrow's own: work on a device keeps that. `out` comes from
/// [`output_of`], which has refused memory that must not be written to.
pub(super) fn target_of(out: &Tensor) -> Target<'_> {
    debug_assert!(!out.is_read_only());
    // SAFETY: the tensor is writable (`output_of`); that nothing else touches it during the call is the
    // contract of `out=`.
    #[allow(unsafe_code)]
    let target = unsafe {
        Target::from_raw_parts(out.data_ptr(), out.dtype(), out.device(), out.layout().clone())
    };
    match block_of(&producers_of(out)) {
        Some(owner) => target.owned_by(owner),
        None => target,
    }
}

/// The owner of memory that is windrow's own, which is the one tensor of its producers; `None` for memory of others.
pub(super) fn block_of(producers: &Producers) -> Option<&Owner> {
    match &producers.tensors[..] {
        [only] => Some(only.owner()),
        _ => None,
    }
}
