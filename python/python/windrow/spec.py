"""Specs of `windrow.collate`: a form and its keyword arguments for a leaf."""

import inspect
from typing import Any, Callable, ClassVar, Dict, Optional

from windrow import _windrow
from windrow._windrow import Explain, Transform


class _Spec:
    """Keyword arguments, checked when given."""

    form: ClassVar[str]
    __slots__ = ("kwargs",)
    kwargs: Dict[str, Any]

    def explain(self, samples: Any) -> Explain:
        """The plan of samples assembled as this spec says, without running it: `windrow.explain` of its form and arguments.

        Examples:
            >>> import windrow as wr
            >>> wr.Pad(multiple_of=8).explain([[1, 2, 3], [4]]).padding_bytes
            96
        """
        return _windrow.explain(samples, self.form, **self.kwargs)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.kwargs.items())
        return f"{type(self).__name__}({arguments})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Spec) and self.form == other.form and self.kwargs == other.kwargs

    def __hash__(self) -> int:
        return hash((self.form, tuple(self.kwargs)))


def _init_of(form: str) -> Callable[..., None]:
    """The initialiser of a form's spec, with the signature of the call. Arguments that are not given stay those of `collate`, so it
    keeps those that are."""

    def __init__(self: _Spec, **kwargs: Any) -> None:
        if "stream" in kwargs:
            raise TypeError(f"wr.{type(self).__name__}: stream= is an argument of the call, as one stream writes all leaves")
        _windrow._check_options(form, **kwargs)
        # Lists and tuples are equal as arguments.
        self.kwargs = {name: tuple(value) if type(value) is list else value for name, value in kwargs.items()}

    call = inspect.signature(getattr(_windrow, form))
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes = [each for each in call.parameters.values() if each.kind is each.KEYWORD_ONLY and each.name != "stream"]
    __init__.__qualname__ = f"{form.capitalize()}.__init__"
    setattr(__init__, "__signature__", call.replace(parameters=[receiver, *takes]))
    return __init__


class Stack(_Spec):
    """Spec of a leaf that is stacked. Takes the keyword arguments of `windrow.stack` but ``stream``, and raises its errors for wrong ones."""

    form = "stack"
    __slots__ = ()
    __init__ = _init_of("stack")


class Concat(_Spec):
    """Spec of a leaf that is joined along a dim. Takes the keyword arguments of `windrow.concat` but ``stream``, and raises its errors."""

    form = "concat"
    __slots__ = ()
    __init__ = _init_of("concat")


class Pad(_Spec):
    """Spec of a leaf that is padded. Takes the keyword arguments of `windrow.pad` but ``stream``, and raises its errors for wrong ones."""

    form = "pad"
    __slots__ = ()
    __init__ = _init_of("pad")


class Ragged(_Spec):
    """Spec of a leaf that becomes values and offsets. Takes the keyword arguments of `windrow.ragged` but ``stream``, and raises its errors."""

    form = "ragged"
    __slots__ = ()
    __init__ = _init_of("ragged")


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

    form = "List"
    __slots__ = ()

    def __init__(self, dtype: Any = None, transform: Optional[Transform] = None) -> None:
        given = {"dtype": dtype, "transform": transform}
        self.kwargs = {name: value for name, value in given.items() if value is not None}
        _windrow._check_options(self.form, **self.kwargs)

    def explain(self, samples: Any) -> Explain:
        """The plan of samples that stay separate, without running it: `windrow.explain` of ``"collate"`` with this spec."""
        return _windrow.explain(samples, "collate", spec={"": self})
