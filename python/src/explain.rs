//! `explain`: the plan of a call.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use windrow::{Engine, Plan};

use crate::collate::forms::{form_of, unknown_form};
use crate::collate::job::{job_error, leaf_of, Job};
use crate::collate::options::Options;
use crate::collate::run::{device_of_work, made, views_in};
use crate::collate::torch_memory::OutputAllocator;
use crate::collate::tree::jobs_of;
use crate::engine::explain::PyExplain;
use crate::moves::copy_many::explain_pairs;
use crate::samples::list_import::samples_of;

/// Plans a call without running it: path, bytes read and written, tiles, launches, padding, bytes of an arena.
///
/// Args:
///     samples: as for the call.
///     form (str): ``"stack"``, ``"concat"``, ``"pad"``, ``"ragged"``, ``"collate"`` or ``"copy_many"``, of which ``samples`` are the
///         sources.
///     kwargs: the arguments of that call, for ``"collate"`` also ``spec``, ``sep`` and ``arena``, for ``"copy_many"`` also ``dsts``.
///
/// Returns:
///     Explain: the plan.
///
/// The call's errors for these arguments are raised.
///
/// Examples:
///     >>> import windrow as wr
///     >>> wr.explain([b"abc", b"d"], "pad").as_dict()["padding_bytes"]
///     2
///     >>> tree = wr.explain([{"x": [1.5], "n": 1}], "collate", dtype="float32")
///     >>> tree.names, tree.paths
///     (['x.0', 'n'], ['cast', 'cast'])
///     >>> wr.explain([b"ab", b"c"], "copy_many", dsts=[bytearray(2), bytearray(1)]).as_dict()["bytes_written"]
///     3
#[pyfunction]
#[pyo3(signature = (samples, form = "stack", **kwargs))]
pub(crate) fn explain(
    samples: &Bound<'_, PyAny>,
    form: &str,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> PyResult<PyExplain> {
    let py = samples.py();
    if form == "copy_many" {
        let explain = explain_pairs(samples, kwargs)?;
        return Ok(PyExplain { explain, device_memory: None });
    }
    let (jobs, in_arena, of_call) = if form == "collate" {
        jobs_of(samples, kwargs)?
    } else {
        let options = Options { may_start: false, ..Options::parse(form_of(form)?, kwargs)? };
        if options.is_list {
            return Err(unknown_form(form));
        }
        let job = Job::for_call(&options, |reading| samples_of(samples, reading))?;
        (vec![job], false, options.engine.clone())
    };
    let explain = py.detach(|| -> windrow::Result<_> {
        let targets: Vec<_> = jobs.iter().map(Job::target).collect();
        let leaves = jobs.iter().zip(&targets).map(|(job, out)| leaf_of(job, out.as_ref()));
        let leaves: Vec<_> = leaves.collect();
        let is_part = |leaf: usize| in_arena || jobs[leaf].is_part();
        let plan = match (0..jobs.len()).any(is_part) {
            true => Plan::partly_in_arena(&leaves, is_part)?,
            false => Plan::for_leaves(&leaves)?,
        };
        let views = views_in(&plan, &jobs, &leaves, in_arena)?;
        device_of_work(&jobs, made(plan.batch_shapes(), &views))?;
        let views: Vec<bool> = views.iter().map(Option::is_some).collect();
        let engine = |leaf: usize| jobs[leaf].engine.as_ref().unwrap_or(&of_call);
        let mut explain =
            Engine::explain(&plan, &views, engine).named(jobs.iter().map(|job| job.path.clone()));
        // Samples that stay separate are a leaf each.
        let separate = jobs.iter().take_while(|job| job.is_part() && job.path == jobs[0].path);
        explain.samples = explain.samples.max(separate.count());
        Ok((explain, OutputAllocator::name_for(&plan, &jobs)?))
    });
    let (explain, device_memory) = explain.map_err(|error| job_error(py, &error, &jobs))?;
    Ok(PyExplain { explain, device_memory })
}
