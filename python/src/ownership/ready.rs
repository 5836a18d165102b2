//! Work of others ordered behind what still writes a tensor, and what torch needs to know of its memory.

use pyo3::intern;
use pyo3::prelude::*;
use windrow::{Device, Error, Stream, Tensor};

use crate::engine::default::default_engine;
use crate::ground::errors::OrPyErr;
use crate::ground::stream::current_of;
use crate::ownership::holder::{producers_of, Holder};
use crate::ownership::producers::Producers;

/// Orders what is enqueued on a stream from now on behind all that still writes a tensor, whose
/// memory stays until that work is done. Does nothing for host memory, pageable or page-locked; an
/// error for a stream in a capture that has no part in what wrote the tensor.
pub(crate) fn ready_on(tensor: &Tensor, stream: Stream) -> windrow::Result<()> {
    let Device::Cuda(ordinal) = tensor.device() else { return Ok(()) };
    let producers = producers_of(tensor);
    refuse_within(&producers, ordinal, stream)?;
    used_on(tensor, ordinal, stream)?;
    for tensor in &producers.tensors {
        // A handle is good for this call alone, by whatever protocol it came.
        tensor.ready_on_borrowed(stream)?;
    }
    producers.ends.iter().try_for_each(|end| end.order(stream))?;
    default_engine().order(ordinal, &producers.streams, stream)
}

/// Keeps memory of the engine's, which a tensor is in or was written from, for work on streams that
/// a library keeps to itself, until its device has been waited for. Does nothing for imported
/// memory alone. Unlike [`ready_on`] it orders nothing.
pub(crate) fn held_until_idle(tensor: &Tensor) -> windrow::Result<()> {
    producers_of(tensor).tensors.iter().try_for_each(Tensor::ready_on_unnamed)
}

/// The torch tensor that an output is, or a view of the one that it is a part of, if torch lent the memory, else `None`; `None`
/// for a part without elements too. torch's current stream waits for what is still written to device memory.
pub(crate) fn lent_tensor<'py>(
    py: Python<'py>,
    output: &Tensor,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some((object, _)) = lent(output) else { return Ok(None) };
    let object = object.bind(py);
    let ordinal_and_api = match (output.device(), producers_of(output).torch) {
        (Device::Cuda(ordinal), Some(api)) => Some((ordinal, api)),
        (Device::Pinned, _) => None,
        _ => return Ok(None),
    };
    let shape: Vec<i64> = object.getattr(intern!(py, "shape"))?.extract()?;
    let data: usize = object.call_method0(intern!(py, "data_ptr"))?.extract()?;
    let is_whole = shape == output.shape()
        && output.layout().is_compact()
        && (data == output.data_ptr().addr() || output.nbytes() == 0);
    let found = match is_whole {
        true => object.clone(),
        false if output.nbytes() == 0 => return Ok(None),
        false => part_of(object, output.data_ptr().addr() - data, output)?,
    };
    if let Some((ordinal, api)) = ordinal_and_api {
        let current = current_of(api, ordinal).ok_or_else(|| PyErr::fetch(py))?;
        ready_on(output, current).or_py_err(py)?;
    }
    Ok(Some(found))
}

/// A view, which torch recognises as its own memory, that begins `begin` bytes behind the first element of a row-major tensor:
/// of the same dtype, or of any dtype in an arena, which is one of bytes. `output` has elements, and begins at a whole one: not
/// checked.
fn part_of<'py>(
    object: &Bound<'py, PyAny>,
    begin: usize,
    output: &Tensor,
) -> PyResult<Bound<'py, PyAny>> {
    let (py, size) = (object.py(), output.dtype().size());
    let dtype = py.import(intern!(py, "torch"))?.getattr(output.dtype().name())?;
    let (shape, strides) = (output.shape(), output.strides());
    let as_strided = intern!(py, "as_strided");
    if dtype.is(object.getattr(intern!(py, "dtype"))?) {
        return object.call_method1(as_strided, (shape, strides, begin / size));
    }
    let last: i64 = shape.iter().zip(strides).map(|(extent, stride)| (extent - 1) * stride).sum();
    let bytes =
        object.call_method1(intern!(py, "narrow"), (0, begin, (last as usize + 1) * size))?;
    bytes.call_method1(intern!(py, "view"), (dtype,))?.call_method1(as_strided, (shape, strides))
}

/// The torch tensor that lends an output its memory, and the stream that it belongs to; `None` for torch's samples.
fn lent(output: &Tensor) -> Option<(&Py<PyAny>, Option<Stream>)> {
    let holder = output.owner().downcast_ref::<Holder>()?;
    match (&holder.objects[..], &holder.tensors[..]) {
        ([object], _) if holder.is_output => Some((object, holder.producers.current)),
        // The same memory after work on another stream.
        ([], [inner]) => lent(inner),
        _ => None,
    }
}

/// [`Error::Argument`] for a stream in the capture beside which the memory was written, from samples on the host: that copy is no
/// part of the graph.
pub(crate) fn refuse_within(
    producers: &Producers,
    ordinal: u32,
    stream: Stream,
) -> windrow::Result<()> {
    let Some(capture) = producers.made_beside else { return Ok(()) };
    if default_engine().capture_of(ordinal, stream)? != Some(capture) {
        return Ok(());
    }
    Err(Error::argument(
        "the batch was made of samples on the host while the stream was being captured in a graph, which has no part in \
         their copy: the batch has to be made outside of the capture"
            .into(),
    ))
}

/// Returns torch's stream object for `stream` on device `ordinal`: the default stream, or an `ExternalStream`.
pub(crate) fn torch_stream(
    py: Python<'_>,
    stream: Stream,
    ordinal: u32,
) -> PyResult<Bound<'_, PyAny>> {
    let cuda = py.import(intern!(py, "torch"))?.getattr(intern!(py, "cuda"))?;
    match stream {
        Stream::LEGACY => cuda.call_method1(intern!(py, "default_stream"), (ordinal,)),
        other => cuda.call_method1(intern!(py, "ExternalStream"), (other.handle(), ordinal)),
    }
}

/// Tells torch's allocator of a stream that its memory is used on, so that it does not give it out again
/// before that is done. Does nothing for memory that torch did not lend, and for the stream that it belongs to. An error of
/// torch's is an [`Error::Argument`].
fn used_on(output: &Tensor, ordinal: u32, stream: Stream) -> windrow::Result<()> {
    let object = match lent(output) {
        Some((object, owner_stream)) if owner_stream != Some(stream) => object,
        _ => return Ok(()),
    };
    Python::attach(|py| -> PyResult<()> {
        let stream = torch_stream(py, stream, ordinal)?;
        object.call_method1(py, intern!(py, "record_stream"), (stream,))?;
        Ok(())
    })
    .map_err(|error| Error::argument(format!("torch: {error}")))
}
