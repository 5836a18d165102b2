# Written by scripts/docs/stubs.py, from _windrow.pyi and spec.py.
"""Specs of `windrow.collate`: a form and its keyword arguments for a leaf."""

from typing import Any, ClassVar, Dict, Iterable, Literal, Optional, Sequence, SupportsIndex, Union

from windrow._windrow import (
    Engine,
    Explain,
    Transform,
    _AnyTransform,
    _DType,
    _DTypeObject,
    _Device,
    _Out,
    _PerDim,
    _Samples,
    _Side,
    _Value,
)

class _Spec:
    """Keyword arguments, checked when given."""

    form: ClassVar[str]
    __slots__ = ('kwargs',)
    kwargs: Dict[str, Any]
    def explain(self, samples: Union[_Samples, Iterable[Any]]) -> Explain:
        """The plan of samples assembled as this spec says, without running it: `windrow.explain` of its form and arguments.

        Examples:
            >>> import windrow as wr
            >>> wr.Pad(multiple_of=8).explain([[1, 2, 3], [4]]).padding_bytes
            96
        """
    def __repr__(self) -> str: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

class Stack(_Spec):
    """Spec of a leaf that is stacked. Takes the keyword arguments of `windrow.stack` but ``stream``, and raises its errors for wrong ones."""

    __slots__ = ()
    def __init__(
        self,
        *,
        dtype: Optional[_DType] = None,
        device: Optional[_Device] = None,
        out: Optional[_Out] = None,
        transform: Optional[_AnyTransform] = None,
        saturate: bool = False,
        copy: Optional[bool] = True,
        engine: Optional[Engine] = None,
    ) -> None: ...

class Concat(_Spec):
    """Spec of a leaf that is joined along a dim. Takes the keyword arguments of `windrow.concat` but ``stream``, and raises its errors."""

    __slots__ = ()
    def __init__(
        self,
        *,
        dim: SupportsIndex = 0,
        dtype: Optional[_DType] = None,
        device: Optional[_Device] = None,
        out: Optional[_Out] = None,
        transform: Optional[_AnyTransform] = None,
        saturate: bool = False,
        copy: Optional[bool] = True,
        engine: Optional[Engine] = None,
    ) -> None: ...

class Pad(_Spec):
    """Spec of a leaf that is padded. Takes the keyword arguments of `windrow.pad` but ``stream``, and raises its errors for wrong ones."""

    __slots__ = ()
    def __init__(
        self,
        *,
        value: _Value = 0,
        side: Union[_Side, Sequence[_Side]] = "right",
        dims: Optional[_PerDim] = None,
        size: Union[SupportsIndex, Sequence[Optional[SupportsIndex]], None] = None,
        multiple_of: _PerDim = 1,
        truncate: bool = False,
        mask: Optional[Literal['real', 'pad']] = None,
        mask_dtype: Union[Literal['bool', 'uint8', 'int32', 'int64', 'float16', 'float32'], _DTypeObject] = "bool",
        dtype: Optional[_DType] = None,
        device: Optional[_Device] = None,
        out: Optional[_Out] = None,
        transform: Optional[_AnyTransform] = None,
        saturate: bool = False,
        copy: Optional[bool] = True,
        engine: Optional[Engine] = None,
    ) -> None: ...

class Ragged(_Spec):
    """Spec of a leaf that becomes values and offsets. Takes the keyword arguments of `windrow.ragged` but ``stream``, and raises its errors."""

    __slots__ = ()
    def __init__(
        self,
        *,
        offsets_dtype: Union[Literal['int64', 'int32'], _DTypeObject] = "int64",
        batch_index: bool = False,
        dtype: Optional[_DType] = None,
        device: Optional[_Device] = None,
        out: Optional[_Out] = None,
        transform: Optional[_AnyTransform] = None,
        saturate: bool = False,
        copy: Optional[bool] = True,
        engine: Optional[Engine] = None,
    ) -> None: ...

class List(_Spec):
    """Spec of a leaf whose samples stay separate: a list of `Tensor` views of one allocation, of one dtype and any shapes.

    Args:
        dtype: as for `windrow.stack`.
        transform (Transform): as for `windrow.stack`, of each sample.

    `collate` raises DTypeError and DeviceError for samples that differ in it, and ValueError for ``copy=False`` and for an ``out`` that
    has anything but None at the leaf. In `windrow.torch.collate_fn` the tensors are torch's, in `windrow.jax.collate` arrays.

    Examples:
        >>> import windrow as wr
        >>> batch = wr.collate([{"x": [1, 2]}, {"x": [3]}], {"x": wr.List(dtype="float32")})
        >>> [memoryview(tensor).tolist() for tensor in batch["x"]]
        [[1.0, 2.0], [3.0]]
    """

    __slots__ = ()
    def __init__(self, dtype: Optional[_DType] = None, transform: Optional[Transform] = None) -> None: ...
    def explain(self, samples: Union[_Samples, Iterable[Any]]) -> Explain:
        """The plan of samples that stay separate, without running it: `windrow.explain` of ``"collate"`` with this spec."""
