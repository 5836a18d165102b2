"""Types of the compiled part. `scripts/docs/stubs.py` writes the docstrings: theirs are the sources in python/src."""

from typing import (
    Any,
    ClassVar,
    Dict,
    Hashable,
    Iterable,
    Iterator,
    List,
    Literal,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    SupportsComplex,
    SupportsFloat,
    SupportsIndex,
    Tuple,
    Type,
    TypedDict,
    TypeVar,
    Union,
    final,
    overload,
)

import numpy as _np
import torch as _torch
from jax import Array as _JaxArray
from typing_extensions import Buffer as _Buffer

from windrow._stats import Stats
from windrow.spec import Concat as _Concat
from windrow.spec import Pad as _Pad
from windrow.spec import Ragged as _Ragged
from windrow.spec import Stack as _Stack
from windrow.spec import _Spec

__version__: str

_Number = Union[bool, int, float, complex]
_PerDim = Union[SupportsIndex, Sequence[SupportsIndex]]
# A number of any library.
_Value = Union[_Number, SupportsFloat, SupportsComplex]
_Shape = Tuple[int, ...]

class _SupportsDLPack(Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

class _SupportsArrayInterface(Protocol):
    @property
    def __array_interface__(self) -> Dict[str, Any]: ...

class _SupportsCudaArrayInterface(Protocol):
    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]: ...

class _SupportsArrowArray(Protocol):
    def __arrow_c_array__(self, requested_schema: Any = None) -> Any: ...

class _SupportsArrowStream(Protocol):
    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any: ...

_Array = Union["Tensor", "Batch", _SupportsDLPack, _SupportsArrayInterface, _SupportsCudaArrayInterface]
# A sample: arrays, buffers, Arrow's arrays, Python numbers, and lists of these numbers.
_ArrayLike = Union[_Array, _Buffer, _SupportsArrowArray, _Number, Sequence[_Number]]
_Samples = Union["SampleList", Iterable[_ArrayLike], _Array, _Buffer, _SupportsArrowArray, _SupportsArrowStream]
_Indices = Union[_Array, _Buffer, Sequence[SupportsIndex]]
# Samples of `windrow.sequence`: token sequences or mappings, and mappings alone.
_Rows = Union[Sequence[Any], "SampleList", _SupportsArrowStream]
_Features = Union[Sequence[Mapping[str, Any]], "SampleList", _SupportsArrowStream]

_Name = Literal[
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e5m2",
]

class _SupportsDLPackDType(Protocol):
    def __dlpack_data_type__(self) -> Tuple[int, int, int]: ...

class _SupportsDType(Protocol):
    @property
    def dtype(self) -> Any: ...

# Dtype objects of the libraries; Python's and NumPy's types of numbers.
_DTypeObject = Union[_np.dtype[Any], _torch.dtype, Type[Union[bool, int, float, complex, _np.generic]], _SupportsDLPackDType]
# NumPy's aliases and codes are names too, so that a checker refuses no text.
_DType = Union[_Name, str, _DTypeObject, _SupportsDType]
_Side = Literal["right", "left", "center"]
_Device = Union[Literal["cpu", "pinned", "cuda"], str, _torch.device]

class _SupportsCudaStream(Protocol):
    def __cuda_stream__(self) -> Tuple[int, int]: ...

class _TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...

class _CuPyStream(Protocol):
    @property
    def ptr(self) -> int: ...

_Stream = Union[int, _SupportsCudaStream, _TorchStream, _CuPyStream]
_AnyTransform = Union["Transform", "Quantize", "Dequantize"]
# A batch, or of a `Quantize` the pair of data and scales.
_Out = Union[_Array, _Buffer, Tuple[_ArrayLike, _ArrayLike]]
_AnySpec = Union[_Stack, _Concat, _Pad, _Ragged]
_BatchSpecs = Union[_AnySpec, Mapping[str, _AnySpec]]
_Specs = Union[_Spec, Mapping[str, _Spec]]
# A side of moves: samples, a tree, or a list of trees.
_Sides = Union[_Samples, Mapping[Any, Any], Sequence[Any]]
_Form = Literal["stack", "concat", "pad", "ragged", "collate", "copy_many"]
# Samples of a class whose base has no types match the first overload, whatever that takes.
@final
class _Untyped: ...

_UntypedTree = Union[_Untyped, Dict[Any, _Untyped]]

_Key = TypeVar("_Key", bound=Hashable)
_Leaf = TypeVar("_Leaf", bound=Union[_Array, bool, int, float])

class _Mismatch:
    index: Optional[int]
    path: str
    expected: Any
    got: Any
    side: Optional[str]

class ShapeError(ValueError, _Mismatch):
    """A shape of samples or ``out`` does not fit. ``index``: position of the sample, None for ``out``; ``path``: path of the leaf, or ""; ``expected`` and ``got``: what was expected and found; ``side``: of `copy_many`, whose ``index`` is that of a pair, "destination" or "source", else None."""
class DTypeError(TypeError, _Mismatch):
    """A dtype of samples or ``out`` does not fit. Attributes as for `ShapeError`."""
class DeviceError(ValueError, _Mismatch):
    """The device of samples or ``out`` does not fit. Attributes as for `ShapeError`."""
class LayoutError(BufferError, _Mismatch):
    """The memory cannot be expressed or used, or its owner refuses to lend it (by a BufferError or TypeError, which is then the ``__cause__``). Attributes as for `ShapeError`."""
class CudaError(RuntimeError):
    """A call of the CUDA driver failed. ``function``: its name; ``code``: the result, an int; ``name``: the name of that code."""

    function: Optional[str]
    code: Optional[int]
    name: Optional[str]

class CudaUnavailable(RuntimeError):
    """There is no usable CUDA driver, device or kernel, or this process may not use one: it was forked after its parent had started CUDA, or is a worker."""

class _TensorLike:
    __dlpack_c_exchange_api__: ClassVar[Any]
    @property
    def shape(self) -> _Shape:
        """Extents, a tuple of int."""
    @property
    def dtype(self) -> str:
        """Name of the element type, such as ``"float16"``."""
    @property
    def device(self) -> str:
        """``"cpu"``, ``"pinned"`` or ``"cuda:0"``."""
    @property
    def ndim(self) -> int:
        """Number of dims."""
    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
    def data_ptr(self) -> int:
        """Address of the element whose indices are all 0. On a device, the work that writes it
        may not be done.
        """
    def numpy(self) -> _np.ndarray[Any, _np.dtype[Any]]:
        """A NumPy array of the same host memory; bfloat16 and float8 need the package ml_dtypes, else ImportError. DeviceError for
        memory of a CUDA device.
        """
    def torch(self) -> _torch.Tensor:
        """A torch tensor of the same memory. DTypeError for a dtype that torch lacks,
        LayoutError for a stride below 0. torch has no read-only tensors: of
        immutable memory it comes with a UserWarning, as from ``torch.from_numpy``, and must not be written to.
        """
    def jax(self) -> _JaxArray:
        """A JAX array, of the same memory if JAX accepts its alignment, else a copy; of read-only memory, and of any that is not
        row-major without gaps, a copy. JAX arrays are immutable: do not write to the memory afterwards. On a device, the array may be deleted before the work that uses it is done.
        """
    def __jax_array__(self) -> _JaxArray:
        """The JAX array of it, for ``jax.numpy.asarray`` and JAX's functions."""
    def cupy(self) -> Any:
        """A CuPy array of the same device memory; for host memory a copy on the current device."""
    def __len__(self) -> int: ...
    def __dlpack__(
        self,
        *,
        stream: Optional[int] = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """DLPack capsule; a legacy one without ``max_version`` or below 1.0. BufferError: read-only memory in a legacy capsule,
        a device that is neither the memory's own nor the host, or ``copy=False`` where a copy is needed.
        """
    def __dlpack_device__(self) -> Tuple[int, int]: ...
    @property
    def __array_interface__(self) -> Dict[str, Any]: ...
    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]: ...
    def __array__(
        self, dtype: Optional[_DType] = None, copy: Optional[bool] = None
    ) -> _np.ndarray[Any, _np.dtype[Any]]: ...
    def __reduce_ex__(self, protocol: Any, /) -> Any: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Tensor(_TensorLike):
    """A strided piece of memory that keeps its owner alive. Made by the assembling calls and
    `asarray`.

    Attributes:
        shape (tuple of int): extents.
        strides (tuple of int): steps in elements.
        dtype (str): name of the element type, such as ``"float16"``.
        device (str): ``"cpu"``, ``"pinned"`` or ``"cuda:0"``.
        ndim (int): number of dims.
        nbytes (int): size of all elements in bytes.

    ``int()``, ``float()``, ``complex()`` and ``bool()`` take a tensor of one element. A tensor of one integer or bool also serves
    as an index.
    """

    @property
    def strides(self) -> _Shape:
        """Steps in elements, a tuple of int."""
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...
    def __complex__(self) -> complex: ...
    def __copy__(self) -> "Tensor":
        """Shares the memory; the copy has references of its own to what keeps it."""
    def __bytes__(self) -> bytes:
        """The elements' bytes, row-major; DeviceError for memory of a CUDA device. Without this,
        `bytes` takes a tensor of one integer as a length.
        """
    def __index__(self) -> int: ...
    def __bool__(self) -> bool:
        """The truth of one element, as NumPy has it."""

@final
class Batch(_TensorLike):
    """One assembled batch. It stands for its ``data`` wherever an array-like is taken.

    ``batch[i]`` is sample ``i`` without its padding, a `Tensor` in the memory of the batch. ``len(batch)`` is the number of samples, and
    iteration gives one after the other. Slices and further indices are for ``batch.numpy()`` and ``batch.torch()``. A page-locked batch
    is pickled as one of the host.

    Attributes:
        data (Tensor): the samples, assembled.
        lengths (Tensor or None): real length of each sample: int64 ``[N]``, or ``[N, k]`` if ``k != 1`` dims are padded.
        offsets (Tensor or None): where each sample begins along the joined dim, and the end of the last, ``[N + 1]``; int64, or the
            ``offsets_dtype`` of `ragged`.
        mask (Tensor or None): ``[N, *padded dims]``, if requested; bool, or the given ``mask_dtype``.
        batch_index (Tensor or None): sample of each row, int64 ``[sum]``, if asked for.
        scales (Tensor or None): by which `Quantize` divided, float32 or float8_e8m0fnu: of samples ``[N]``, of rows the shape of
            ``data`` without its last dim, of blocks the same with the number of blocks in its place.
        arena (Tensor or None): uint8, the one allocation of all leaves of `collate`, if asked for; the
            same object for each of them.
        arena_layout (dict or None): the place in the arena of each tensor that this batch has: name to dtype, shape and byte offset.
        max_length (int or None): the largest length of a ragged batch.
        shape, dtype, device, ndim, nbytes: those of ``data``.
    """

    @property
    def data(self) -> Tensor:
        """The samples, assembled."""
    @property
    def lengths(self) -> Union[Tensor, Any]:
        """The real length of each sample: int64 ``[N]``, or ``[N, k]`` if ``k != 1`` dims are padded; None in a stack."""
    @property
    def offsets(self) -> Union[Tensor, Any]:
        """The start of each sample along the joined dim, and the end of the last, ``[N + 1]``; None in other batches than
        of `concat` and `ragged`.
        """
    @property
    def mask(self) -> Union[Tensor, Any]:
        """``[N, *padded dims]``, if ``mask`` was given: bool, or the given ``mask_dtype``; else None."""
    @property
    def batch_index(self) -> Union[Tensor, Any]:
        """The sample that each row comes from, int64 ``[sum]``, if ``batch_index`` was given; else None."""
    @property
    def scales(self) -> Union[Tensor, Any]:
        """The scales that `Quantize` divided by, float32 or float8_e8m0fnu; None without one."""
    @property
    def arena(self) -> Optional[Tensor]:
        """uint8, the one allocation of all leaves of `collate` with ``arena=True``, the same object for each; else None."""
    @property
    def arena_layout(self) -> Optional[Dict[str, Tuple[str, _Shape, int]]]:
        """The place in the arena of each tensor of this batch: name to dtype, shape and byte offset; None without an arena."""
    @property
    def max_length(self) -> Union[int, Any]:
        """The largest length of a ragged batch, an int of the host; None in other batches."""
    def __getitem__(self, index: SupportsIndex, /) -> Tensor:
        """The real part of sample ``index``, without a copy."""
    def __iter__(self) -> Iterator[Tensor]: ...
    def check(self) -> None:
        """Waits until the batch has been written, and raises what went wrong on the way. A batch on the host is
        complete when its call returns, and so is one made by ``copy=None`` or ``copy=False`` without a copy; a
        batch captured in a CUDA graph is not waited for: synchronize its stream first.

        Raises:
            IndexError: an index on the device was out of range; the batch has padding there.
            CudaError: the device has failed.
        """
    def __arrow_c_array__(self, requested_schema: Any = None) -> Tuple[Any, Any]:
        """The Arrow PyCapsule interface: the samples as an array in the memory of the batch, which stays as long as the
        array. A ragged batch gives lists (`large_list`, or `list` with ``offsets_dtype="int32"``), any other the rows of its
        data; further dims are fixed-size lists.

        Raises:
            DTypeError: for bools, which Arrow packs into bits, bfloat16, float8 and smaller floats and integers, and complex numbers.
            DeviceError: for a batch on a device.
            LayoutError: for data with gaps.
            ValueError: for data without dims.
        """
    def nested(self) -> _torch.Tensor:
        """torch's jagged nested tensor of a ragged batch, sharing its memory. All nested tensors of one batch have the same ragged
        size, so that torch can add and compare them.

        Raises:
            ValueError: the batch is not ragged.
        """

@final
class SampleList:
    """Samples that are imported, checked and kept alive once. Every assembling call takes one in place of a list, and so do the functions
    that `windrow.torch.collate_fn` makes and those of `windrow.sequence`.

    The memory of torch tensors is kept as well as the tensors: after ``x.data = ...``, ``x.set_(...)`` or
    ``module.half()`` the list still has what was imported. If the owner has moved or freed the memory by
    ``x.resize_()``, ``x.share_memory_()``, ``x.untyped_storage().resize_()`` or NumPy's ``a.resize()``, the next use raises
    LayoutError with the index. Moves during a call, or after the memory was exported as an array, are not noticed, nor are changes
    that objects of other libraries make behind their own pointers.

    Whether a torch tensor requires grad is asked when it is imported, not when the list is used: one that comes to require it later, or
    was imported under ``torch.no_grad()``, is read as if it were detached. `asarray` does the same.

    ``samples[i]`` is a `Tensor` over the sample's memory, or, for one of foreign byte order, which no tensor has, a copy in native order.
    ``samples[i] = sample`` replaces one sample: the list refers to the new one from then on, and no memory is written. The old one
    is released at once, unless another list or view has it, or work on a device reads it: Python numbers that were given together,
    fewer than 256 to a sample, with the last of some of them (512 KiB at most). Samples cannot be deleted: `take` gives a list of those
    to keep. A slice, like `take`, is a separate list that shares the samples: later replacements and additions do not show in it. A pickle, and so a list that is sent to
    a process, has each sample by value, also those that share memory, as has a deep copy; `copy.copy` shares them.

    Samples that refer to the list they are in are collected as any cycle of Python objects, through `take`, views, `asarray` and
    ``out=`` too. Not seen by the collector, and kept with all that they refer to: what is exported to other libraries, until they let
    go of it; samples that are memoryviews, were lent by a DLPack capsule, or are not on the host.

    A list of trees (dicts and other mappings, lists, tuples, namedtuples, dataclasses, classes of `register_node`: what `collate`
    takes apart) is for `collate`. Each leaf is imported once; `take` picks a sample of every leaf, ``samples[i]`` is a tree of
    tensors in the same containers, and what is assigned or appended has the structure of the first sample: another one is refused
    with sample and path, before anything is changed. Shapes and dtypes may differ until `collate` is called. str and bytes,
    lists and tuples of Python numbers and objects that are collated as a whole (TensorDict, graphs of PyTorch Geometric) are
    kept as they are. A list or tuple of Python numbers that is a sample by itself is an array-like of one dim, but for a
    namedtuple, which is a tree. One without numbers has the dtype of the samples that come to it.

    Args:
        samples: an iterable of array-likes, of any shapes and dtypes, or of trees of one structure; or one tensor, whose rows along
            dim 0 are registered without anything kept for each of them; or a batch, for its samples; or an Arrow array, chunked array or
            column, whose rows are the samples, in Arrow's memory, or an Arrow table, whose rows are dicts.

    Examples:
        >>> import windrow as wr
        >>> rows = wr.SampleList([b"ab", b"cd", b"ef"])
        >>> wr.stack(rows.take([2, 0])).shape
        (2, 2)
        >>> rows[0] = b"xy"
        >>> bytes(wr.stack(rows[:2]))
        b'xycd'
        >>> steps = wr.SampleList([{"x": [1.5], "n": n} for n in range(4)])
        >>> steps[1] = {"x": [2.5], "n": 7}
        >>> batch = wr.collate(steps.take([3, 1]), {"x": wr.Stack()})
        >>> memoryview(batch["x"]).tolist(), memoryview(batch["n"]).tolist()
        ([[1.5], [2.5]], [3, 7])
    """

    def __new__(cls, samples: Union[_Samples, Iterable[Any], None] = None) -> "SampleList": ...
    @staticmethod
    def split(values: _ArrayLike, offsets: _ArrayLike, shapes: Optional[_ArrayLike] = None) -> "SampleList":
        """The consecutive pieces of one tensor, with no Python object for each of them: sample ``i`` is
        ``values[offsets[i]:offsets[i + 1]]``, as Arrow's lists and ragged batches are in memory.

        Args:
            values: an array-like of at least one dim.
            offsets: integers ``[N + 1]`` that never decrease.
            shapes: integers ``[N, k]``; ``values`` is then flat, row-major, and sample ``i`` has the
                shape ``shapes[i]``.

        Raises:
            ShapeError: offsets decrease or reach beyond ``values``; or a shape has another number of elements than its piece, or there
                is not one shape for each piece.
            LayoutError: ``shapes`` with ``values`` that are not flat and contiguous.
            TypeError: ``offsets`` or ``shapes`` are not integers of one and two dims.

        Example:
            >>> import windrow as wr
            >>> words = wr.SampleList.split(b"abcdef", [0, 1, 4, 6])
            >>> [bytes(row) for row in wr.pad(words, value=46).numpy()]
            [b'a..', b'bcd', b'ef.']
        """
    def take(self, indices: _Indices) -> "SampleList":
        """The samples at these positions, in this order, as a new list that shares their memory, and keeps
        alive what this one does.

        After `to_device`, the host neither reads nor waits for indices on that device (int32 or int64, of any library): the work
        reads them in the order of their stream, and in a CUDA graph at each launch. The result can be stacked, or padded to a given
        ``size``; any other use, which would depend on the samples, raises ValueError. An index out of range gives padding (0 in a
        stack) and raises IndexError late: at ``Batch.check()``, and at the next use of this list.

        Args:
            indices: an integer array-like of one dim, or a list of ints; negative ones count from the end.

        Raises:
            IndexError: a position is not in the list, or a device found one of an earlier call out of range.
            TypeError: the indices are not ints (a mask of bools is refused too), or on a device not int32 or int64.
            DeviceError: after `to_device`, the indices are on another device than the samples.
        """
    def to_device(self, device: _Device) -> "SampleList":
        """Makes the samples selectable by indices in the memory of their device: see `take`. Uploads once 8 bytes for each sample,
        and 4 more where samples differ in shape, or nothing for the rows of one table, and waits for the upload. After an
        `append` or `extend` the next `take` of such indices uploads anew.

        Args:
            device: ``"cuda"`` or ``"cuda:1"``, where all samples are: they are not moved.

        Returns:
            SampleList: this list.

        Raises:
            DeviceError: for samples that are elsewhere. ValueError: for an empty list. TypeError: for a list of trees.
            CudaUnavailable, CudaError: as for ``windrow.stack``.
        """
    def stack(
        self,
        indices: _Indices,
        *,
        dtype: Optional[_DType] = None,
        device: Optional[_Device] = None,
        out: Optional[_Out] = None,
        stream: Optional[_Stream] = None,
        transform: Optional[_AnyTransform] = None,
        saturate: bool = False,
        copy: Optional[bool] = True,
        engine: Optional[Engine] = None,
    ) -> Batch:
        """A batch of the samples at these positions: as ``windrow.stack`` of ``take(indices)``, without the list
        between.

        Args:
            indices: as for `take`.
            common: as for ``windrow.stack``, ``out`` among them.

        Returns:
            Batch: ``data[len(indices), *shape]``.

        Raises:
            IndexError: for a position that is not in the list; and what ``windrow.stack`` raises, whose ``index``
                is a position in ``indices``. TypeError: for a list of trees, which ``windrow.collate`` takes.

        Examples:
            >>> import windrow as wr
            >>> rows = wr.SampleList([b"ab", b"cd", b"ef"])
            >>> bytes(rows.stack([2, 0]))
            b'efab'
        """
    def append(self, sample: Any) -> None:
        """Imports one more sample; in a list of trees it must have the same structure. An error names the position it would have had."""
    def extend(self, samples: Union[_Samples, Iterable[Any]]) -> None:
        """Imports more samples; on any error, MemoryError included, none of them is added.

        Args:
            samples: an iterable of array-likes, or of trees of the same structure; or another list,
                which is joined as it is; or an Arrow array, whose rows are samples: its errors name a row of it.
        """
    def __len__(self) -> int: ...
    # Iteration is by positions, as over any sequence; each item is a Tensor, or a tree of them.
    def __iter__(self) -> Iterator[Any]: ...
    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Any:
        """A sample as a tensor, or as a tree of tensors; for a slice, a list that shares the samples."""
    @overload
    def __getitem__(self, index: slice, /) -> "SampleList": ...
    def __setitem__(self, index: SupportsIndex, sample: Any, /) -> None:
        """Replaces a sample: the list refers to the new one from now on, no memory is written, and the old one is released
        unless another list refers to it. Lists that were taken before keep it. TypeError for a
        slice.
        """
    def __reduce_ex__(self, protocol: Any, /) -> Any:
        """Pickles have the samples by value, copied from a device and back to it."""
    def __copy__(self) -> "SampleList":
        """Shares the memory of the samples; the copy has references of its own to what keeps it."""

@final
class Quantize:
    """Divides elements by a scale that is found on the way, and rounds them to float8 or int8: a ``transform=``.

    The elements that share a scale are read for the largest magnitude among them, ``amax``, in float32, float64 rounded to it. The scale
    is ``max(amax, eps) / largest``, in float32, where ``largest`` is 448 (float8_e4m3fn), 57344 (float8_e5m2) or 127 (int8). The
    result is ``x / scale``, in float32, rounded to nearest even and saturated.

    Args:
        dtype: ``"float8_e4m3fn"``, ``"float8_e5m2"`` or ``"int8"``.
        scale (str or int): ``"sample"``: one scale for each sample. ``"row"``: one for each row of the last dim; where that is the dim that
            is joined or padded, as of 1-d samples, the row is the sample. A block length: one for each block of this many
            elements along the last dim, of which the last may be shorter; ValueError where that dim is joined or padded.
        scale_dtype: ``"float32"``; or, not for int8, ``"e8m0"``: powers of two as float8_e8m0fnu, those of OCP MX:
            ``2 ** (floor(log2(max(amax, eps))) - e)`` with ``e`` 8 for float8_e4m3fn and 15 for float8_e5m2, at least ``2 ** -127``.
        eps (float): the least magnitude that a scale is made of, positive.

    ``Batch.scales`` has the scales: of samples ``[N]``; of rows the shape of ``data`` without its last dim; of blocks the same with the
    number of blocks in its place. Padding has scale 1 and ``value`` as given. ``out=`` takes a pair ``(data, scales)``.

    Rows of zeros have ``eps / largest`` as scale and stay zeros, -0 too; so do samples and rows without elements. NaN does not
    count for ``amax`` and stays NaN, in int8 0. An infinity makes a float32 scale infinite: results are then 0, and NaN of infinities, in
    int8 0; of powers of two, which have no infinity, NaN, and all results NaN. Subnormal numbers count as what they are, in ``amax`` and in results.

    Samples are floating point: integers are a DTypeError. ``dtype=`` beside it is a ValueError, for the batch has its ``dtype``. A
    batch is quantised by the device that its samples are on or that it goes to, else on the host; so is each pair of `copy_many`. Within `wr.List` and classes whose leaves are torch tensors, where scales have no place, it is a
    ValueError.

    Raises:
        ValueError: an argument with a wrong value.

    Examples:
        >>> import windrow as wr
        >>> batch = wr.stack([[1.0, -127.0], [0.0, 0.5]], transform=wr.Quantize("int8"))
        >>> memoryview(batch).tolist(), memoryview(batch.scales).tolist()[0]
        ([[1, -127], [0, 127]], 1.0)
    """

    def __new__(
        cls,
        dtype: Union[Literal["float8_e4m3fn", "float8_e5m2", "int8"], _DTypeObject],
        scale: Union[Literal["row", "sample"], int, None] = "row",
        scale_dtype: Union[Literal["float32", "e8m0"], _DTypeObject] = "float32",
        eps: float = 1e-12,
    ) -> "Quantize": ...
    def __getnewargs_ex__(self) -> Tuple[Tuple[()], Dict[str, Any]]: ...

@final
class Dequantize:
    """Multiplies elements of int8, float8_e4m3fn or float8_e5m2 with their scales, in float32, and rounds the product to ``dtype=``: a
    ``transform=``.

    Args:
        scales: those of the batch, an array-like as ``Batch.scales`` of a batch of this form has them: of samples ``[N]``, of rows, or of
            blocks; where rows and samples are as many, those of rows. Or a list or tuple with one array-like, or one number, for each sample: a
            number, or an array without dims, for all its elements, else one for each of its rows or blocks. They have a floating-point
            dtype or float8_e8m0fnu, and are in host memory. They are read as the call begins, page-locked ones too, which waits for no device.
        block (int): the block length, if the scales are of blocks; else None.

    The call needs ``dtype=``: float16, bfloat16, float32 or float64, else DTypeError. Other samples than int8, float8_e4m3fn and
    float8_e5m2 are a DTypeError, scales of another shape a ShapeError, scales on a device a DeviceError: copy them to the host first. A
    batch is dequantised by the device that its samples are on or that it goes to, else on the host; so is each pair of `copy_many`.
    Samples taken by indices on a device are a ValueError. NaN, of a sample or a scale, gives NaN. Padding keeps
    ``value`` as given: it is not multiplied. Within `wr.List` it is a ValueError.

    Raises:
        ValueError: a ``block`` below 1.
        TypeError: scales that are no array-like.

    Examples:
        >>> import windrow as wr
        >>> batch = wr.ragged([[0.5, -2.0], [96.0]], transform=wr.Quantize("int8"))
        >>> back = wr.ragged(batch, dtype="float32", transform=wr.Dequantize(batch.scales))
        >>> [round(x, 2) for x in memoryview(back).tolist()]
        [0.5, -2.0, 96.0]
    """

    def __new__(cls, scales: Union[_ArrayLike, Sequence[_ArrayLike]], block: Optional[int] = None) -> "Dequantize": ...
    def __getnewargs__(self) -> Tuple[Any, Optional[int]]: ...

@final
class Transform:
    """``(x * scale - mean[c]) / std[c]`` for each element, then a permutation of the sample's dims.

    Computed as one fused multiply-add ``x * a[c] + b[c]``, with ``a = scale / std`` and ``b = -mean / std`` formed in float64. The
    multiply-add is in float32, or in float64 when source or result is float64; its result is rounded once, to nearest even.

    Args:
        scale (float): multiplies first; ``1 / 255`` for 8-bit images.
        mean, std (float or sequence): one number, or one for each channel.
        channel_dim (int): sample dim of the channels, before ``permute``; None: the only dim with as many entries as ``mean`` or
            ``std`` in all samples that is neither joined nor in ``dims``, else ValueError.
        permute (sequence of int): order of the sample's dims in the batch, as for ``numpy.transpose``.

    The call raises ``ValueError`` if ``scale / std`` or ``-mean / std`` is not finite, as with a ``std`` of 0. With ``scale``,
    ``mean`` or ``std``, integer and bool samples need ``dtype=``, such as ``"float32"``; without it the call raises `DTypeError`. An
    integer dtype truncates the result toward zero and saturates it: bytes scaled by ``1 / 255`` become 0 and 1. One
    that changes no element, as of scale 1 and mean 0, casts as ``dtype=`` alone does, which wraps integers around.

    Examples:
        >>> import windrow as wr
        >>> chw = wr.Transform(scale=1 / 255, mean=[0.5, 0.5, 0.5], std=[0.5, 0.5, 0.5],
        ...                    channel_dim=2, permute=(2, 0, 1))
        >>> image = wr.asarray(memoryview(bytes(2 * 2 * 3)).cast("B", (2, 2, 3)))
        >>> wr.stack([image], dtype="float32", transform=chw).shape
        (1, 3, 2, 2)
    """

    def __new__(
        cls,
        scale: float = 1.0,
        mean: Union[SupportsFloat, Sequence[SupportsFloat], _Array, None] = None,
        std: Union[SupportsFloat, Sequence[SupportsFloat], _Array, None] = None,
        channel_dim: Optional[int] = None,
        permute: Union[Sequence[SupportsIndex], _Array, None] = None,
    ) -> "Transform": ...
    def __getnewargs_ex__(self) -> Tuple[Tuple[()], Dict[str, Any]]: ...

class _DeviceRequired(TypedDict):
    device: str
    name: str

class _DeviceInfo(_DeviceRequired, total=False):
    index: int
    compute_capability: Tuple[int, int]
    multiprocessors: int
    total_memory: int

class _CudaBuild(TypedDict):
    toolkit: str
    targets: str
    driver: Tuple[int, int]

class _Observers(TypedDict):
    logging: bool
    nvtx: Optional[str]

@final
class Engine:
    """An engine with a thread pool and an output memory pool of its own. The module's functions use a
    default one.

    Args:
        threads (int): threads for a batch that reads and writes 1 MiB or more, the calling one included, from 1 to 4096; None: one
            for each core. The first such batch starts them.
        device (str): device for batches of calls without ``device=``; None: where the samples are.
        pool_bytes (int): free output memory to keep, that of batches that have died, in bytes; None: 1 GiB. Later batches use it.
        streaming_stores (str): the smallest outputs on the host that are written around the caches, in bytes or ``never``:
            ``"copies=never,padded=never,computed=33554432"``; None: of the environment variable ``WINDROW_STREAMING_STORES``, of
            ``python -m windrow calibrate``, or by what the processor says of itself.

    Raises:
        ValueError: ``threads`` or ``pool_bytes`` is out of range, ``streaming_stores`` is no such text, or there is no such ``device``.
        TypeError: an argument has a wrong type.
        CudaUnavailable, CudaError: ``device`` cannot be used.
    """

    def __new__(
        cls,
        threads: Optional[int] = None,
        device: Optional[_Device] = None,
        pool_bytes: Optional[int] = None,
        streaming_stores: Optional[str] = None,
    ) -> "Engine": ...
    @property
    def threads(self) -> int:
        """Threads for a large batch."""
    def stats(self) -> Stats:
        """Counters of this engine, as those of `windrow.stats`; ``workers``, which are the process's, is empty."""
    def reset_stats(self) -> None:
        """Sets the counters to 0, as `windrow.reset_stats` does for the default engine."""
    def empty_cache(self) -> None:
        """Gives free output memory back to the system and the devices, for which it waits."""

@final
class Explain:
    """The plan of a call that is not run. ``str()`` gives a readable account, and `as_dict` the same as data. Each key of `as_dict`
    is an attribute too.
    """

    path: str
    samples: int
    leaves: int
    bytes_read: int
    bytes_written: int
    padding_bytes: int
    padding_waste: float
    ranges: int
    tiles: int
    launches: int
    launch: Optional[Dict[str, Any]]
    bytes_to_device: int
    bytes_to_host: int
    arena_bytes: int
    arena_gap_bytes: int
    device_memory: Optional[str]
    worker_pool: bool
    outputs: List[Tuple[_Shape, str]]
    paths: List[str]
    around_caches: List[bool]
    names: List[str]
    def as_dict(self) -> Dict[str, Any]:
        """Keys: path, samples, leaves, bytes_read, bytes_written, padding_bytes, padding_waste (share of
        the data, 0 to 1), ranges, tiles, launches, launch, bytes_to_device, bytes_to_host, arena_bytes,
        arena_gap_bytes (between tensors), device_memory (whose allocator gives the memory of outputs on a device, ``"torch"``
        or ``"windrow"``; ``"torch"`` for page-locked ones that torch lends; else None), worker_pool (whether this is a worker process
        whose batches `windrow.torch.collate_fn` writes into shared memory that is used again); and for each leaf outputs (shape and dtype), paths, around_caches (whether
        data on the host is written by streaming stores, if its memory was written before) and names
        (where it is in its tree, ``""`` for a plain list).

        ``launch`` is None on the host and for several devices, else a dict of the launch, or of both if only some parts
        are ``"quantised"``: items (pieces of work, each for one warp), table_bytes, table_uploaded (else the table goes with
        the launch's parameters) and parts, a list of dicts: leaf (None for the zeros between tensors of an arena), output (``"data"``,
        ``"mask"``, ...), family (``"rows"``, ``"aligned_copy"``, ``"small_copy"``, ``"contiguous_cast"``,
        ``"contiguous_generic"``, ``"planar"``, ``"scalar_fallback"``, ``"strided"``, ``"placed_rows"``,
        ``"placed_copy"``, ``"quantised"`` or ``"metadata"``), samples, items and sources (``"addresses"``, ``"ids"``; None where
        nothing is read).
        """

def stack(
    samples: _Samples,
    *,
    dtype: Optional[_DType] = None,
    device: Optional[_Device] = None,
    out: Optional[_Out] = None,
    stream: Optional[_Stream] = None,
    transform: Optional[_AnyTransform] = None,
    saturate: bool = False,
    copy: Optional[bool] = True,
    engine: Optional[Engine] = None,
) -> Batch:
    """Stacks samples of equal shape along a new dim 0.

    Args:
        samples: an iterable of array-likes; or a `SampleList`; or one array, whose rows along dim 0 are the samples; or an Arrow
            array or column, which is the list of its rows: numbers, lists, fixed-size lists and tensors; bools are unpacked.
            Python numbers are array-likes without dims, lists and tuples of them array-likes of one dim: ints int64, floats (ints
            among them) float64, bools bool. An empty list has the dtype of its neighbours, float64 if all are empty.
            Arrays of foreign byte order are turned round as they are read; the batch is native.
        dtype: dtype of the batch: a name such as ``"float16"``, or a NumPy, torch or JAX dtype, or an object with
            ``__dlpack_data_type__``; if None, all samples must share a dtype, which is kept. Floats are rounded to once, to nearest
            even. What is too large becomes infinite, in float8_e4m3fn NaN, as ml_dtypes has it. To an integer dtype floats are
            truncated, and saturate, NaN is 0, and integers wrap: 1.5 is 1, without an error.
        device (str): device to place the batch on, ``"cpu"``, ``"pinned"``, ``"cuda"`` (which is ``"cuda:0"``)
            or ``"cuda:1"``; None: where the samples are.
        out: a writable array-like of exactly the result's shape, dtype and device, of a `Quantize` a pair of them ``(data, scales)``. Any strides,
            such as those of a part of a larger array. Lengths, offsets and a mask are new tensors all the same. Not needed to save
            allocations: memory of batches that have died is used again. If it is a torch tensor
            that was saved for ``backward``, ``backward`` raises, as after any operation in place.
        stream: of a CUDA device, to enqueue the work on: a handle, a torch or CuPy stream,
            or an object with ``__cuda_stream__``; None: the one that ``out`` or the samples were
            written on, else one of the engine's own.
        transform (Transform, Quantize or Dequantize): arithmetic and axis order on the way, or scales that are found or given.
            Arithmetic on integers or bools needs ``dtype``: a floating-point one, or an integer one, which truncates and saturates.
        saturate (bool): of a batch in float8_e4m3fn or float8_e5m2: values beyond the largest finite one (448, 57344), infinities
            among them, become it; NaN stays NaN. Samples of that dtype without arithmetic are moved as they are.
        copy (bool or None): True: a copy. None: may return a view where the samples already form the batch in memory. False: a
            view, or ValueError.
        engine (Engine): None: the default one.

    Returns:
        Batch: ``data[N, *shape]``.

    Raises:
        ShapeError, DTypeError, DeviceError, LayoutError: a sample, or ``out``, does not fit; nothing
            was written. A torch tensor that requires grad is a LayoutError while torch's grad mode is on:
            ``detach()`` it, or call within ``torch.no_grad()``; ``windrow.torch.ops`` keeps gradients. A dual tensor of forward-mode AD
            is one in every mode.
        ValueError: no samples, an argument with a wrong value, ``saturate`` for a batch of another dtype than float8_e4m3fn and
            float8_e5m2, or ``copy=False`` where the batch needs a copy.
        TypeError: a sample is not an array-like, or is a list that contains anything but numbers, such as None or another list; or
            an argument is unknown, has a wrong type, or names no dtype.
        MemoryError: the batch does not fit into memory.
        CudaUnavailable: a device was asked for, and there is no driver, or this process was forked
            after its parent had begun to use one.
        CudaError: a call of the driver failed.

    Examples:
        >>> import windrow as wr
        >>> batch = wr.stack([[1, 2, 3], [4, 5, 6]], dtype="int32")
        >>> batch.shape, batch.dtype
        ((2, 3), 'int32')
        >>> memoryview(batch).tolist()
        [[1, 2, 3], [4, 5, 6]]
    """
def concat(
    samples: _Samples,
    *,
    dim: SupportsIndex = 0,
    dtype: Optional[_DType] = None,
    device: Optional[_Device] = None,
    out: Optional[_Out] = None,
    stream: Optional[_Stream] = None,
    transform: Optional[_AnyTransform] = None,
    saturate: bool = False,
    copy: Optional[bool] = True,
    engine: Optional[Engine] = None,
) -> Batch:
    """Joins samples that are equal except along ``dim``. ``common`` as for `stack`.

    Args:
        dim (int): sample dim to join along; a negative one counts from the end.

    Returns:
        Batch: ``data``, ``lengths`` int64 ``[N]`` and ``offsets`` int64 ``[N + 1]`` along ``dim``.

    Raises:
        ShapeError: samples differ in rank or in another dim, or have no dims.
        ValueError: ``dim`` is not a dim of the samples.

    Examples:
        >>> import windrow as wr
        >>> batch = wr.concat([[1, 2], [3, 4, 5]])
        >>> batch.shape, memoryview(batch.offsets).tolist()
        ((5,), [0, 2, 5])
    """
def pad(
    samples: _Samples,
    *,
    value: _Value = 0,
    side: Union[_Side, Sequence[_Side]] = "right",
    dims: Optional[_PerDim] = None,
    size: Union[SupportsIndex, Sequence[Optional[SupportsIndex]], None] = None,
    multiple_of: _PerDim = 1,
    truncate: bool = False,
    mask: Optional[Literal["real", "pad"]] = None,
    mask_dtype: Union[
        Literal["bool", "uint8", "int32", "int64", "float16", "float32"], _DTypeObject
    ] = "bool",
    dtype: Optional[_DType] = None,
    device: Optional[_Device] = None,
    out: Optional[_Out] = None,
    stream: Optional[_Stream] = None,
    transform: Optional[_AnyTransform] = None,
    saturate: bool = False,
    copy: Optional[bool] = True,
    engine: Optional[Engine] = None,
) -> Batch:
    """Pads samples of equal rank to the largest. ``common`` as for `stack`.

    Args:
        value: number that padding holds; it is not transformed. An integer dtype must hold it exactly; a float dtype rounds it.
        side: "right", "left" or "center"; one string, or one for each sample dim.
        dims: the sample dims to pad, an int or ints, each named once; negative ones count from the end.
        size: extent of the dims in ``dims``, or an int or None (the longest) for each sample dim. A
            sample that does not fit is an error.
        multiple_of: what the extents of the dims in ``dims`` are rounded up to, or an int for each sample
            dim; applied after ``size``.
        truncate (bool): cut what does not fit, on the side where padding goes.
        mask: None, "real" (True where data is) or "pad" (True where padding is).
        mask_dtype: of the mask, which has 1 where it is True: "bool", "uint8", "int32", "int64" (what tokenizers of
            transformers give), "float16" or "float32". Written in the same pass.

    ``dims``, and an entry of ``size`` or a ``multiple_of`` above 1 that is given for its dim, name dims.
    Exactly the named dims are padded, whether samples differ there or not, and a difference elsewhere is
    a `ShapeError`. If nothing is named, all dims in which samples differ are padded; samples of one dim are always padded along it.
    Name the dims if ``lengths`` and ``mask`` must have the same shape in every batch. Samples of two or more dims need ``dims`` for a
    single ``size`` or ``multiple_of``. All of these refer to the dims before ``Transform.permute``.

    Returns:
        Batch: ``data[N, *max]``, ``lengths`` int64 ``[N]`` when one dim is padded, else ``[N, k]`` in the order of the sample's dims,
        and ``mask`` ``[N, *padded dims]`` in the order of the result's dims.

    Raises:
        ShapeError: samples differ in a dim that is not named, or are larger than ``size``.
        ValueError: one ``size`` or ``multiple_of`` for samples of two or more dims, without ``dims``; ``mask_dtype`` without ``mask``;
            a ``value`` that the dtype cannot hold.

    Examples:
        >>> import windrow as wr
        >>> batch = wr.pad([[1], [2, 3, 4]], value=-1, mask="real")
        >>> memoryview(batch).tolist(), memoryview(batch.mask).tolist()
        ([[1, -1, -1], [2, 3, 4]], [[True, False, False], [True, True, True]])
        >>> images = [memoryview(bytes(3 * n)).cast("B", (3, n)) for n in (4, 5)]
        >>> wr.pad(images, dims=1, multiple_of=8).shape
        (2, 3, 8)
    """
def ragged(
    samples: _Samples,
    *,
    offsets_dtype: Union[Literal["int64", "int32"], _DTypeObject] = "int64",
    batch_index: bool = False,
    dtype: Optional[_DType] = None,
    device: Optional[_Device] = None,
    out: Optional[_Out] = None,
    stream: Optional[_Stream] = None,
    transform: Optional[_AnyTransform] = None,
    saturate: bool = False,
    copy: Optional[bool] = True,
    engine: Optional[Engine] = None,
) -> Batch:
    """Joins samples that are equal except along dim 0, and says where each begins. ``common`` as for `stack`.

    Args:
        offsets_dtype: ``"int64"`` or ``"int32"``.
        batch_index (bool): adds the position of the sample that each row comes from.

    Returns:
        Batch: ``data`` = values ``[sum, *rest]``, ``offsets`` ``[N + 1]`` of ``offsets_dtype``, ``lengths`` int64 ``[N]``,
        ``max_length`` (int) and, if requested, ``batch_index`` int64 ``[sum]``.

    Raises:
        ShapeError: samples differ beyond dim 0, or have no dims.
        ValueError: offsets do not fit int32, or ``permute`` moves dim 0.

    Examples:
        >>> import windrow as wr
        >>> batch = wr.ragged([[5, 6], [], [7]], batch_index=True)
        >>> memoryview(batch.offsets).tolist(), memoryview(batch.batch_index).tolist(), batch.max_length
        ([0, 2, 2, 3], [0, 0, 2], 2)
    """
@overload
def collate(
    samples: Iterable[_UntypedTree],
    spec: Optional[_Specs] = None,
    *,
    sep: str = ".",
    arena: bool = False,
    dtype: Optional[_DType] = None,
    device: Optional[_Device] = None,
    out: Any = None,
    stream: Optional[_Stream] = None,
    transform: Optional[_AnyTransform] = None,
    saturate: bool = False,
    copy: Optional[bool] = True,
    engine: Optional[Engine] = None,
) -> Any:
    """Collates a list of trees into one tree of the same shape, in which every tensor leaf is a `Batch`, in one call.

    Args:
        samples: a list of trees of dict (and other mappings), list, tuple, namedtuple, dataclass, attrs and pydantic
            classes, TensorDict and tensorclass, graphs of PyTorch Geometric, PyTrees of torch or optree, and classes of
            `register_node`, which keep their types, as copies of
            the first sample for which no initialiser, converter or validator runs; `Data` and `HeteroData` become PyTorch Geometric's own ``Batch``. Results in
            classes of tensordict and PyTorch Geometric are torch tensors. str and bytes leaves become lists, Python floats float64, ints int64. Also a `SampleList`,
            in which trees are taken apart once, or an Arrow table or record batch of pyarrow, polars, pandas or
            others, which is the list of its rows: dicts of its columns.
        spec (dict): leaf path, with globs, to `Stack`, `Concat`, `Pad`, `Ragged` or `List`; or one of these, for all leaves. A path is the
            keys, attributes and positions that lead to the leaf, such as ``"tokens"``, ``"target.boxes"`` or, in a tuple, ``"0"``. An exact
            path goes before a glob, an earlier glob before a later one.
            Unnamed leaves are stacked. Each leaf is padded to its own longest sample. A list or tuple of Python numbers is a container of as many
            leaves, and one leaf, of one dim, where a key is exactly its path.
        sep (str): joins the keys of a path.
        arena (bool): all tensors of all leaves in one allocation, each at a multiple of 64 bytes (256 in
            page-locked memory and on a device), zeros between them: `Batch.arena`. One copy moves the
            whole tree, and it pickles as one buffer; `Batch.arena_layout` says what is where.
        out: a tree of the same shape to write to: of arrays, tensors or the batches of an earlier call.
        common: as for `stack`; a spec's own arguments take precedence, ``engine`` among them: leaves of several engines are
            planned for each.

    Returns:
        A tree of the samples' structure: a `Batch` for each tensor leaf (a list of tensors by `List`, a torch tensor within classes of tensordict and PyTorch
        Geometric), a list for each leaf of str or bytes.

    Raises:
        KeyError, ValueError, TypeError: a missing key, an uneven length or a None leaf, with the path and the sample; and whatever
            the leaf's form raises, with ``.path``.
        TypeError: a mapping or text in place of the list, or a container of an unknown class, with what to give instead.
        ValueError: ``arena=True`` with ``out``, ``copy=False`` or leaves of several engines; a spec that names no leaf, or only leaves of str and bytes; a spec of
            another form within TensorDict, tensorclass or graphs of PyTorch Geometric; ``stream`` in a spec.
        DeviceError: ``arena=True`` with leaves in several places.
        RecursionError: trees of more than 256 levels, such as a container that holds itself.

    Examples:
        >>> import windrow as wr
        >>> batch = wr.collate([{"x": [1, 2.5], "id": "a"}, {"x": [3, 4.5], "id": "b"}])
        >>> memoryview(batch["x"][1]).tolist(), batch["id"]
        ([2.5, 4.5], ['a', 'b'])
        >>> batch = wr.collate([{"ids": [1, 2]}, {"ids": [3]}], {"ids": wr.Pad()})
        >>> memoryview(batch["ids"]).tolist()
        [[1, 2], [3, 0]]
        >>> batch = wr.collate([{"x": [1, 2.5], "id": "a"}, {"x": [3, 4.5], "id": "b"}], arena=True)
        >>> batch["x"][0].arena.shape, batch["x"][1].arena_layout
        ((128,), {'data': ('float64', (2,), 64)})
    """
@overload
def collate(
    samples: Iterable[Dict[_Key, _Leaf]],
    spec: Optional[_BatchSpecs] = None,
    *,
    sep: str = ".",
    arena: bool = False,
    dtype: Optional[_DType] = None,
    device: Optional[_Device] = None,
    out: Any = None,
    stream: Optional[_Stream] = None,
    transform: Optional[_AnyTransform] = None,
    saturate: bool = False,
    copy: Optional[bool] = True,
    engine: Optional[Engine] = None,
) -> Dict[_Key, Batch]: ...
@overload
def collate(
    samples: Union[SampleList, Iterable[Any], _SupportsArrowStream],
    spec: Optional[_Specs] = None,
    *,
    sep: str = ".",
    arena: bool = False,
    dtype: Optional[_DType] = None,
    device: Optional[_Device] = None,
    out: Any = None,
    stream: Optional[_Stream] = None,
    transform: Optional[_AnyTransform] = None,
    saturate: bool = False,
    copy: Optional[bool] = True,
    engine: Optional[Engine] = None,
) -> Any: ...
def _collate_torch(
    samples: Any,
    rules: Any,
    spec: Any = None,
    *,
    sep: str = ".",
    by_torch: bool = False,
    device: Optional[_Device] = None,
    stream: Optional[_Stream] = None,
    engine: Optional[Engine] = None,
) -> Any:
    """Collates like `collate`, by the rules of ``default_collate`` of torch; see ``windrow.torch``. A batch on the host is complete
    at the return, the work on a device is enqueued.
    """
def copy_many(
    dsts: _Sides,
    srcs: _Sides,
    *,
    transform: Optional[_AnyTransform] = None,
    scales_out: Any = None,
    stream: Optional[_Stream] = None,
    engine: Optional[Engine] = None,
    max_blocks: Optional[int] = None,
) -> None:
    """Writes source ``i`` into destination ``i``, for all pairs in one call: weights into a model, rows of a batch into tensors of their
    own, rows into places of a table, in host, page-locked and device memory, mixed as it comes.

    A side is a list or tuple of array-likes; a `SampleList`, also from ``take``; a `Batch`, for its samples, the real parts; one
    array-like, for its rows along dim 0; or, if both sides are, a tree as `collate` takes for one sample, in which mappings match by
    key and sequences by position. A list of dicts is a tree.

    The shapes of a pair are equal; strides and alignment may be any. Where dtypes differ, elements are cast: integers to integers
    wrap, floats to integers truncate toward zero and saturate (NaN becomes 0), anything to bool is ``!= 0``; complex and
    smaller dtypes, and float8 but for e4m3fn and e5m2, are moved, never cast. A pair that is the same memory and dtype is left as it is.

    Torch tensors that are written to are to torch as after ``copy_``: if one was saved for ``backward``, ``backward`` raises.

    Args:
        dsts: the destinations, in memory that may be written to.
        srcs: as many sources.
        transform (Transform, Quantize or Dequantize): arithmetic and axis order on the way, or scales that are found or given; a
            destination has the shape of the result. The scales of a `Dequantize` are a list with those of each source, or an array with
            these along dim 0.
        scales_out: where the scales of a `Quantize` go, a side as ``dsts``: for each pair one of the scales' dtype, without dims for
            ``"sample"`` and of 1-d sources, for rows of the source's shape without its last dim, for blocks with their number in its place;
            where the destination is: on its device, or on the host, where those of no elements always are.
        stream: the stream to enqueue the work on, of the CUDA device that a side is on: a handle, a torch or CuPy stream, or an object with
            ``__cuda_stream__``; None: the one that destinations or sources were written on, else one of the engine's own.
        engine (Engine): None: the default one.
        max_blocks (int): the most blocks of threads of a launch, and so how much of the device's multiprocessors a move may take from
            what else runs there: 8 leave most of an H100 to a model, at a part of the speed. None: as many as there is work for. Without
            effect on the host.

    Raises:
        ValueError: another number of sources than of destinations; a destination that shares bytes with another one, as where ids
            repeat in ``table.take(ids)``, or with any source but its own identical one; a ``stream`` beside memory without one, or
            beside sides on two devices, as are a `Quantize` and a `Dequantize`.
        ShapeError, DTypeError: a pair that does not fit.
        LayoutError: a destination that is read-only, a Python number or of foreign byte order, or whose elements overlap each other; a
            torch tensor that requires grad while torch's grad mode is on: call within ``torch.no_grad()``.
        DeviceError: ids on one device beside memory of another; ids on a device beside a `Dequantize`; scales that are not where the
            destination is, or given ones on a device.
        CudaUnavailable, CudaError: as for `stack`.
        TypeError: what is no side, or no array-like. KeyError: trees of different keys.
        RuntimeError: an inference tensor as destination outside of inference mode.

    On return, destinations on the host are written and sources in pageable memory are read. Work on a device is in the order of the
    stream, and its memory is kept until it is done; who uses a destination on another stream orders that behind it. Pairs of
    page-locked memory wait for what is on the stream, without ``stream`` and beside no side on a device for what this engine has
    enqueued, and are copied by the host. With sides on several devices there is a launch for each, on a stream of the engine's own, and what goes from one to
    another goes by way of page-locked memory and waits for the first of the two. All sources of a device, and all that go to it, are one launch; pageable memory below 1 MiB a tensor goes to the device in one copy, and
    comes back in one, which is waited for.

    Ids in device memory (`take` of a list after ``to_device``) may be on either side or on both; samples of a side are then all alike. The host does not read them,
    but where destinations are in pageable memory, and in a graph each launch does. An id out of range leaves its pair out: no byte of it is
    written, and the next use of the list raises IndexError. What the ids choose is not compared: where an id occurs twice among destinations, or a
    destination is also read, which of them wins is not defined, as in ``index_put_``.

    All of them but CudaError are raised before a byte is written, with the position of the pair as ``.index``, ``.side``
    (``"destination"`` or ``"source"``; ``"destination"`` where the two do not fit; ``"scales_out"`` of the destinations of
    scales) and, in trees, ``.path``.

    Examples:
        >>> import windrow as wr
        >>> a, b = bytearray(2), bytearray(3)
        >>> wr.copy_many([a, b], [b"xy", b"abc"])
        >>> bytes(a), bytes(b)
        (b'xy', b'abc')
        >>> table = wr.stack([b"....", b"....", b"...."])
        >>> wr.copy_many(wr.SampleList(table).take([2, 0]), [b"last", b"head"])
        >>> [bytes(row) for row in table]
        [b'head', b'....', b'last']
        >>> model = {"w": memoryview(bytearray(8)).cast("f"), "n": bytearray(1)}
        >>> wr.copy_many(model, {"n": b"!", "w": [1, 2]})
        >>> model["w"].tolist(), model["n"]
        ([1.0, 2.0], bytearray(b'!'))
    """
def explain(samples: Union[_Samples, Iterable[Any]], form: _Form = "stack", **kwargs: Any) -> Explain:
    """Plans a call without running it: path, bytes read and written, tiles, launches, padding, bytes of an arena.

    Args:
        samples: as for the call.
        form (str): ``"stack"``, ``"concat"``, ``"pad"``, ``"ragged"``, ``"collate"`` or ``"copy_many"``, of which ``samples`` are the
            sources.
        kwargs: the arguments of that call, for ``"collate"`` also ``spec``, ``sep`` and ``arena``, for ``"copy_many"`` also ``dsts``.

    Returns:
        Explain: the plan.

    The call's errors for these arguments are raised.

    Examples:
        >>> import windrow as wr
        >>> wr.explain([b"abc", b"d"], "pad").as_dict()["padding_bytes"]
        2
        >>> tree = wr.explain([{"x": [1.5], "n": 1}], "collate", dtype="float32")
        >>> tree.names, tree.paths
        (['x.0', 'n'], ['cast', 'cast'])
        >>> wr.explain([b"ab", b"c"], "copy_many", dsts=[bytearray(2), bytearray(1)]).as_dict()["bytes_written"]
        3
    """
def asarray(x: _ArrayLike, /) -> Tensor:
    """A `Tensor` over the memory of any array-like. It keeps the array-like alive, and for a torch tensor the storage as well. If the
    owner moves the memory later, the next use of the tensor raises LayoutError, as for `SampleList`. Python numbers, and lists and
    tuples of them, are copied.

    Raises:
        TypeError: if ``x`` is not an array-like.
        LayoutError: if its memory cannot be expressed or is of foreign byte order, and for a torch tensor that requires grad while
            torch's grad mode is on.
    """
@final
class _Structure:
    """The containers of one tree."""

    def nodes(self) -> List[Any]:
        """Each container before its children: a list of its keys, or the number of its entries with whether they are in a tuple.
        None for each leaf.
        """
    def unflatten(self, leaves: List[Any]) -> Any:
        """The same containers with the first of these leaves, IndexError for too few. Classes that make only batches, as TensorDict
        and graphs do, are dicts.
        """

def _flatten(tree: Any, like: Any = None) -> Tuple[List[str], List[Any], List[Any], _Structure]:
    """Takes a tree apart. `like`: a tree with an entry for each of its own."""
def _leaf_tensors(leaves: List[Any], paths: List[str], name: str) -> List[Tuple[Tensor, str]]:
    """Leaves as tensors of the same memory, with the dtypes that they have in native byte order. `name`: of the tree that they are in."""
def _leaf_bytes(leaf: _ArrayLike, path: str, name: str) -> Tensor:
    """A leaf's memory as uint8, not copied; LayoutError for a leaf that is not row-major without gaps. `name`: of the tree that it
    is in.
    """
def _copy_leaves(
    dsts: List[Any],
    srcs: List[Any],
    paths: List[str],
    engine: Optional[Engine] = None,
    numbers: Optional[List[int]] = None,
) -> None:
    """`copy_many` of leaves with these paths; errors say `numbers` in place of positions, if there are some."""
def _copy_parts(
    dsts: List[Any], buffer: _ArrayLike, parts: List[Tuple[str, _Shape, int]], num_bytes: int, paths: Sequence[str]
) -> bool:
    """Does what `_copy_leaves` does, from row-major parts of the bytes of `buffer`, each with its dtype, shape and first byte.
    Returns False and does nothing if `buffer` is not in pageable memory of the host. ValueError for fewer bytes than `num_bytes`,
    DTypeError and LayoutError as for `_parts`.
    """
def _check_leaves(dsts: List[Any], srcs: List[Any], paths: List[str], numbers: List[int]) -> None:
    """Refuses the pairs that `_copy_leaves` refuses, and writes nothing; borrowed tensors that are read-only pass as destinations."""
def _places(parts: Sequence[Tuple[str, _Shape]], align: int) -> Tuple[List[Tuple[str, int, int]], int]:
    """The dtype, first byte and size of each tensor in one buffer, and where the last one ends, in bytes. `parts`: the dtype and
    shape of each. `align`: what the first bytes are multiples of. ValueError beyond 63 bits, and for an `align` of 0 beside a
    tensor.
    """
@final
class _Staging:
    """Two blocks of host memory in turn, and one of a device.

    Without a `device` that is the engine's, else the first CUDA device, else the host. Each block has `num_bytes` bytes and is
    zeroed, that of a device in the order of the engine's stream.
    """

    def __new__(cls, num_bytes: int, device: Optional[_Device] = None, engine: Optional[Engine] = None) -> "_Staging": ...
    @property
    def hosts(self) -> Tuple[Tensor, Tensor]:
        """The blocks of the host."""
    @property
    def device(self) -> Tensor:
        """The block of the device."""
    @property
    def turn(self) -> int:
        """The number of the block of the host that no copy reads."""
    def upload(self, stream: Optional[_Stream] = None) -> None:
        """Waits for the copy of the other block, enqueues the copy of this one on `stream`, or torch's current one, else one of the
        engine's, and gives the turn to the other one. Without a device the bytes are copied when it returns, and a `stream` is a
        ValueError. After an error the turn stays.
        """

def _device_name(device: _Device) -> str:
    """The name of a device as tensors have it; ValueError for a text that is none."""
def _unwritten(num_bytes: int, device: _Device, engine: Optional[Engine]) -> Tensor:
    """New memory of the engine's, uint8 `[num_bytes]`, uninitialised: the caller writes each byte before it gives the tensor on."""
def _parts(
    buffer: _ArrayLike, parts: List[Tuple[str, _Shape, int]], num_bytes: int, name: str
) -> List[Tensor]:
    """Row-major views of bytes, each with its dtype, shape and first byte. `num_bytes`: how many there are at least, else
    ValueError; `name`: of the argument that has them. DTypeError for a buffer that is not uint8, LayoutError for a part beyond
    its end.
    """
def _tensor_of_bytes(memory: _ArrayLike, dtype: _DType, shape: Sequence[int], device: Optional[str] = None) -> Tensor:
    """The tensor of this dtype and shape that bytes hold, from the first one on, in their memory; in a copy if they are on the host and
    `device` is given. LayoutError where these are too few, DeviceError for a device that is not there.
    """
def _batch_of_fields(
    arena: Optional[Tensor],
    fields: Dict[str, Any],
    parts: Tuple[List[int], bytes],
    num_samples: int,
    max_length: Optional[int],
) -> Batch:
    """The batch that `reduce_batch` took apart. ValueError for parts without data or with a field that batches do not have."""
def _list_of_groups(groups: List[Tuple[Union[Tensor, str], Optional[bytes], Optional[bytes]]]) -> SampleList:
    """The list of the groups of [`reduce_list`], each sample at its position. Without any positions the samples keep the order of
    the groups. ValueError for positions that do not name each sample once.
    """
def _list_of_trees(like: Any, columns: List[Any], len: int) -> SampleList:
    """The list of `len` trees of the structure of `like`. A column is a `SampleList` of a leaf's tensors, or a Python list of its
    other objects. ValueError for another number or kind of columns, or a column of another number of samples.
    """
def _check_options(form: str, /, **arguments: Any) -> None:
    """Raises what a call of ``form`` with these arguments would, without samples."""
def _check_list(samples: Any) -> None:
    """Refuses a mapping, a table of columns, a sparse matrix or text as a list of samples; anything else passes, an array too."""
def _is_arrow(object: Any, /) -> bool:
    """Whether an object, not a class, is to be read as Arrow's: it has one of the methods, and no better route is known. A pandas Series
    of objects is not: pyarrow would cast all of them to one type that it infers.
    """
def _arrow_columns(table: Any, /) -> Dict[str, SampleList]:
    """The columns of a table by name, those of structs by their names joined by a dot, as lists of
    samples. DTypeError for a column of strings or bytes, ValueError for two columns of one name.
    """
def _relax_captures() -> None:
    """Lets CUDA calls that would end another thread's capture be made on this thread from now on, by whatever library: they do not
    touch what is captured. Does nothing without a driver.
    """
def _streaming_stores() -> Tuple[str, str]:
    """Returns which outputs are written around the caches, as a text for `Engine`, and the source of that choice."""
def _calibration_file(name: Optional[str] = None) -> Optional[str]:
    """The file that ``python -m windrow calibrate`` writes of the processor, or of a device and driver of this name; it need not
    exist. None: the user has no cache folder.
    """
def _page_copies(ordinal: int) -> Optional[str]:
    """Returns from which size in bytes on page-locked pairs go to a device by its copy engine, by their number; None: it
    was not measured.
    """
def _set_page_copies(ordinal: int, text: Optional[str]) -> None:
    """Has all pairs of a device go by this text, or by None as if it had not been measured. ValueError for another text."""
def _reads_page_locked(ordinal: int) -> bool:
    """Whether kernels of a device read page-locked memory as the host has it; under confidential computing they do not, and what lies
    there is copied. Starts the driver. CudaUnavailable or CudaError: the device cannot be used.
    """
def _private_layouts() -> List[Tuple[str, str]]:
    """Name and version of CPython, and of torch if it is imported, each with whether its layouts are read: "on", or "off"
    and why.
    """
def _has_tangent(tensor: Any) -> bool:
    """Whether a torch tensor has a tangent of forward-mode AD, which neither `no_grad` nor inference mode take from it. There is none
    outside of a level of dual tensors; a torch that does not say so is asked for the tangent.
    """
def _add_per_sample(batch: _ArrayLike, offsets: Any, starts: Any, dim: int, path: str) -> None:
    """Adds to each sample's part of a batch a number of its own, in place, on the host.

    Args:
        batch: row-major, of integers or real numbers, in memory that nothing else uses meanwhile.
        offsets: where the samples begin along `dim`, and where the last one ends.
        starts: one for each sample, or one for each block before `dim`, sample by sample.
        path: of the leaf, for errors.

    Raises:
        DTypeError: a sum that the dtype does not hold, or a dtype that has no sums.
        LayoutError: memory that is read-only or has gaps. DeviceError: memory of a device.
        ValueError: `offsets` or `starts` that do not fit the batch.

    The batch is then as it was.
    """
def _patterns_of(patterns: Sequence[str], paths: Sequence[str], /) -> List[Optional[int]]:
    """The position of the pattern of each path among the keys of a spec, or None."""
def _pad_columns(
    features: Any,
    keys: Dict[str, str],
    values: Dict[str, float],
    options: Optional[Dict[str, Any]],
    masked: Optional[str],
    int64: bool,
    /,
) -> Dict[str, Batch]:
    """The columns of `pad_tokens` without the mask: by name, every column padded, and columns of single numbers stacked.
    ``keys``: of the features, by name; ``values``: of padding, by name; ``options``: of `pad`, None to stack all;
    ``masked``: the column that has a mask, int64 as what tokenizers give; ``int64``: all columns are cast to it.
    """
def _join_graphs(
    graphs: Any, dims: Dict[str, int], steps: Mapping[str, Union[str, Sequence[int]]], nodes: Union[str, Sequence[int]], follow: Sequence[str], /
) -> Dict[str, Any]:
    """Joins graphs; ValueError for none, KeyError for a graph without a key of `dims`.

    Args:
        graphs: mappings of array-likes.
        dims: by key, the dim that the entry is joined along; negative ones count from the end.
        steps: by key, what a graph raises the values of later ones by: a number for each graph, ``"nodes"``, or
            ``"ends"``, one more than its largest value. Entries without a key here are not raised.
        nodes: the key whose length is the number of nodes, or the numbers.
        follow: keys that get ``<key>_batch`` and ``<key>_ptr``.

    Returns:
        dict: a batch by key; tensors under ``batch``, ``ptr`` and those of ``follow``.
    """
def _pack_columns(
    features: Any, ids: str, labels: Optional[str], separator: int, start: int, wants_index: bool, /
) -> Tuple[Tensor, Tensor, Tensor, Optional[Tensor], Tensor, int]:
    """The columns of `pack_tokens`: ids, labels, positions and perhaps the sample of each, int64 and int32 ``[1, total]``;
    where each sequence begins, int32 ``[N + 1]``; and the length of the longest. ``separator``: the label of each first token;
    ``start``: the first position of each sequence. ValueError without features, and beyond int32.
    """
def _pack_rows_of(
    features: Any,
    ids: str,
    labels: Optional[str],
    counts: Sequence[int],
    max_tokens: int,
    pads: Tuple[int, int, int],
    /,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The columns of `pack_rows`: ids, labels, positions and segments, int64 ``[B, max_tokens]``, and the boundaries of all
    sequences and of the padding behind them, int32. In each row positions count from 0 within a sequence and segments from 1;
    padding has 0 in both. ``counts``: the samples of each row, which follow each other; ``pads``: what pads ids, what pads labels,
    and the label of a sequence's first token. ValueError for a row beyond ``max_tokens``, and for rows beyond int32. That counts
    add up to the number of samples is not checked: samples left over are left out, and a count beyond what is left takes that.
    """
def _import_route(object: Any) -> str:
    """How objects of this type are read: ``"tensor"``, a batch too, ``"number"``, a NumPy scalar too, ``"row"``, ``"exchange"``,
    ``"array"``, ``"array struct"`` or, all others, ``"protocols"``.
    """
def cuda_available() -> bool:
    """Whether there is a CUDA device to assemble batches on. Starts the driver: from then on, worker
    processes that use it must be spawned, not forked.
    """
def devices() -> List[_DeviceInfo]:
    """The values of ``device=`` on this machine, a list of dicts with ``device`` (``"cpu"``; with a GPU also ``"pinned"`` and
    ``"cuda:0"``) and ``name``; for CUDA devices also ``index``, ``compute_capability`` (a tuple of two ints), ``multiprocessors``
    and ``total_memory`` (bytes). Starts the driver, as `cuda_available` does.
    """
def _cuda_build() -> _CudaBuild:
    """``toolkit``, ``targets`` of the kernels and ``driver`` (newest CUDA version it supports).

    Raises:
        CudaUnavailable: with the reason and the cure.
    """
def _observers() -> _Observers:
    """The observers of calls: ``logging`` (a bool, see `set_logging`) and ``nvtx`` (None if ranges go to
    a profiler, else the reason why not).
    """
def set_logging(enabled: bool = True) -> None:
    """Turns reports to ``logging`` on or off: a record of level DEBUG for each stage, to the loggers
    ``windrow.import``, ``windrow.plan``, ``windrow.run``, ``windrow.launch``, ``windrow.wait`` and
    ``windrow.export``. The program sets their levels and handlers. The dict ``record.windrow`` has ``stage``, ``seconds`` and, for a
    run, ``paths``, ``samples``, ``bytes_in``, ``bytes_out`` and ``padding_bytes``.

    Off by default, unless ``WINDROW_LOG`` in the environment is neither empty nor 0; records then also go to stderr if there is no
    handler. Each call emits its records when its work is done, on the calling thread; exceptions of a handler do not reach the caller.

    Args:
        enabled (bool): whether calls report.

    Examples:
        >>> import logging, windrow as wr
        >>> logging.getLogger("windrow").setLevel(logging.DEBUG)
        >>> wr.set_logging(True)
        >>> wr.set_logging(False)
    """
def stats() -> Stats:
    """Counters of the default engine since it was made or since `reset_stats`. The seconds are measured from the first call of `stats`
    or `reset_stats` on.

    Returns:
        Stats: an attribute for each counter. It prints as a table, and is a mapping of the same names.

    Examples:
        >>> import windrow as wr
        >>> wr.reset_stats()
        >>> batch = wr.pad([[1.5], [2.5, 3.5]])
        >>> stats = wr.stats()
        >>> stats.samples, stats.padding_waste, stats["samples"]
        (2, 0.25, 2)
    """
def reset_stats() -> None:
    """Sets the counters of the default engine to 0, except ``pool_hits``, ``pool_misses``, ``workers`` and the bytes at present. Times are measured
    from then on.
    """
def empty_cache() -> None:
    """Gives the default engine's free output memory back to the system and the devices, for which it
    waits, and releases samples that were still being read. So goes the memory of workers that have ended, which the next ones
    could have taken over.
    """

def windows(array: _ArrayLike, starts: _ArrayLike, length: int) -> SampleList:
    """Windows of one array, ``array[start:start + length]`` for each start, with no Python object for each of them.

    Args:
        array: an array-like ``[T, ...]``, or ``[T]``; windows can overlap.
        starts: an integer array-like ``[N]``; none below 0.
        length: of every window, along dim 0.

    Returns:
        SampleList: N samples of the shape ``(length, ...)``, views of the array.

    Raises:
        ShapeError: a window reaches beyond the array (names its index), or the array has no dims.
        ValueError: ``length`` is negative. TypeError: ``starts`` are not integers of one dim.

    Example:
        >>> import windrow as wr
        >>> wr.stack(wr.windows(b"abcdef", [0, 1, 3], 3)).numpy().tolist()
        [[97, 98, 99], [98, 99, 100], [100, 101, 102]]
    """
def crops(
    images: _Samples,
    boxes: _ArrayLike,
    *,
    dims: Union[Sequence[int], _ArrayLike] = (0, 1),
    flip: Union[bool, Sequence[bool], _ArrayLike, None] = None,
) -> SampleList:
    """Crops of images, one for each image, with no Python object for each of them.

    Args:
        images: a list of array-likes, a `SampleList`, or one array whose rows along dim 0 are the images.
        boxes: an integer array-like ``[N, 4]``: left, top, right, bottom, in pixels, right and bottom not included,
            as in ``PIL.Image.crop`` and torchvision's boxes.
        dims: the dims of height and width; ``(1, 2)`` for CHW.
        flip: booleans ``[N]``, or one for all: True mirrors the crop from left to right.

    Returns:
        SampleList: views of the images. `stack` takes crops of one size, `pad` any.

    Raises:
        ShapeError: a box reaches beyond its image (names its index), or there are more or fewer boxes than images.
        TypeError: ``boxes`` are not integers of two dims, or ``flip`` is not bools of one dim.
        ValueError: ``dims`` are not two dims of the images, or ``flip`` has another number of entries than there are images.

    Example:
        >>> import numpy as np
        >>> import windrow as wr
        >>> image = np.arange(12).reshape(3, 4)
        >>> wr.stack(wr.crops([image, image], [[0, 0, 2, 2], [2, 1, 4, 3]], flip=[False, True])).numpy().tolist()
        [[[0, 1], [4, 5]], [[7, 6], [11, 10]]]
    """
def _pack(
    lengths: Any, max_tokens: int, how: str, max_sequences: Optional[int]
) -> Tuple[Tensor, List[int], int, float]:
    """`pack` of `windrow.plan`. ValueError for an unknown `how`, a `max_sequences` of 0 and a length that is negative or above
    `max_tokens`.
    """
def _token_budget(
    lengths: Any, max_tokens: int, pad_to_multiple_of: int, max_sequences: Optional[int]
) -> Tuple[Tensor, List[int], int, float]:
    """`token_budget` of `windrow.plan`. ValueError for a `pad_to_multiple_of` or `max_sequences` below 1 and for a length that is
    negative or, rounded up, above `max_tokens`.
    """
def _buckets(
    lengths: Any, batch_size: int, boundaries: Any, drop_last: bool, seed: Optional[int]
) -> Tuple[Tensor, List[int], int, float]:
    """`buckets` of `windrow.plan`. ValueError for a `batch_size` of 0, a negative length and boundaries that do not increase."""
def _balance(lengths: Any, num_ranks: int, seed: Optional[int]) -> Tuple[Tensor, List[int], int, float]:
    """`balance` of `windrow.plan`: a list of indices for each rank. ValueError for no ranks and a negative length."""

# Linux alone has these.
@final
class _Parcel:
    """The tensors of a message. Those that are not in the pool are copied there as it is sent."""

    def __new__(cls) -> _Parcel: ...
    def add(self, tensor: Any, may_copy: bool) -> Optional[int]:
        """Adds a torch tensor; its position in the message. None: it is to be sent as torch does, since it requires grad, is not
        dense in pageable memory, or is not in the pool and `may_copy` is false or `storage_of` gives none.
        """
    def send(self, limit: int) -> Optional[_Sent]:
        """The message. None: there is no pool, no room for the copies below the limit of bytes, or no claim for a block, and nothing
        is sent. MemoryError: the system has no memory.
        """

@final
class _Sent:
    """A message on its way. If it is dropped before it is taken, its blocks are free again."""

    def take(self) -> bytes:
        """The message, once; RuntimeError after that."""

def _start_pool(limit: int) -> None:
    """Makes the pool of this process, which has none yet, for at most `limit` bytes; or takes over,
    whatever the limit, one of the parent's whose worker has ended. OSError: the system refuses.
    """
def _has_pool() -> bool: ...
def _close_pool(is_left: bool) -> None:
    """Ends the pool of this process: what was sent and not read is lost. `is_left`: its memory is kept for a worker that the reader
    forks.
    """
def _empty_pools() -> None:
    """Gives back the memory of workers that have ended, but for what is in use."""
def _pool_file() -> Optional[int]:
    """The descriptor of the pool of this process, which the pool keeps and closes. None: there is no
    pool, a reader has mapped it, or it was taken over from another worker.
    """
def _allocate_in_pool(outputs: Sequence[Tuple[str, Sequence[int]]], limit: int) -> Optional[List[Tensor]]:
    """Tensors of these dtypes and shapes in the pool, not initialised. None: there is no room below the limit of bytes, or windrow
    has no such dtype. MemoryError: the system has no memory.
    """
def _receive(message: bytes, file: Any) -> List[Any]:
    """The tensors of a message, of torch, in the memory of the worker's pool. `file`: None, or what gives the descriptor of that
    pool by its `detach`, where the system does not. RuntimeError: the message is broken or was read before, or that memory is
    gone.
    """
def _page_locked(tensor: Any, ordinal: int) -> Optional[Tensor]:
    """The elements of a torch tensor, of the same memory, page-locked, for a copy to this device and no more. None: the tensor is in
    no block of a worker process, or its block cannot be page-locked.
    """
def _page_lock_refusal() -> Optional[str]:
    """Why memory of worker processes could not be page-locked. None: that was not tried, or not refused."""
def _try_page_lock(ordinal: int) -> None:
    """Page-locks some memory as that of worker processes is, and lets it go.

    Raises:
        CudaError, CudaUnavailable: it cannot be page-locked.
    """
def _hold_copies(tensors: Sequence[Tensor], ordinal: int, stream: int) -> None:
    """Keeps page-locked tensors, and so their blocks, until the work that is on the stream now has ended. Does not wait. `stream` is
    a handle of a live stream of this device, which is not checked.
    """
