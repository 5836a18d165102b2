"""torch's table of collate functions, and how each type is collated.

The table is private to torch: it is looked at in one place, and checked.
"""

from __future__ import annotations

import collections.abc
import dataclasses
from typing import Any, Callable, Dict, List, Tuple, Union

import torch
import torch.utils.data

from windrow import _nodes, _windrow

CollateFn = Callable[..., Any]
CollateMap = Dict[Union[type, Tuple[type, ...]], CollateFn]

# torch's module of collate functions, if it has one.
_collate = getattr(torch.utils.data._utils, "collate", None)

# The kinds of a type, in the order of `KINDS` in python/src/collate/torch.rs.
TENSOR, ARRAY, NUMBER, TEXT, MAPPING, NAMED, SEQUENCE, OTHER, STACKED, CLASS, FIELDS = range(11)

# Types made without end must not make a table grow with them.
MAX_TYPES = 1024


def find() -> Any:
    """torch's module of collate functions.

    Raises:
        RuntimeError: this torch lacks what windrow needs of it.
    """
    table = getattr(_collate, "default_collate_fn_map", None)
    if not isinstance(table, dict) or torch.Tensor not in table:
        raise RuntimeError(_unfit("no default_collate_fn_map"))
    lacking = [name for name in ("collate", "collate_str_fn", "collate_tensor_fn") if not callable(getattr(_collate, name, None))]
    if lacking:
        raise RuntimeError(_unfit(f"no {lacking[0]}()"))
    return _collate


def _unfit(reason: str) -> str:
    """The text of an error about torch's table."""
    return (
        f"torch {torch.__version__} has no table of collate functions that windrow understands ({reason}); "
        "torch 2.0 to 2.15 have one. windrow.collate does not need it"
    )


def numpy() -> Any:
    """NumPy, or None where it cannot be imported."""
    try:
        import numpy

        return numpy
    except ImportError:
        return None


def is_memmap(cls: type) -> bool:
    """Whether a class is tensordict's tensor in a file, of which ``torch.stack`` makes plain tensors."""
    return cls.__name__ == "MemoryMappedTensor" and cls.__module__.startswith("tensordict.")


class Types:
    """Kinds of types by the table as it was when this was made.

    Attributes:
        codes: by exact type, filled as types are met.
        table: torch's functions, without ours.
        seen: the table that this was made from.
    """

    def __init__(self, table: CollateMap, ours: Dict[CollateFn, CollateFn]) -> None:
        self.seen = dict(table)
        self.num_registered = _nodes.num_registered()
        self.table: CollateMap = {key: ours.get(fn, fn) for key, fn in self.seen.items()}
        self.codes: Dict[type, int] = {}
        module = find()
        np = numpy()
        arrays: Tuple[type, ...] = (np.ndarray, np.memmap) if np else ()
        numbers = (float, int, bool)
        # The fast path covers torch's own functions with exactly these types.
        self._known: List[Tuple[str, Tuple[type, ...], int]] = [
            ("collate_tensor_fn", (torch.Tensor,), TENSOR),
            ("collate_numpy_array_fn", arrays, ARRAY),
            ("collate_float_fn", numbers, NUMBER),
            ("collate_int_fn", numbers, NUMBER),
            ("collate_str_fn", (object,), TEXT),
        ]
        self._module = module

    def classify(self, elem: Any) -> int:
        """The code of a sample's type, which is remembered, but for a class that nothing is known of."""
        code = self._code(elem)
        # A class that nothing is known of may be registered later, with torch or optree.
        is_known = code != OTHER or self._function(elem) is not None
        if is_known and len(self.codes) < MAX_TYPES:
            self.codes[type(elem)] = code
        return code

    def is_current(self) -> bool:
        """Whether the tables are still those that this was made from."""
        return bool(self._module.default_collate_fn_map == self.seen) and _nodes.num_registered() == self.num_registered

    def _code(self, elem: Any) -> int:
        """The code of a sample's type; OTHER for what torch's own functions are left to do."""
        cls, function = type(elem), self._function(elem)
        if function is not None:
            for name, types, code in self._known:
                if function is getattr(self._module, name, None):
                    return code if cls in types or object in types or is_memmap(cls) else OTHER
            is_its_own = getattr(function, "__module__", "").partition(".")[0] == "tensordict"
            return self._stacked(cls) if is_its_own else OTHER
        if cls is _windrow.Tensor:
            return TENSOR
        if _nodes.is_registered(cls) or _nodes.graph_flattener(cls) is not None:
            return CLASS
        if _nodes.tensordict_flattener(cls) is not None:
            return self._stacked(cls)
        if isinstance(elem, collections.abc.Mapping):
            return MAPPING
        if isinstance(elem, tuple) and hasattr(elem, "_fields"):
            return NAMED
        if isinstance(elem, collections.abc.Sequence):
            return SEQUENCE
        is_known = dataclasses.is_dataclass(cls) or any(_nodes.find(cls, is_last) for is_last in (False, True))
        return FIELDS if is_known else OTHER

    @staticmethod
    def _stacked(cls: Any) -> int:
        """The rule of a class of tensordict. Lazy stacks and their like are stacked to classes of their own."""
        if _nodes.tensordict_flattener(cls) is None:
            return OTHER
        from windrow import _tensordict

        return STACKED if _tensordict.is_dense(cls) else FIELDS

    def _function(self, elem: Any) -> Any:
        """Looks a function up as torch does: by the exact type, then the first base class; None for neither."""
        if type(elem) in self.table:
            return self.table[type(elem)]
        return next((fn for key, fn in self.table.items() if isinstance(elem, key)), None)
