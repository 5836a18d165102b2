"""Values that lie: of every type, with methods that raise, answer nonsense, or change their container."""

from __future__ import annotations

import collections.abc

from hypothesis import strategies as st

HUGE = [2**31, 2**32 - 1, 2**45, 2**60, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**128, -(2**63), -(2**63) - 1, -(2**200)]

# Not `Exception`s: what a caller must see again, as it is.
ABORTS = (KeyboardInterrupt, SystemExit, GeneratorExit)
ERRORS = (RuntimeError, TypeError, ValueError, BufferError, AttributeError, KeyError, IndexError, StopIteration, OverflowError)
METHODS = (
    "__len__ __iter__ __getitem__ __eq__ __hash__ __bool__ __index__ __int__ __float__ __complex__ __str__ __repr__ "
    "__contains__ keys items values __fspath__ __next__ __instancecheck__"
).split()


class Mine(Exception):
    """An error of the caller's own, which must arrive as it was raised."""


def evil(base, methods, what):
    """A subclass of `base` whose methods raise, or answer something absurd."""

    def method(name):
        def call(self, *args):
            if isinstance(what, type) and issubclass(what, BaseException):
                raise what(name)
            return what(self, name, *args) if callable(what) else what

        return call

    namespace = {name: method(name) for name in methods}
    return type(f"Evil{base.__name__.title()}", (base,), namespace)


class Endless(collections.abc.Sequence):
    """A sequence with any length it likes, and as many entries as anyone asks for."""

    def __init__(self, length, entry):
        self.length, self.entry = length, entry

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.entry


@st.composite
def evils(draw):
    """An object of `evil`, or a plain one if its own methods do not let it be made."""
    base, args = draw(
        st.sampled_from(
            [(object, ()), (int, (3,)), (float, (1.5,)), (str, ("float32",)), (bytes, (b"<f4",)), (tuple, ((2, 3),)), (list, ([2, 3],)), (dict, ({"a": 1},))]
        )
    )
    methods = draw(st.sets(st.sampled_from(METHODS), min_size=1, max_size=3))
    what = draw(st.sampled_from([Mine, *ERRORS, None, -1, 2**45, 2**60, 2**70, "x", b"x", (), 1.5, lambda self, *_: self]))
    try:
        return evil(base, methods, what)(*args)
    except (TypeError, ValueError, Mine, *ERRORS):
        return object()


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 9),
    st.sampled_from(HUGE),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=6),
    st.binary(max_size=6),
    st.sampled_from(["float32", "<f4", ">f4", "|u1", "<f3", "<M8", "|V1", "", "\0", "cpu", "cuda:0", "cuda:-1", "cuda:99999999999", "pinned", "real", "left", "\ud800"]),
    st.just(NotImplemented),
    st.just(Ellipsis),
    st.just(int),
    st.just(range(2**60)),
    st.just(range(2**45)),
    st.just(range(3)),
    st.builds(Endless, st.sampled_from([-1, 0, 2, 65, 2**45, 2**60]), st.sampled_from([0, 1, None])),
    evils(),
)

VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(), st.none()), inner, max_size=3),
    ),
    max_leaves=5,
)
