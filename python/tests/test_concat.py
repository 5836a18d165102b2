"""wr.concat: equal but for one dim, with lengths and offsets along it."""

import pytest

import oracle
import windrow as wr
from helpers import assert_tensor, assert_values, paint, paint_values, poisoned, samples_of
from oracle import T


def check(arrays, name, dim=0, batch=None, **arguments):
    want = oracle.concat(arrays, name, dim, arguments.get("dtype"))
    batch = batch or wr.concat(samples_of(arrays, name), dim=dim, **arguments)
    assert_tensor(batch, want.data, arguments.get("dtype") or name)
    assert_values(batch.lengths, want.lengths)
    assert_values(batch.offsets, want.offsets)
    assert len(batch) == len(arrays)
    return batch


@pytest.mark.parametrize("name", oracle.ALL)
@pytest.mark.parametrize("dim", [0, 1])
def test_every_dtype(name, dim):
    shapes = [(3, 4), (1, 4), (5, 4)] if dim == 0 else [(4, 3), (4, 1), (4, 5)]
    check([paint(shape, name, 11 * i) for i, shape in enumerate(shapes)], name, dim)


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 6])
def test_every_dim_of_every_rank(rank):
    for dim in range(-rank, rank):
        shapes = [[2 + d % 2 for d in range(rank)] for _ in range(4)]
        for i, shape in enumerate(shapes):
            shape[dim] = [3, 0, 1, 4][i]
        check([paint(shape, "int16", 5 * i) for i, shape in enumerate(shapes)], "int16", dim)


def test_default_dim_is_the_first():
    arrays = [paint((n, 2)) for n in (2, 3)]
    check(arrays, "uint8", 0, wr.concat(arrays))


def test_samples_without_elements():
    check([paint((0, 3)) for _ in range(3)], "uint8")
    check([paint((2, 0, 3)), paint((2, 0, 1))], "uint8", 2)
    check([paint(0), paint(4), paint(0)], "uint8")


def test_one_sample():
    check([paint((3, 4), "float32")], "float32", 1)


def test_equal_extents():
    check([paint((3, 4), "float32", i) for i in range(5)], "float32", 1)


def test_audio_clips():
    check([paint(1000 + 37 * i, "float32", i) for i in range(100)], "float32")


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_strided_sources(dim):
    def view(i, shape):
        base = paint([2 * extent + 1 for extent in shape][::-1], "float64", i)
        return base.T[::-2, 1::2, ::-2][: shape[0], : shape[1], : shape[2]]

    shapes = [[3, 4, 5] for _ in range(3)]
    for i, shape in enumerate(shapes):
        shape[dim] = i + 1
    arrays = [view(i, shape) for i, shape in enumerate(shapes)]
    check(arrays, "float64", dim)


@pytest.mark.parametrize("target", oracle.CASTABLE)
def test_cast(target):
    check([paint_values((n, 7), "float32", n) for n in (3, 1, 4)], "float32", 0, dtype=target)
    check([paint_values((7, n), "float32", n) for n in (3, 1, 4)], "float32", 1, dtype=target)


def test_arithmetic():
    t = T(scale=1 / 255, mean=[0.4, 0.5, 0.6], std=[0.2, 0.3, 0.25], channel_dim=1)
    arrays = [paint((n, 3, 5)) for n in (2, 6, 1)]
    want = oracle.concat(arrays, "uint8", 0, "float16", t)
    batch = wr.concat(arrays, dtype="float16", transform=wr.Transform(**t.arguments()))
    assert_tensor(batch, want.data)
    assert_values(batch.offsets, want.offsets)


@pytest.mark.parametrize("dim", [0, 1])
def test_out(dim):
    shapes = [(3, 4), (1, 4), (5, 4)]
    arrays = [paint(shape if dim == 0 else shape[::-1], "int32", i) for i, shape in enumerate(shapes)]
    want = oracle.concat(arrays, "int32", dim)
    base = poisoned((want.data.shape[0], 2 * want.data.shape[1]), "int32")
    expected = base.copy()
    expected[:, 1::2] = want.data
    batch = wr.concat(arrays, dim=dim, out=base[:, 1::2])
    assert base.tobytes() == expected.tobytes()
    assert_values(batch.offsets, want.offsets)


@pytest.mark.parametrize("dim", [0, 1])
def test_samples_of_the_batch_are_slices(dim):
    arrays = [paint((n, 4) if dim == 0 else (4, n), "float32", n) for n in (3, 0, 2)]
    batch = wr.concat(arrays, dim=dim)
    for array, part in zip(arrays, batch):
        assert (part.numpy() == array).all() and part.numpy().shape == array.shape
