"""wr.stack: equal shapes to data[N, *shape]."""

import numpy as np
import pytest

import oracle
import windrow as wr
from helpers import assert_same, assert_tensor, memory, paint, paint_values, pointer, poisoned, refusal, samples_of

SHAPES = [(), (1,), (5,), (0,), (3, 4), (2, 0, 3), (1, 1), (2, 3, 4), (3, 1, 5, 2), (1,) * 8, (2,) * 12]


@pytest.mark.parametrize("name", oracle.ALL)
def test_every_dtype(name):
    arrays = [paint((3, 5), name, 17 * i) for i in range(4)]
    batch = wr.stack(samples_of(arrays, name))
    assert_tensor(batch, oracle.stack(arrays, name).data, name)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_every_rank(count):
    for shape in SHAPES:
        arrays = [paint(shape, "int32", 31 * i) for i in range(count)]
        batch = wr.stack(arrays)
        assert_tensor(batch, oracle.stack(arrays, "int32").data)
        assert len(batch) == count


def test_sizes_around_vector_and_page_boundaries():
    for size in [1, 7, 8, 9, 15, 16, 17, 63, 64, 65, 4095, 4096, 4097, 65537]:
        arrays = [paint(size, seed=i) for i in range(5)]
        assert_tensor(wr.stack(arrays), oracle.stack(arrays, "uint8").data)


def test_misaligned_sources():
    base = paint(4 * 101 + 64)
    for offset in range(17):
        arrays = [base[offset + 3 * i : offset + 3 * i + 404].view("float32") for i in range(4)]
        assert_tensor(wr.stack(arrays), oracle.stack(arrays, "float32").data)


def test_many_small_samples():
    base = paint((20_000, 6), "float32")
    assert_tensor(wr.stack(list(base)), base)


def test_larger_than_the_last_level_cache():
    arrays = [paint(24 << 20, seed=i) for i in range(3)]
    batch = wr.stack(arrays)
    for i, array in enumerate(arrays):
        assert (memory(batch)[i] == array).all()


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T,
        lambda a: a[::2],
        lambda a: a[:, ::3],
        lambda a: a[::-1],
        lambda a: a[::-1, ::-2],
        lambda a: a[1:-1, 2:-2],
        lambda a: a[:, :0],
        lambda a: np.broadcast_to(a[0], a.shape),
        lambda a: np.broadcast_to(a[:, :1], a.shape),
        np.asfortranarray,
        np.diagonal,
        lambda a: a.reshape(4, 3, 2, 6).transpose(3, 1, 0, 2),
    ],
)
def test_strided_sources(view):
    for name in ["uint8", "int16", "float32", "float64", "complex128"]:
        arrays = [view(paint((12, 12), name, 5 * i)) for i in range(3)]
        assert_tensor(wr.stack(arrays), oracle.stack(arrays, name).data)


def test_each_sample_may_have_its_own_strides():
    a = paint((6, 6), "int64")
    arrays = [a, a.T, a[::-1], np.asfortranarray(a), np.broadcast_to(a[2], (6, 6)), a.copy()]
    assert_tensor(wr.stack(arrays), oracle.stack(arrays, "int64").data)


def test_the_same_sample_twice():
    a = paint((4, 4))
    assert_tensor(wr.stack([a, a, a]), np.stack([a, a, a]))


@pytest.mark.parametrize("kind", [list, tuple])
def test_samples_in_a_list_or_a_tuple(kind):
    arrays = [paint(9, seed=i) for i in range(3)]
    assert_tensor(wr.stack(kind(arrays)), np.stack(arrays))


def test_the_result_is_a_copy_by_default():
    base = paint((4, 8))
    batch = wr.stack(list(base))
    assert pointer(batch.data) != pointer(base)
    want = base.copy()
    base[:] = 0
    assert_tensor(batch, want)


def test_other_fields_are_none():
    batch = wr.stack([paint(3)])
    assert (batch.lengths, batch.offsets, batch.mask, batch.batch_index) == (None,) * 4


@pytest.mark.parametrize("spell", [str, np.dtype, lambda name: np.dtype(name).type])
@pytest.mark.parametrize("name", ["float16", "int32", "bool", "float64"])
def test_dtype_by_string_or_numpy(spell, name):
    arrays = [paint_values((4, 3), "int16", i) for i in range(2)]
    assert_tensor(wr.stack(arrays, dtype=spell(name)), oracle.stack(arrays, "int16", name).data, name)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int64", "bool", "uint8", "float64"])
def test_dtype_by_torch(torch, name):
    arrays = [paint_values((4, 3), "int16", i) for i in range(2)]
    assert_tensor(wr.stack(arrays, dtype=getattr(torch, name)), oracle.stack(arrays, "int16", name).data, name)


def test_mixed_source_dtypes_with_a_dtype():
    names = ["uint8", "int64", "float64", "bool", "float16"]
    arrays = [paint_values((3, 3), name, i) for i, name in enumerate(names)]
    want = np.stack([oracle.cast(a, name, "float32") for a, name in zip(arrays, names)])
    assert_tensor(wr.stack(arrays, dtype="float32"), want)


def test_device_cpu_by_name():
    assert_tensor(wr.stack([paint(4)], device="cpu"), paint(4)[None])


# out


def outs(shape, name):
    """Writable arrays of one shape with different strides, each with the base it is in."""
    c = poisoned(shape, name)
    wide = poisoned((*shape[:-1], 2 * shape[-1]), name)
    tall = poisoned((2 * shape[0] + 1, *shape[1:]), name)
    fortran = poisoned(shape[::-1], name)
    flipped = poisoned(shape, name)
    return {
        "compact": (c, c),
        "every second column": (wide[..., ::2], wide),
        "every second row": (tall[1::2], tall),
        "transposed": (fortran.T, fortran),
        "reversed": (flipped[..., ::-1], flipped),
    }


@pytest.mark.parametrize("kind", list(outs((2, 2), "uint8")))
@pytest.mark.parametrize("target", [None, "float32", "int8"])
def test_out_of_any_layout(kind, target):
    arrays = [paint_values((5, 6), "int16", i) for i in range(4)]
    want = oracle.stack(arrays, "int16", target).data
    out, base = outs(want.shape, want.dtype.name)[kind]
    twin, expected = outs(want.shape, want.dtype.name)[kind]
    twin[...] = want
    batch = wr.stack(arrays, dtype=target, out=out)
    assert base.tobytes() == expected.tobytes()
    assert pointer(batch.data) == pointer(out)
    assert tuple(batch.shape) == want.shape


def test_out_of_a_buffer_a_torch_tensor_and_a_windrow_tensor(torch):
    arrays = [paint(6, seed=i) for i in range(2)]
    want = np.stack(arrays)
    buffer = bytearray(b"\xa5" * 12)
    wr.stack(arrays, out=memoryview(buffer).cast("B", (2, 6)))
    assert bytes(buffer) == want.tobytes()
    tensor = torch.full((2, 6), 0xA5, dtype=torch.uint8)
    wr.stack(arrays, out=tensor)
    assert (tensor.numpy() == want).all()
    earlier = wr.stack([np.zeros(6, np.uint8)] * 2)
    wr.stack(arrays, out=earlier)
    assert_tensor(earlier, want)


def test_out_of_zero_size():
    out = np.empty((3, 0), np.float32)
    assert tuple(wr.stack([np.empty(0, np.float32)] * 3, out=out).shape) == (3, 0)


def test_out_beside_a_source_is_no_overlap():
    base = paint((6, 8))
    want = base.copy()
    want[3:] = base[:3]
    wr.stack(list(base[:3]), out=base[3:])
    assert (base == want).all()


@pytest.mark.parametrize("form", ["stack", "pad", "ragged"])
def test_out_between_sources_is_no_overlap(form):
    """Columns of one replay array: no byte is read and written."""
    replay = paint((16, 3, 5), "float32")
    want = replay.copy()
    rows = [7, 0, 9]
    if form == "stack":
        want[:3, 1] = replay[rows, 0]
        wr.stack([replay[i, 0] for i in rows], out=replay[:3, 1])
    else:
        want[:6, 2] = replay[[7, 8, 0, 1, 9, 10], 0]
        samples = [replay[i : i + 2, 0] for i in rows]
        out = replay[:6, 2]
        wr.pad(samples, out=out.reshape(3, 2, 5)) if form == "pad" else wr.ragged(samples, out=out)
    assert (replay == want).all()
    refusal(lambda: wr.stack([replay[i, 1] for i in rows], out=replay[7:10, 1]), wr.LayoutError, "sample 0.*overlaps")
    fields = np.zeros(8, dtype=[("a", "f4"), ("b", "f4"), ("c", "f8")])
    fields["a"] = range(8)
    wr.stack(list(fields["a"][2:5, None]), out=fields["b"][:3, None])
    assert fields["b"].tolist() == [2, 3, 4, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("samples", [[1, 2], [1.5], [True, False], [[1, 2], [3, 4]], [(1,)], np.float64([[1]]).tolist()])
def test_numbers_have_no_memory_to_view(samples):
    refusal(lambda: wr.stack(samples, copy=False), ValueError, "copy=False, but Python numbers")
    refusal(lambda: wr.collate([{"a": x} for x in samples], copy=False), ValueError, 'at "a.*copy=False')
    want = np.stack([np.asarray(x) for x in samples])
    assert_tensor(wr.stack(samples, copy=None), want)
    wr.stack(wr.SampleList([1, 2]), copy=False)  # the list's memory


# engines


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_own_engine(threads):
    engine = wr.Engine(threads=threads)
    arrays = [paint((300, 301), "float32", i) for i in range(9)]
    assert_tensor(wr.stack(arrays, engine=engine), np.stack(arrays))
    assert_tensor(wr.stack(arrays, engine=engine, dtype="float16"), oracle.stack(arrays, "float32", "float16").data)


def test_engine_with_a_small_or_no_pool():
    for pool_bytes in (0, 1 << 10, 1 << 30):
        engine = wr.Engine(pool_bytes=pool_bytes)
        for i in range(4):
            arrays = [paint(50_000, seed=i + k) for k in range(3)]
            assert_tensor(wr.stack(arrays, engine=engine), np.stack(arrays))


# Rows of one array, which are read as one sample from 256 on


TABLES = {
    "column of numbers": lambda n: paint_values(n),
    "column of a table": lambda n: paint_values((n, 4))[:, 1],
    "every third, backwards": lambda n: paint_values(3 * n)[::-3],
    "the same number": lambda n: np.broadcast_to(paint_values(3)[2], n),
    "rows": lambda n: paint_values((n, 3)),
    "rows with gaps": lambda n: paint_values((n, 8))[:, 2:5],
    "long rows with gaps": lambda n: paint_values((n, 70))[:, 1:],
    "rows backwards": lambda n: paint_values((n, 3))[:, ::-1],
    "a turned table": lambda n: paint_values((5, n)).T,
    "rows of pixels": lambda n: paint_values((n, 4, 3)),
    "turned pixels": lambda n: paint_values((n, 4, 3)).transpose(0, 2, 1),
}


@pytest.mark.parametrize("count", [1, 255, 256, 257, 40_000])
@pytest.mark.parametrize("table", list(TABLES))
def test_rows_of_one_array(table, count):
    table = TABLES[table](count)
    rows = list(table)
    for dtype in (None, "float16", "int64"):
        want = oracle.stack(rows, "float32", dtype).data
        options = {} if dtype is None else {"dtype": dtype}
        assert_tensor(wr.stack(table, **options), want, dtype)
        room = np.full((count, 2, *table.shape[1:]), 77, dtype or "float32")
        wr.stack(table, out=room[:, 1], **options)
        assert_same(room[:, 1], want, dtype)
        assert (room[:, 0] == 77).all()
    if count > 300:
        return
    transforms = [oracle.T(scale=0.5, mean=0.25)]
    if table.ndim > 1:
        channels = table.shape[-1]
        transforms.append(oracle.T(mean=np.arange(channels) / 8, std=np.full(channels, 0.5), channel_dim=-1))
    if table.ndim > 2:
        transforms.append(oracle.T(mean=np.arange(table.shape[1]) / 8, std=np.full(table.shape[1], 0.5), channel_dim=0, permute=(1, 0)))
    for transform in transforms:
        want = oracle.stack(rows, "float32", "float64", transform).data
        assert_tensor(wr.stack(table, dtype="float64", transform=wr.Transform(**transform.arguments())), want)


@pytest.mark.parametrize("count", [12, 300])
def test_an_account_of_rows_of_one_array(count):
    engine = wr.Engine(threads=1)
    gaps = np.zeros((count, 4))
    tables = [(np.zeros(count), "memcpy"), (gaps[:, 1], "gather"), (gaps, "memcpy"), (np.zeros((count, 4, 3))[:, 1], "gather"), (gaps[:, ::2], "strided")]
    for table, path in tables:
        explain, before = wr.explain(table, "stack"), engine.stats()
        wr.stack(table, engine=engine)
        after = engine.stats()
        assert (explain.path, explain.samples, explain.bytes_read) == (path, count, table.nbytes)
        assert (after["samples"] - before["samples"], after["bytes_in"] - before["bytes_in"]) == (count, table.nbytes)
        assert after["paths"].get(path, 0) == before["paths"].get(path, 0) + 1


def test_rows_that_overlap_are_no_view():
    flat = np.arange(20.0)
    rows = np.lib.stride_tricks.sliding_window_view(flat, 4)
    batch = wr.stack(wr.SampleList(rows), copy=None)
    assert_tensor(batch, rows.copy())
    assert pointer(batch) != flat.ctypes.data
    refusal(lambda: wr.stack(wr.SampleList(rows), copy=False), ValueError, "copy=False")
    apart = wr.stack(wr.SampleList(flat.reshape(5, 4)[:, :2]), copy=False)
    assert apart.data.data_ptr() == flat.ctypes.data and apart.numpy().strides == (32, 8)
