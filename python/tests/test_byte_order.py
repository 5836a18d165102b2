"""Arrays of foreign byte order: samples everywhere, native results; refused where only their memory would do."""

import copy
import ctypes
import pickle

import numpy as np
import pytest

import windrow as wr
from helpers import assert_same, refusal
from test_cuda import check

NUMBERS = ["i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8"]
MOVED = ["c8", "c16"]
NATIVE = "bool int8 uint8 int16 int32 int64 uint16 uint32 uint64 float16 float32 float64".split()
FIELDS = ("data", "lengths", "offsets", "mask", "batch_index")




def other(array):
    return array.astype(array.dtype.newbyteorder(), copy=True)


def values(shape, name, seed=0):
    """Every bit of a number, but for those of a NaN, which a cast of NumPy may quieten."""
    dtype = np.dtype(name)
    if dtype.kind in "iu":
        return np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]
    reals = np.random.default_rng(seed).normal(size=(2, *shape)) * 100
    return (reals[0] + 1j * reals[1] if dtype.kind == "c" else reals[0]).astype(dtype)


def agree(got, want):
    assert (got.shape, got.dtype, got.device, got.max_length) == (want.shape, want.dtype, want.device, want.max_length)
    for field in FIELDS:
        mine, theirs = getattr(got, field), getattr(want, field)
        assert (mine is None) == (theirs is None), field
        if mine is not None:
            assert_same(mine.numpy(), theirs.numpy())


UNEVEN = [(n, 3) for n in (4, 0, 1, 23)]
EVEN = [(6, 5)] * 4
FORMS = {
    "stack": (wr.stack, EVEN, {}),
    "stack of many": (wr.stack, [(40,)] * 2000, {}),
    "stack of numbers": (wr.stack, [()] * 5, {}),
    "large": (wr.stack, [(300, 1000)] * 4, {}),
    "concat": (wr.concat, UNEVEN, {}),
    "concat dim": (wr.concat, EVEN, {"dim": 1}),
    "pad": (wr.pad, UNEVEN, {"value": 7, "mask": "real", "multiple_of": 4, "dims": 0}),
    "pad center": (wr.pad, UNEVEN, {"side": "center", "size": (9, 3), "truncate": True}),
    "pad rows": (wr.pad, [(n,) for n in (3, 0, 70, 8)], {"side": "left"}),
    "ragged": (wr.ragged, UNEVEN, {"batch_index": True, "offsets_dtype": "int32"}),
    "ragged rows": (wr.ragged, [(n % 9,) for n in range(300)], {}),
    "permuted": (wr.stack, [(20, 30, 3)] * 2, {"transform": wr.Transform(permute=(2, 0, 1))}),
    "turned": (wr.stack, [(70, 90)] * 2, {"transform": wr.Transform(permute=(1, 0))}),
    "nothing": (wr.stack, [(0, 3)] * 2, {}),
}


@pytest.mark.parametrize("name", NUMBERS + MOVED)
@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_what_native_arrays_give(form, name):
    call, shapes, options = FORMS[form]
    native = [values(shape, name, seed) for seed, shape in enumerate(shapes)]
    want = call(native, **options)
    agree(call([other(array) for array in native], **options), want)
    agree(call([array if i % 2 else other(array) for i, array in enumerate(native)], **options), want)
    agree(call(wr.SampleList([other(array) for array in native]), **options), want)
    out = np.zeros(want.shape, native[0].dtype)
    call([other(array) for array in native], out=out, **options)
    assert_same(out, want.numpy())


@pytest.mark.parametrize("name", NUMBERS + MOVED)
def test_strides_of_every_kind(name):
    base = values((12, 10, 4), name)
    for cut in (np.s_[::2], np.s_[::-1], np.s_[:, ::-1], np.s_[:, :, 1:3], np.s_[..., 0], np.s_[:, :1], np.s_[::-3, ::2, ::-1]):
        native = [base[cut], base[cut][...], base[cut] + base.dtype.type(1)]
        turned = [other(base)[cut], other(base)[cut], other(base + base.dtype.type(1))[cut]]
        agree(wr.stack(turned), wr.stack(native))
        agree(wr.concat(turned), wr.concat(native))
        agree(wr.stack([array.T for array in turned]), wr.stack([array.T for array in native]))
    repeated = np.broadcast_to(other(base[0]), (7, 10, 4))
    agree(wr.stack([repeated] * 2), wr.stack([np.broadcast_to(base[0], (7, 10, 4))] * 2))
    single = np.broadcast_to(other(base[0, 0, :1]), (5, 9))
    agree(wr.stack([single] * 2, dtype=None), wr.stack([np.broadcast_to(base[0, 0, :1], (5, 9))] * 2))


@pytest.mark.parametrize("source", NUMBERS)
def test_casts_and_transforms(source):
    shift = wr.Transform(scale=0.5, mean=[1.0, 2.0, 3.0], std=[1.0, 2.0, 4.0], channel_dim=2, permute=(2, 0, 1))
    native = [values((9, 40, 3), source, seed) for seed in range(3)]
    turned = [other(array) for array in native]
    rows = [values((n,), source, n) for n in (3, 0, 300, 41)]
    for target in NATIVE:
        agree(wr.stack(turned, dtype=target), wr.stack(native, dtype=target))
        agree(wr.stack([array[:, ::-1] for array in turned], dtype=target), wr.stack([array[:, ::-1] for array in native], dtype=target))
        agree(wr.stack(turned, dtype=target, transform=shift), wr.stack(native, dtype=target, transform=shift))
        agree(wr.pad([other(row) for row in rows], dtype=target, value=1), wr.pad(rows, dtype=target, value=1))
        agree(wr.ragged([other(row) for row in rows], dtype=target), wr.ragged(rows, dtype=target))
        one = wr.Transform(scale=3.0)
        agree(wr.ragged([other(row) for row in rows], dtype=target, transform=one), wr.ragged(rows, dtype=target, transform=one))


def test_numpy_says_what_the_values_are():
    for name in NUMBERS + MOVED:
        array = np.arange(-5, 7).astype(name)
        assert_same(wr.stack([other(array)] * 3).numpy(), np.stack([array] * 3))
        assert (wr.stack([other(array)], dtype="float64").numpy() == array.astype("f8")).all() if name in NUMBERS else True


def test_lists_that_are_kept():
    native = [values((5, 2), "f4", seed) for seed in range(6)]
    samples = wr.SampleList([other(array) for array in native])
    agree(wr.stack(samples.take([4, -1, 4])), wr.stack([native[i] for i in (4, 5, 4)]))
    agree(samples.stack([2, 0]), wr.stack([native[2], native[0]]))
    agree(wr.stack(samples[1:3]), wr.stack(native[1:3]))
    assert (samples[3].dtype, list(samples[3].numpy().ravel())) == ("float32", list(native[3].ravel()))
    samples[0] = native[5]
    samples.append(native[1])
    samples.extend([other(native[2])])
    want = [native[5], *native[1:], native[1], native[2]]
    for again in (samples, pickle.loads(pickle.dumps(samples)), copy.deepcopy(samples), wr.SampleList(list(samples))):
        agree(wr.stack(again), wr.stack(want))
    table = other(np.stack(native))
    for rows in (table, wr.SampleList(table), wr.windows(table.reshape(30, 2), range(0, 30, 5), 5)):
        agree(wr.stack(rows), wr.stack(native))
        agree(wr.stack(rows, dtype="float64"), wr.stack(native, dtype="float64"))
    boxes = np.array([[0, 1, 2, 4]] * 6)
    agree(wr.stack(wr.crops(table, boxes, flip=True)), wr.stack(wr.crops(np.stack(native), boxes, flip=True)))
    values_ = np.concatenate(native)
    agree(wr.ragged(wr.SampleList.split(other(values_), [0, 7, 7, 30])), wr.ragged(wr.SampleList.split(values_, [0, 7, 7, 30])))
    # The memory is read as it is then.
    late = other(native[0])
    kept = wr.SampleList([late])
    late[...] = 3
    assert (wr.stack(kept).numpy() == 3).all()


def test_trees_and_lists_of_leaves():
    record = np.zeros(3, [("flux", ">f4", 4), ("id", ">i8"), ("label", "<i8")])
    record["flux"], record["id"], record["label"] = np.arange(12).reshape(3, 4) / 3, [1, 2**40, -3], [1, 2, 3]
    trees = [{"flux": row["flux"], "id": row["id"]} for row in record]
    batch = wr.collate(trees, {"flux": wr.Stack(dtype="float64")})
    assert_same(batch["flux"].numpy(), record["flux"].astype("=f4").astype("=f8"))
    assert_same(batch["id"].numpy(), record["id"].astype("=i8"))
    assert_same(wr.stack(record["id"]).numpy(), record["id"].astype("=i8"))
    assert_same(wr.concat([record["flux"], record["flux"][:1]]).numpy(), np.concatenate([record["flux"], record["flux"][:1]]).astype("=f4"))
    apart = wr.collate(trees, {"flux": wr.List()})["flux"]
    assert [tensor.numpy().tolist() for tensor in apart] == record["flux"].tolist()
    arena = wr.collate(trees, arena=True)
    assert_same(arena["flux"].numpy(), record["flux"].astype("=f4"))


def test_other_interfaces():
    big = (ctypes.c_int32.__ctype_be__ * 3)(1, -2, 3)
    assert wr.stack([big, other(np.array([4, 5, 6], "=i4"))]).numpy().tolist() == [[1, -2, 3], [4, 5, 6]]
    array = other(values((4, 3), "f8"))
    want = array.astype("=f8")
    for sample in (memoryview(array), np.ma.masked_array(array), array.view(type("Sub", (np.ndarray,), {}))):
        assert_same(wr.stack([sample]).numpy()[0], want)

    class Described:
        __array_interface__ = array.__array_interface__

    assert_same(wr.stack([Described()]).numpy()[0], want)


@pytest.mark.parametrize("name", ["i2", "i4", "i8", "u2", "u4", "u8"])
def test_indices_offsets_and_lengths(name):
    table = values((9, 3), "f4")
    rows, numbers = wr.SampleList(table), np.array([7, 0, 3, 3], name)
    for given in (other(numbers), other(numbers)[::-1], other(np.stack([numbers] * 2))[:, 1]):
        want = given.astype(name)
        assert_same(wr.stack(rows.take(given)).numpy(), table[want])
        assert_same(rows.stack(given).numpy(), table[want])
    offsets = other(np.array([0, 2, 2, 9], name))
    assert [len(part.numpy()) for part in wr.SampleList.split(table, offsets)] == [2, 0, 7]
    shapes = other(np.array([[2, 3], [1, 6]], name))
    assert [part.shape for part in wr.SampleList.split(np.arange(12), np.array([0, 6, 12]), shapes)] == [(2, 3), (1, 6)]
    assert_same(wr.stack(wr.windows(table, other(np.array([0, 4], name)), 2)).numpy(), np.stack([table[:2], table[4:6]]))
    assert wr.plan.pack(other(np.array([5, 3], name)), 8) == wr.plan.pack(np.array([5, 3]), 8)
    floats = refusal(lambda: rows.take(other(np.array([1.0]))), TypeError, "indices are integers of one dim, not float64 of")
    assert "order" not in str(floats)
    if name == "u8":
        refusal(lambda: rows.take(other(np.array([1, 2**63], name))), IndexError, r"indices\[1\] is beyond 63 bits")


def test_memory_mapped_files(tmp_path):
    path = tmp_path / "cube.bin"
    cube = values((50, 8, 8), "f4")
    other(cube).tofile(path)
    mapped = np.memmap(path, cube.dtype.newbyteorder(), "r", shape=cube.shape)
    assert_same(wr.stack(wr.SampleList(mapped).take([3, 40])).numpy(), cube[[3, 40]])
    assert_same(wr.stack([mapped[7], mapped[8]]).numpy(), cube[7:9])


def test_where_only_the_memory_would_do():
    array = other(np.ones((3, 2), "f4"))
    for call in (
        lambda: wr.asarray(array),
        lambda: wr.stack([np.ones(2, "f4")] * 3, out=array),
        lambda: wr.stack(array, copy=False),
        lambda: wr.stack(list(array), copy=False),
        lambda: wr.stack(wr.SampleList(array), copy=False),
        lambda: wr.collate([{"a": row} for row in array], copy=False),
    ):
        error = refusal(call, wr.LayoutError, "expected native byte order, got float32 of other byte order")
        assert 'newbyteorder("=")' in str(error)
    assert (wr.stack(array, copy=None).numpy() == 1).all()
    assert wr.stack(array, copy=None).data_ptr() != array.ctypes.data if hasattr(wr.Batch, "data_ptr") else True
    refusal(lambda: wr.stack([array], dtype=array.dtype), TypeError, "batches have the byte order of this machine")
    refusal(lambda: wr.stack([array, np.ones((3, 2))]), wr.DTypeError, "expected float32", index=1)
    refusal(lambda: wr.stack([other(np.ones(2, "c8"))], dtype="float32"), wr.DTypeError)


def test_what_explain_says():
    native = [values((50,), "f4", seed) for seed in range(4)]
    turned = [other(array) for array in native]
    assert wr.explain(turned).path == "swap"
    assert wr.explain(turned[:2] + native[:2]).path == "swap"
    assert wr.explain(turned, dtype="float64").path == "cast"
    engine = wr.Engine()
    wr.stack(turned, engine=engine)
    assert engine.stats()["paths"]["swap"] == 1


@pytest.mark.parametrize("name", ["i2", "i8", "f2", "f4", "c8", "c16"])
def test_host_samples_for_a_device(driver, name):
    for call, shapes, options in (FORMS[form] for form in ("stack", "concat", "pad", "ragged", "ragged rows", "large")):
        native = [values(shape, name, seed) for seed, shape in enumerate(shapes)]
        turned = [other(array) if i % 3 else array for i, array in enumerate(native)]
        check(driver, call(turned, device="cuda", **options), call(native, **options), "cuda")
        if name not in MOVED:
            check(driver, call(turned, device="cuda", dtype="float32", **options), call(native, dtype="float32", **options), "cuda")
    native = [values((30, 3), name, seed) for seed in range(4)]
    turned = [{"a": other(array), "b": array} for array in native]
    batch = wr.collate(turned, device="cuda")
    check(driver, batch["a"], wr.stack(native), "cuda")
    check(driver, batch["b"], wr.stack(native), "cuda")
    check(driver, wr.stack([tree["a"] for tree in turned], device="pinned"), wr.stack(native), "pinned")


@pytest.mark.parametrize("name", NUMBERS)
def test_rows_without_numbers_beside_it(name):
    foreign = other(values((3,), name))
    began = wr.SampleList([[]])
    began.extend([foreign])
    for samples in (wr.SampleList([[], foreign]), wr.SampleList([foreign, []]), began):
        for again in (samples, pickle.loads(pickle.dumps(samples)), copy.deepcopy(samples)):
            got = wr.ragged(again)
            assert_same(got.numpy(), foreign.astype(name))
            assert got.dtype == np.dtype(name).name


def test_a_view_that_is_none_for_another_reason():
    foreign, native = other(values((3,), "f4")), [values((3,), "f4", seed) for seed in (1, 2)]
    refusal(lambda: wr.stack([foreign, *native], copy=False), wr.LayoutError, "native byte order")
    # No sample that is there is of foreign order.
    refusal(lambda: wr.stack(wr.SampleList([foreign, *native]).take([1, 2]), copy=False), ValueError, "do not form the whole batch")


def test_collators_of_sequences():
    from windrow import sequence

    rows = [values((n,), "i8", n) for n in (3, 1, 5)]
    for make in (
        lambda rows: sequence.pad_tokens([{"input_ids": row} for row in rows], return_tensors="np"),
        lambda rows: wr.collate([{"a": {"b": row}} for row in rows], {"a.b": wr.Pad(mask="real")})["a"]["b"],
        lambda rows: wr.collate(wr.SampleList([{"x": row} for row in rows]), {"x": wr.Ragged()})["x"],
    ):
        got, want = make([other(row) for row in rows]), make(rows)
        if isinstance(want, wr.Batch):
            agree(got, want)
        else:
            assert got.keys() == want.keys()
            for key in want:
                assert_same(np.asarray(got[key]), np.asarray(want[key]))


@pytest.mark.parametrize("name", ["i4", "u2", "f4"])
def test_default_collate_refuses_it_and_so_does_windrow(name):
    pytest.importorskip("torch", reason="SKIP: torch is not installed")
    import windrow.torch as wt
    from torch.utils.data import default_collate

    foreign, native = other(values((3,), name)), values((3,), name)
    for samples in ([foreign, foreign], [native, foreign], [{"x": native}, {"x": foreign}]):
        with pytest.raises((TypeError, ValueError)) as torchs:
            default_collate(samples)
        with pytest.raises(torchs.type) as ours:
            wt.collate_fn()(samples)
        assert str(ours.value) == str(torchs.value)
        cause = ours.value.__cause__
        assert isinstance(cause, wr.DTypeError) and "native byte order" in str(cause), cause
        assert cause.index == int(samples[0] is not foreign)
