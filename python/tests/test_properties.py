"""Random shapes, strides, dtypes, forms and options against the oracle."""

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import oracle
import windrow as wr
from helpers import assert_same, assert_tensor, assert_values, memory, paint, paint_values, pointer, poisoned, sample
from oracle import T

relaxed = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

EXTENTS = st.one_of(st.integers(0, 5), st.sampled_from([1, 7, 8, 9, 16, 17, 33]))
SIDES = st.sampled_from(["right", "left", "center"])
SCALES = st.sampled_from([1.0, 0.5, 1 / 255, -3.0, 1.7])
MEANS = st.sampled_from([0.485, -2.0, 17.25, 100.1])
STDS = st.sampled_from([0.229, 1.0, -0.7, 3.0])
VALUES = st.sampled_from([0, 1])


@st.composite
def strided(draw, shape, name, seed, values):
    """An array of a shape with any order of dims, steps, signs and start."""
    rank = len(shape)
    order = draw(st.permutations(range(rank)))
    steps = [draw(st.sampled_from([1, 1, 1, 2, 3, -1, -2, 0])) for _ in range(rank)]
    before = [draw(st.integers(0, 2)) for _ in range(rank)]
    extents = [1 if s == 0 else n * abs(s) + b for n, s, b in zip(shape, steps, before)]
    make = paint_values if values else paint
    base = make([extents[d] for d in order], name, seed)
    view = base.transpose(np.argsort(order)) if rank else base
    for d, (n, s, b) in enumerate(zip(shape, steps, before)):
        at = (slice(None),) * d
        if s == 0:
            continue
        view = view[(*at, slice(b, None))][(*at, slice(None, None, s))][(*at, slice(0, n))]
    return np.broadcast_to(view, shape)


@st.composite
def problem(draw, min_rank, vary):
    """Arrays that agree in all dims but those in `vary(rank)`, with their dtype and a target dtype."""
    rank = draw(st.integers(min_rank, 4))
    name = draw(st.sampled_from(oracle.ALL))
    arithmetic = name in oracle.CASTABLE
    dtype = draw(st.sampled_from([None, None, *oracle.CASTABLE])) if arithmetic else None
    shape = [draw(EXTENTS) for _ in range(rank)]
    count = draw(st.integers(1, 6))
    free = draw(vary(rank))
    shapes = [tuple(draw(EXTENTS) if d in free else n for d, n in enumerate(shape)) for _ in range(count)]
    assume(sum(int(np.prod(s)) for s in shapes) < 200_000)
    values = dtype is not None
    if draw(st.booleans()):
        arrays = [draw(strided(s, name, 13 * i, values)) for i, s in enumerate(shapes)]
    else:
        arrays = [(paint_values if values else paint)(s, name, 13 * i) for i, s in enumerate(shapes)]
    return arrays, name, dtype, sorted(free)


def transforms(rank, name, dtype, shapes, fixed, keep_first=False):
    """None, a permutation, or arithmetic over a dim that no sample changes, with or without a permutation."""

    @st.composite
    def build(draw):
        if draw(st.booleans()):
            return None
        permute = None
        if draw(st.booleans()):
            dims = draw(st.permutations(range(1 if keep_first else 0, rank)))
            permute = tuple([0, *dims] if keep_first else dims)
        if name not in oracle.CASTABLE or draw(st.booleans()):
            return None if permute is None else T(permute=permute)
        channel_dim = draw(st.sampled_from([None, *fixed]))
        channels = None if channel_dim is None else shapes[0][channel_dim]
        if channels is None or channels == 0:
            return T(scale=draw(SCALES), mean=draw(MEANS), std=draw(STDS), permute=permute)
        mean = [draw(MEANS) for _ in range(channels)]
        std = [draw(STDS) for _ in range(channels)]
        return T(scale=draw(SCALES), mean=mean, std=std, channel_dim=channel_dim, permute=permute)

    return build()


def out_for(draw, want, name):
    """None, or a poisoned array of the result's shape with gaps; with the bytes its base must hold afterwards."""
    kind = draw(st.sampled_from(["none", "compact", "gaps", "reversed"])) if want.ndim else "none"
    if kind == "none":
        return None, None, None

    def build():
        base = poisoned((*want.shape[:-1], 2 * want.shape[-1] + 3), name)
        if kind == "compact":
            base = poisoned(want.shape, name)
            return base, base
        view = base[..., 1 : 1 + 2 * want.shape[-1] : 2]
        return (view if kind == "gaps" else view[..., ::-1]), base

    out, base = build()
    twin, expected = build()
    twin[...] = want
    return out, base, expected


def run(data, call, arrays, name, dtype, t, want, **arguments):
    """Calls windrow with and without `out`; checks the whole result and that no source was written."""
    if t is not None and t.has_arithmetic() and name not in oracle.FLOATS and name not in oracle.CAST8:
        dtype = dtype or name
    result = dtype or name
    before = [a.tobytes() for a in arrays]
    samples = [sample(a, name) for a in arrays]
    if t is not None:
        arguments["transform"] = wr.Transform(**t.arguments())
    out, base, expected = out_for(data.draw, want.data, result)
    given_out = {} if out is None else {"out": sample(out, result)}
    batch = call(samples, dtype=dtype, **given_out, **arguments)
    assert [a.tobytes() for a in arrays] == before
    if out is None:
        assert_tensor(batch, want.data, result)
    else:
        assert_same(base, expected, result)
        if out.size:
            assert pointer(batch.data) == pointer(out)
        assert_same(memory(batch), want.data, result)
    assert len(batch) == len(arrays)
    return batch


def nothing(rank):
    return st.just(set())


def any_dims(rank):
    return st.sets(st.integers(0, rank - 1))


def one_dim(rank):
    return st.integers(0, rank - 1).map(lambda d: {d})


def first_dim(rank):
    return st.just({0})


@relaxed
@given(problem(0, nothing), st.data())
def test_stack(case, data):
    arrays, name, dtype, _ = case
    shapes = [a.shape for a in arrays]
    rank = arrays[0].ndim
    t = data.draw(transforms(rank, name, dtype, shapes, range(rank)))
    run(data, wr.stack, arrays, name, dtype, t, oracle.stack(arrays, name, dtype, t))


@relaxed
@given(problem(1, one_dim), st.data())
def test_concat(case, data):
    arrays, name, dtype, (dim,) = case
    rank = arrays[0].ndim
    fixed = [d for d in range(rank) if d != dim]
    t = data.draw(transforms(rank, name, dtype, [a.shape for a in arrays], fixed))
    assume(t is None or t.permute is None)
    want = oracle.concat(arrays, name, dim, dtype, t)
    batch = run(data, wr.concat, arrays, name, dtype, t, want, dim=data.draw(st.sampled_from([dim, dim - rank])))
    assert_values(batch.lengths, want.lengths)
    assert_values(batch.offsets, want.offsets)


@relaxed
@given(problem(1, first_dim), st.data())
def test_ragged(case, data):
    arrays, name, dtype, _ = case
    rank = arrays[0].ndim
    t = data.draw(transforms(rank, name, dtype, [a.shape for a in arrays], range(1, rank), keep_first=True))
    want = oracle.ragged(arrays, name, dtype, t)
    offsets_dtype = data.draw(st.sampled_from(["int32", "int64"]))
    batch = run(data, wr.ragged, arrays, name, dtype, t, want, offsets_dtype=offsets_dtype, batch_index=True)
    assert batch.offsets.dtype == offsets_dtype
    for field in ("offsets", "lengths", "batch_index"):
        assert_values(getattr(batch, field), getattr(want, field))
    assert batch.max_length == want.max_length


def pad_options(draw, shapes):
    rank = len(shapes[0])
    options = {"value": draw(VALUES), "mask": draw(st.sampled_from([None, "real", "pad"]))}
    options["side"] = draw(st.one_of(SIDES, st.tuples(*[SIDES] * rank)))
    differ = {d for d in range(rank) if len({s[d] for s in shapes}) > 1}
    if draw(st.booleans()):
        options["dims"] = tuple(sorted(differ | draw(st.sets(st.integers(0, rank - 1), min_size=1))))
    kind = draw(st.sampled_from(["none", "scalar", "each", "truncate"]))
    longest = [max(s[d] for s in shapes) for d in range(rank)]
    padded, _ = oracle.plan_padding(shapes, options.get("dims"))
    may_be_one = rank == 1 or "dims" in options
    # A call that names one dim has to name all that differ.
    names = set() if may_be_one else differ
    if kind == "scalar" and may_be_one:
        options["size"] = max((longest[d] for d in padded), default=0) + draw(st.integers(0, 3))
    if kind in ("each", "truncate"):
        shrink = -3 if kind == "truncate" else 0
        sizes = [
            max(0, longest[d] + draw(st.integers(shrink, 3))) if d in names or d in padded and draw(st.booleans()) else None
            for d in range(rank)
        ]
        options.update(size=tuple(sizes), truncate=kind == "truncate")
    if kind != "truncate":
        one = st.sampled_from([1, 1, 2, 8])
        above = st.sampled_from([2, 8])
        each = st.tuples(*[above if d in names else one if d in padded else st.just(1) for d in range(rank)])
        options["multiple_of"] = draw(st.one_of(one if may_be_one else st.just(1), each))
    return options


@relaxed
@given(problem(1, any_dims), st.data())
def test_pad(case, data):
    arrays, name, dtype, _ = case
    assume(name not in oracle.MOVED8)
    shapes = [a.shape for a in arrays]
    rank = arrays[0].ndim
    options = pad_options(data.draw, shapes)
    which, _ = oracle.plan_padding(shapes, options.get("dims"), options.get("size"), options.get("multiple_of", 1))
    assume(which)
    fixed = [d for d in range(rank) if d not in which]
    t = data.draw(transforms(rank, name, dtype, shapes, fixed))
    want = oracle.pad(arrays, name, dst=dtype, t=t, **options)
    assume(want.data.size < 2_000_000)
    batch = run(data, wr.pad, arrays, name, dtype, t, want, **options)
    assert_values(batch.lengths, want.lengths)
    if options["mask"] is None:
        assert batch.mask is None
    else:
        assert_same(batch.mask.numpy(), want.mask)


@relaxed
@given(problem(0, nothing), st.data())
def test_sample_list(case, data):
    arrays, name, dtype, _ = case
    indices = data.draw(st.lists(st.integers(0, len(arrays) - 1), min_size=1, max_size=12))
    chosen = [arrays[i] for i in indices]
    taken = wr.SampleList([sample(a, name) for a in arrays]).take(np.array(indices))
    assert_tensor(wr.stack(taken, dtype=dtype), oracle.stack(chosen, name, dtype).data, dtype or name)


LEAVES = st.sampled_from([((), "int64"), ((2,), "float32"), ((2, 3), "uint8"), ((0,), "int16"), ((4,), "bool")])
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(lambda items: ("tuple", items)),
        st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    ),
    max_leaves=8,
)


def is_leaf(tree):
    return isinstance(tree, tuple) and isinstance(tree[1], str)


def grow(tree, i):
    if is_leaf(tree):
        return paint(*tree, 7 * i)
    if isinstance(tree, tuple):
        return tuple(grow(t, i) for t in tree[1])
    if isinstance(tree, list):
        return [grow(t, i) for t in tree]
    return {k: grow(t, i) for k, t in tree.items()}


def check_tree(got, tree, count):
    if is_leaf(tree):
        assert_tensor(got, np.stack([paint(*tree, 7 * i) for i in range(count)]))
    elif isinstance(tree, dict):
        assert type(got) is dict and list(got) == list(tree)
        for key in tree:
            check_tree(got[key], tree[key], count)
    else:
        items = tree[1] if isinstance(tree, tuple) else tree
        assert type(got) is (tuple if isinstance(tree, tuple) else list) and len(got) == len(items)
        for part, item in zip(got, items):
            check_tree(part, item, count)


@relaxed
@given(TREES, st.integers(1, 4))
def test_collate(tree, count):
    check_tree(wr.collate([grow(tree, i) for i in range(count)]), tree, count)


@relaxed
@given(problem(1, any_dims), st.data())
def test_mismatches_write_nothing(case, data):
    """With any mismatch, stack either gives the right batch or raises and leaves `out` as it was."""
    arrays, name, _, _ = case
    out = poisoned((len(arrays), *arrays[0].shape), name)
    before = out.copy()
    differ = [i for i, a in enumerate(arrays) if a.shape != arrays[0].shape]
    try:
        wr.stack([sample(a, name) for a in arrays], out=sample(out, name))
    except wr.ShapeError as error:
        assert differ and error.index == differ[0]
        assert error.expected == arrays[0].shape and error.got == arrays[differ[0]].shape
        assert_same(out, before)
    else:
        assert not differ
        assert_same(out, np.stack(arrays), name)
