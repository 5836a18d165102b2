"""Texts of errors about unknown keyword arguments and classes; the compiled part calls these functions."""

from __future__ import annotations

from typing import List, Optional

from windrow import _windrow

# Names that NumPy, torch, transformers and others use for our arguments.
_PEERS = {
    "attention_mask": "mask",
    "axes": "dims",
    "axis": "dim",
    "constant_values": "value",
    "fill_value": "value",
    "max_length": "size",
    "num_threads": "threads",
    "num_workers": "threads",
    "pad_to_multiple_of": "multiple_of",
    "pad_token_id": "value",
    "pad_value": "value",
    "padding_mask": "mask",
    "padding_side": "side",
    "padding_value": "value",
    "return_attention_mask": "mask",
    "truncation": "truncate",
}


# Modules of Python whose classes no program registers.
_OWN_MODULES = ("builtins", "types", "datetime", "decimal", "fractions", "pathlib", "uuid")


def in_place_of(cls: type) -> Optional[str]:
    """The advice for an object of a class that `collate` does not know; None for classes of Python's own that hold nothing."""
    if hasattr(cls, "to_dict"):
        return "its to_dict()"
    # Not by its metaclass, which an Enum is iterated by.
    if any("__iter__" in vars(base) for base in cls.__mro__):
        return "a list or tuple of its items"
    return None if cls.__module__ in _OWN_MODULES else "a dict of what it holds, or register the class (wr.register_node)"


def unexpected(call: str, key: str) -> TypeError:
    """The refusal of an argument of `windrow.<call>`: our word for it, or the calls that take it, or all that this call takes."""
    word = _PEERS.get(key, key)
    word = {("pad", "dim"): "dims", ("Transform", "dim"): "channel_dim"}.get((call, word), word)
    if call == "Transform" and word in ("dims", "order"):
        word = "permute"
    return TypeError(f"{call}() got an unexpected keyword argument '{key}'; {_hint(call, word)}")


def _hint(call: str, word: str) -> str:
    takes, form = _arguments_of(call), _form_of(word)
    if word in takes:
        return f"use {word}="
    if word in ("batch_first", "dim") and call not in ("concat", "ragged"):
        return "dim 0 is always that of the samples"
    if word == "dim" and call == "ragged":
        return "samples are joined along dim 0"
    if word == "pin_memory":
        return 'use device="pinned"'
    if word == "return_tensors":
        return "the result has .torch(), .numpy() and .jax()"
    if word == "threads":
        return "use engine=wr.Engine(threads=...)"
    if word in _arguments_of("Transform"):
        return f"use transform=wr.Transform({word}=...)"
    if form and call == "collate":
        return f"use spec= with wr.{form.capitalize()}({word}=...)"
    return f"wr.{form} takes {word}=" if form else f"it takes {', '.join(takes)}"


def _form_of(word: str) -> Optional[str]:
    """The first form that has this argument of its own; None if none has, or `stack` has it, and so all do."""
    if word in _arguments_of("stack"):
        return None
    return next((form for form in ("concat", "pad", "ragged") if word in _arguments_of(form)), None)


def _arguments_of(call: str) -> List[str]:
    """The names of the arguments of `windrow.<call>`, in the order of its signature, without ``samples``."""
    signature = getattr(_windrow, call).__text_signature__
    names = [argument.split("=")[0].strip() for argument in signature.strip("()").split(",")]
    return [name for name in names if name != "samples" and not name.startswith(("*", "$", "/"))]
