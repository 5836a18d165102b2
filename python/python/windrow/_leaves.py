"""Leaves of a spec in the integrations that assemble them one by one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

from windrow._flattener import text_of
from windrow._windrow import Batch, Tensor, _patterns_of
from windrow.spec import List as ListSpec
from windrow.spec import Stack


def fields_of(batch: Batch) -> Dict[str, Tensor]:
    """The tensors that a batch has beside its data, by name, in the order of the results."""
    tensors = {name: getattr(batch, name) for name in ("lengths", "offsets", "mask", "batch_index", "scales")}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def named_fields(name: str, batch: Batch) -> List[Tuple[str, Tensor]]:
    """The data under the column's name, each other tensor under NAME_FIELD."""
    return [(name, batch.data), *((f"{name}_{field}", tensor) for field, tensor in fields_of(batch).items())]


def told_apart(leaves: Mapping[str, Any]) -> Tuple[List[str], List[str]]:
    """The names of the leaves that become tensors, and of those of str and bytes."""
    tensors: List[str] = []
    texts: List[str] = []
    for name, leaf in leaves.items():
        (texts if isinstance(leaf, (str, bytes)) else tensors).append(name)
    return tensors, texts


def check(spec: Any, takes_lists: bool = False) -> None:
    """TypeError for a spec that is none, or, unless `takes_lists`, one of `windrow.List`."""
    leaves = spec if isinstance(spec, dict) else {} if spec is None else {"*": spec}
    for pattern, leaf in leaves.items():
        if not isinstance(pattern, str):
            raise TypeError(f'a key of spec must be a path, such as "image" or "tokens.*", got {pattern!r}')
        if not hasattr(leaf, "form"):
            raise TypeError(f"the spec of {pattern!r} must be wr.Stack, wr.Concat, wr.Pad or wr.Ragged, got {leaf!r}")
        if isinstance(leaf, ListSpec) and not takes_lists:
            raise TypeError(f"the spec of {pattern!r} is wr.List, which is for wr.collate and the collate_fn of torch and JAX")


def chosen(spec: Any, names: List[str], what: str, texts: Sequence[str] = ()) -> List[Any]:
    """The spec of each leaf, by the rules of `windrow.collate`: an exact name goes before a glob,
    an earlier glob before a later one, unnamed leaves are stacked.

    Raises:
        ValueError: for a pattern that names no leaf, or one of `texts`, the leaves of str and bytes;
            `what` says what leaves are called here.
    """
    given = spec if isinstance(spec, dict) else {} if spec is None else {"*": spec}
    specs = {text_of(pattern): leaf for pattern, leaf in given.items()}
    patterns = list(specs)
    positions = _patterns_of(patterns, names)
    unused = set(range(len(patterns))).difference(positions)
    if unused:
        pattern = patterns[min(unused)]
        for text, position in zip(texts, _patterns_of([pattern], list(texts))):
            if position is not None:
                raise ValueError(
                    f"spec {pattern!r} names the {what} {text!r} of str or bytes, which becomes a list as it is; "
                    "a spec is for tensors"
                )
        raise ValueError(f"spec {pattern!r} matches no {what}; there are {', '.join(map(repr, names))}")
    leaves, stack = list(specs.values()), Stack()
    return [stack if position is None else leaves[position] for position in positions]


@contextmanager
def named(what: str, name: str) -> Iterator[None]:
    """A ValueError, TypeError or BufferError from within names the leaf in its text, and as ``.path`` if it has one."""
    try:
        yield
    except (ValueError, TypeError, BufferError) as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (f"{what} {name!r}: {error.args[0]}", *error.args[1:])
        if hasattr(error, "path"):
            error.path = name
        raise
