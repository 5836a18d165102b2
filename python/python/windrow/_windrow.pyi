"""Types of the compiled part. Runtime docstrings hold shapes, dtypes, errors and examples."""

from typing import (
    Any,
    ClassVar,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    SupportsIndex,
    Tuple,
    TypedDict,
    Union,
    final,
    overload,
)

__version__: str

_Number = Union[bool, int, float, complex]
_PerDim = Union[int, Sequence[int]]
_Shape = Tuple[int, ...]
# Anything with __dlpack__, the buffer protocol, __array_interface__ and the like, and Python numbers:
# there is no type for all of them.
_ArrayLike = Any
_DType = Any
_Samples = Union["SampleList", "Tensor", Iterable[_ArrayLike]]
# A name, or whatever prints as one, such as a torch.device.
_Device = Any
# A handle, a torch or CuPy stream, anything with __cuda_stream__.
_Stream = Any
_AnyTransform = Union["Transform", "Quantize", "Dequantize"]

class _Mismatch:
    index: Optional[int]
    path: str
    expected: Any
    got: Any
    side: Optional[str]

class ShapeError(ValueError, _Mismatch): ...
class DTypeError(TypeError, _Mismatch): ...
class DeviceError(ValueError, _Mismatch): ...
class LayoutError(BufferError, _Mismatch): ...
class CudaError(RuntimeError):
    function: Optional[str]
    code: Optional[int]
    name: Optional[str]

class CudaUnavailable(RuntimeError): ...

class _TensorLike:
    __dlpack_c_exchange_api__: ClassVar[Any]
    @property
    def shape(self) -> _Shape: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def ndim(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def data_ptr(self) -> int: ...
    def numpy(self) -> Any: ...
    def torch(self) -> Any: ...
    def jax(self) -> Any: ...
    def __jax_array__(self) -> Any: ...
    def cupy(self) -> Any: ...
    def __len__(self) -> int: ...
    def __dlpack__(
        self,
        *,
        stream: Optional[int] = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> Tuple[int, int]: ...
    @property
    def __array_interface__(self) -> Dict[str, Any]: ...
    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]: ...
    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any: ...
    def __reduce_ex__(self, protocol: Any, /) -> Any: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Tensor(_TensorLike):
    @property
    def strides(self) -> _Shape: ...
    def __int__(self) -> int: ...
    def __float__(self) -> float: ...
    def __complex__(self) -> complex: ...
    def __bytes__(self) -> bytes: ...
    def __index__(self) -> int: ...
    def __bool__(self) -> bool: ...

@final
class Batch(_TensorLike):
    @property
    def data(self) -> Tensor: ...
    @property
    def lengths(self) -> Optional[Tensor]: ...
    @property
    def offsets(self) -> Optional[Tensor]: ...
    @property
    def mask(self) -> Optional[Tensor]: ...
    @property
    def batch_index(self) -> Optional[Tensor]: ...
    @property
    def scales(self) -> Optional[Tensor]: ...
    @property
    def arena(self) -> Optional[Tensor]: ...
    @property
    def arena_layout(self) -> Optional[Dict[str, Tuple[str, _Shape, int]]]: ...
    @property
    def max_length(self) -> Optional[int]: ...
    def __getitem__(self, index: int, /) -> Tensor: ...
    def __iter__(self) -> Iterator[Tensor]: ...
    def check(self) -> None: ...
    def __arrow_c_array__(self, requested_schema: Any = None) -> Tuple[Any, Any]: ...
    def nested(self) -> Any: ...

@final
class SampleList:
    def __new__(cls, samples: Optional[_Samples] = None) -> "SampleList": ...
    @staticmethod
    def split(values: _ArrayLike, offsets: _ArrayLike, shapes: Optional[_ArrayLike] = None) -> "SampleList": ...
    def take(self, indices: _ArrayLike) -> "SampleList": ...
    def to_device(self, device: _Device) -> "SampleList": ...
    def stack(
        self,
        indices: _ArrayLike,
        *,
        dtype: _DType = None,
        device: Optional[_Device] = None,
        out: Any = None,
        stream: Optional[_Stream] = None,
        transform: Optional[_AnyTransform] = None,
        saturate: bool = False,
        copy: Optional[bool] = True,
        engine: Optional[Engine] = None,
    ) -> Batch: ...
    def append(self, sample: _ArrayLike) -> None: ...
    def extend(self, samples: _Samples) -> None: ...
    def __len__(self) -> int: ...
    @overload
    # A Tensor, or a tree of them.
    def __getitem__(self, index: SupportsIndex, /) -> Any: ...
    @overload
    def __getitem__(self, index: slice, /) -> "SampleList": ...
    def __setitem__(self, index: SupportsIndex, sample: _ArrayLike, /) -> None: ...
    def __reduce_ex__(self, protocol: Any, /) -> Any: ...
    def __copy__(self) -> "SampleList": ...

@final
class Quantize:
    def __new__(
        cls,
        dtype: _DType,
        scale: Union[str, int, None] = "row",
        scale_dtype: _DType = "float32",
        eps: float = 1e-12,
    ) -> "Quantize": ...
    def __getnewargs_ex__(self) -> Tuple[Tuple[()], Dict[str, Any]]: ...

@final
class Dequantize:
    def __new__(cls, scales: Any, block: Optional[int] = None) -> "Dequantize": ...
    def __getnewargs__(self) -> Tuple[Any, Optional[int]]: ...

@final
class Transform:
    def __new__(
        cls,
        scale: float = 1.0,
        mean: Union[float, Sequence[float], None] = None,
        std: Union[float, Sequence[float], None] = None,
        channel_dim: Optional[int] = None,
        permute: Optional[Sequence[int]] = None,
    ) -> "Transform": ...
    def __getnewargs_ex__(self) -> Tuple[Tuple[()], Dict[str, Any]]: ...

class _Stats(TypedDict):
    batches: int
    samples: int
    moves: int
    bytes_in: int
    bytes_out: int
    data_bytes: int
    padding_bytes: int
    padding_waste: float
    paths: Dict[str, int]
    views: int
    launches: int
    bytes_to_device: int
    bytes_to_host: int
    waits: int
    import_seconds: float
    plan_seconds: float
    run_seconds: float
    wait_seconds: float
    pool_bytes: int
    pool_used_bytes: int
    pool_hits: int
    pool_misses: int
    device_bytes: int
    lent_bytes: int
    pinned_bytes: int
    pinned_used_bytes: int

class _AllStats(_Stats):
    workers: Dict[str, int]

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
    def __new__(
        cls,
        threads: Optional[int] = None,
        device: Optional[_Device] = None,
        pool_bytes: Optional[int] = None,
        streaming_stores: Optional[str] = None,
    ) -> "Engine": ...
    @property
    def threads(self) -> int: ...
    def stats(self) -> _Stats: ...
    def reset_stats(self) -> None: ...
    def empty_cache(self) -> None: ...

@final
class Explain:
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
    def as_dict(self) -> Dict[str, Any]: ...

def stack(
    samples: _Samples,
    *,
    dtype: _DType = None,
    device: Optional[_Device] = None,
    out: Optional[_ArrayLike] = None,
    stream: Optional[_Stream] = None,
    transform: Optional[_AnyTransform] = None,
    saturate: bool = False,
    copy: Optional[bool] = True,
    engine: Optional[Engine] = None,
) -> Batch: ...
def concat(
    samples: _Samples,
    *,
    dim: int = 0,
    dtype: _DType = None,
    device: Optional[_Device] = None,
    out: Optional[_ArrayLike] = None,
    stream: Optional[_Stream] = None,
    transform: Optional[_AnyTransform] = None,
    saturate: bool = False,
    copy: Optional[bool] = True,
    engine: Optional[Engine] = None,
) -> Batch: ...
def pad(
    samples: _Samples,
    *,
    value: _Number = 0,
    side: Union[str, Sequence[str]] = "right",
    dims: Optional[_PerDim] = None,
    size: Union[int, Sequence[Optional[int]], None] = None,
    multiple_of: _PerDim = 1,
    truncate: bool = False,
    mask: Optional[str] = None,
    mask_dtype: _DType = "bool",
    dtype: _DType = None,
    device: Optional[_Device] = None,
    out: Optional[_ArrayLike] = None,
    stream: Optional[_Stream] = None,
    transform: Optional[_AnyTransform] = None,
    saturate: bool = False,
    copy: Optional[bool] = True,
    engine: Optional[Engine] = None,
) -> Batch: ...
def ragged(
    samples: _Samples,
    *,
    offsets_dtype: _DType = "int64",
    batch_index: bool = False,
    dtype: _DType = None,
    device: Optional[_Device] = None,
    out: Optional[_ArrayLike] = None,
    stream: Optional[_Stream] = None,
    transform: Optional[_AnyTransform] = None,
    saturate: bool = False,
    copy: Optional[bool] = True,
    engine: Optional[Engine] = None,
) -> Batch: ...
def collate(
    samples: Union[SampleList, Iterable[Any]],
    spec: Any = None,
    *,
    sep: str = ".",
    arena: bool = False,
    dtype: _DType = None,
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
) -> Any: ...
def copy_many(
    dsts: Any,
    srcs: Any,
    *,
    transform: Optional[_AnyTransform] = None,
    scales_out: Any = None,
    stream: Optional[_Stream] = None,
    engine: Optional[Engine] = None,
    max_blocks: Optional[int] = None,
) -> None: ...
def explain(samples: Union[_Samples, Iterable[Any]], form: str = "stack", **arguments: Any) -> Explain: ...
def asarray(x: _ArrayLike, /) -> Tensor: ...
@final
class _Structure:
    def nodes(self) -> List[Any]: ...
    def unflatten(self, leaves: List[Any]) -> Any: ...

def _flatten(tree: Any, like: Any = None) -> Tuple[List[str], List[Any], List[Any], _Structure]: ...
def _leaf_tensors(leaves: List[Any], paths: List[str], name: str) -> List[Tuple[Tensor, str]]: ...
def _leaf_bytes(leaf: _ArrayLike, path: str, name: str) -> Tensor: ...
def _copy_leaves(
    dsts: List[Any],
    srcs: List[Any],
    paths: List[str],
    engine: Optional[Engine] = None,
    numbers: Optional[List[int]] = None,
) -> None: ...
def _copy_parts(
    dsts: List[Any], buffer: _ArrayLike, parts: List[Tuple[str, _Shape, int]], num_bytes: int, paths: Sequence[str]
) -> bool: ...
def _check_leaves(dsts: List[Any], srcs: List[Any], paths: List[str], numbers: List[int]) -> None: ...
def _places(parts: List[Tuple[_DType, _Shape]], align: int) -> Tuple[List[Tuple[str, int, int]], int]: ...
@final
class _Staging:
    def __new__(cls, num_bytes: int, device: Optional[_Device] = None, engine: Optional[Engine] = None) -> "_Staging": ...
    @property
    def hosts(self) -> Tuple[Tensor, Tensor]: ...
    @property
    def device(self) -> Tensor: ...
    @property
    def turn(self) -> int: ...
    def upload(self, stream: Optional[_Stream] = None) -> None: ...

def _unwritten(num_bytes: int, device: _Device, engine: Optional[Engine]) -> Tensor: ...
def _parts(
    buffer: _ArrayLike, parts: List[Tuple[str, _Shape, int]], num_bytes: int, name: str
) -> List[Tensor]: ...
def _tensor_of_bytes(memory: _ArrayLike, dtype: _DType, shape: Sequence[int]) -> Tensor: ...
def _batch_of_fields(
    arena: Optional[Tensor],
    fields: Dict[str, Any],
    parts: Tuple[List[int], bytes],
    num_samples: int,
    max_length: Optional[int],
) -> Batch: ...
def _list_of_groups(groups: List[Tuple[Union[Tensor, str], Optional[bytes], Optional[bytes]]]) -> SampleList: ...
def _list_of_trees(like: Any, columns: List[Any], len: int) -> SampleList: ...
def _check_options(form: str, /, **arguments: Any) -> None: ...
def _check_list(samples: Any) -> None: ...
def _is_arrow(object: Any, /) -> bool: ...
def _arrow_columns(table: Any, /) -> Dict[str, SampleList]: ...
def _relax_captures() -> None: ...
def _streaming_stores() -> Tuple[str, str]: ...
def _calibration_file(name: Optional[str] = None) -> Optional[str]: ...
def _page_copies(ordinal: int) -> Optional[str]: ...
def _set_page_copies(ordinal: int, text: Optional[str]) -> None: ...
def _reads_page_locked(ordinal: int) -> bool: ...
def _private_layouts() -> List[Tuple[str, str]]: ...
def _has_tangent(tensor: Any) -> bool: ...
def _add_per_sample(batch: _ArrayLike, offsets: Any, starts: Any, dim: int, path: str) -> None: ...
def _patterns_of(patterns: Sequence[str], paths: Sequence[str], /) -> List[Optional[int]]: ...
def _pad_columns(
    features: Any,
    keys: Dict[str, str],
    values: Dict[str, float],
    options: Optional[Dict[str, Any]],
    masked: Optional[str],
    int64: bool,
    /,
) -> Dict[str, Batch]: ...
def _join_graphs(
    graphs: Any, dims: Dict[str, int], steps: Mapping[str, Union[str, Sequence[int]]], nodes: Union[str, Sequence[int]], follow: Sequence[str], /
) -> Dict[str, Any]: ...
def _pack_columns(
    features: Any, ids: str, labels: Optional[str], separator: int, start: int, wants_index: bool, /
) -> Tuple[Tensor, Tensor, Tensor, Optional[Tensor], Tensor, int]: ...
def _pack_rows_of(
    features: Any,
    ids: str,
    labels: Optional[str],
    counts: Sequence[int],
    max_tokens: int,
    pads: Tuple[int, int, int],
    /,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]: ...
def _import_route(object: Any) -> str: ...
def cuda_available() -> bool: ...
def devices() -> List[_DeviceInfo]: ...
def _cuda_build() -> _CudaBuild: ...
def _observers() -> _Observers: ...
def set_logging(enabled: bool = True) -> None: ...
def stats() -> _AllStats: ...
def reset_stats() -> None: ...
def empty_cache() -> None: ...

def windows(array: _ArrayLike, starts: _ArrayLike, length: int) -> SampleList: ...
def crops(
    images: _Samples,
    boxes: _ArrayLike,
    *,
    dims: Union[Sequence[int], _ArrayLike] = (0, 1),
    flip: Union[bool, Sequence[bool], _ArrayLike, None] = None,
) -> SampleList: ...
def _pack(
    lengths: Any, max_tokens: int, how: str, max_sequences: Optional[int]
) -> Tuple[List[List[int]], int, float]: ...
def _token_budget(
    lengths: Any, max_tokens: int, pad_to_multiple_of: int, max_sequences: Optional[int]
) -> Tuple[List[List[int]], int, float]: ...
def _buckets(
    lengths: Any, batch_size: int, boundaries: Any, drop_last: bool, seed: Optional[int]
) -> Tuple[List[List[int]], int, float]: ...
def _balance(lengths: Any, num_ranks: int, seed: Optional[int]) -> Tuple[List[List[int]], int, float]: ...

# Linux alone has these.
@final
class _Parcel:
    def __new__(cls) -> _Parcel: ...
    def add(self, tensor: Any, may_copy: bool) -> Optional[int]: ...
    def send(self, limit: int) -> Optional[_Sent]: ...

@final
class _Sent:
    def take(self) -> bytes: ...

def _start_pool(limit: int) -> None: ...
def _has_pool() -> bool: ...
def _close_pool(is_left: bool) -> None: ...
def _empty_pools() -> None: ...
def _pool_file() -> Optional[int]: ...
def _allocate_in_pool(outputs: Sequence[Tuple[str, Sequence[int]]], limit: int) -> Optional[List[Tensor]]: ...
def _receive(message: bytes, file: Any) -> List[Any]: ...
def _page_locked(tensor: Any, ordinal: int) -> Optional[Tensor]: ...
def _page_lock_refusal() -> Optional[str]: ...
def _try_page_lock(ordinal: int) -> None: ...
def _hold_copies(tensors: Sequence[Tensor], ordinal: int, stream: int) -> None: ...
