"""pack_buckets: leaves in buffers of a bounded size, put together again from JSON and bytes."""

import numpy as np
import pytest

import windrow as wr
from helpers import paint_values, refusal
from test_packed import leaves_of, sample


def put_together(tree, max_bytes, into, **arguments):
    buckets = []
    for bucket in wr.pack_buckets(tree, max_bytes, **arguments):
        assert bucket.nbytes <= max_bytes and bucket.buffer.nbytes == bucket.nbytes
        text, data = bucket.layout.to_json(), bytes(bucket.buffer)
        buckets.append((text, data))
        assert wr.Layout.from_json(text) == bucket.layout
        assert wr.unpack(data, wr.Layout.from_json(text), into=into) is into
    return buckets


@pytest.mark.parametrize("max_bytes", [1, 7, 64, np.int64(100), 1000, 10**6])
@pytest.mark.parametrize("align", [1, 16, 64])
def test_buckets(max_bytes, align):
    tree = sample()
    tree["tied"] = tree["p"].y
    tree["turned"] = paint_values((5, 6), "int16").T
    tree["swapped"] = np.arange(50, dtype=">u2")
    into = sample(lambda shape, dtype, seed: np.zeros(shape, dtype))
    into.update(tied=into["p"].y, turned=np.zeros((6, 5), np.int16), swapped=np.zeros(50, np.uint16))
    buckets = put_together(tree, max_bytes, into, align=align)
    for own, array in zip([*leaves_of(into), into["turned"], into["swapped"]], [*leaves_of(tree), tree["turned"], tree["swapped"]]):
        np.testing.assert_array_equal(own, array)
    used = sum(array.nbytes for array in [*leaves_of(tree), tree["turned"], tree["swapped"]])
    assert len(buckets) >= used / max_bytes
    if max_bytes == 10**6:
        assert buckets == [(wr.pack(tree, align=align).layout.to_json(), bytes(wr.pack(tree, align=align).buffer))]


def test_buckets_share_one_buffer():
    arrays = [paint_values(n, "uint8", n) for n in (40, 40, 100, 10)]
    places, offsets = [], []
    for bucket in wr.pack_buckets(arrays, 64, align=8):
        places.append(bucket.buffer.data_ptr())
        offsets.append(list(zip(bucket.layout.paths, bucket.layout.shapes, bucket.layout.offsets)))
        tree = bucket.unpack()
        for path, shape, _ in offsets[-1]:
            assert tree[int(path)].shape == shape
        assert sum(leaf is not None for leaf in tree) == len(offsets[-1])
    assert len(set(places)) == 1
    assert offsets == [
        [("0", (40,), 0)],
        [("1", (40,), 0), ("2", (24,), 40)],
        [("2", (64,), 0)],
        [("2", (12,), 0), ("3", (10,), 16)],
    ]
    assert list(wr.pack_buckets({}, 10)) == []
    assert len(list(wr.pack_buckets([np.zeros((0, 3))], 10))) == 1


def test_pieces_need_their_own_place():
    bucket = next(wr.pack_buckets({"w": np.arange(10.0)}, 24))
    for bad, kind in [
        (np.zeros(10, np.float32), wr.DTypeError),
        (np.zeros((2, 5)), wr.ShapeError),
        (np.zeros(20)[::2], wr.LayoutError),
        (b"x" * 80, wr.DTypeError),
        (None, TypeError),
    ]:
        error = refusal(lambda bad=bad: wr.unpack(bucket.buffer, bucket.layout, into={"w": bad}), kind)
        assert error.path == "w" and str(error).startswith('into at "w": expected')
    frozen = np.zeros(10)
    frozen.flags.writeable = False
    refusal(lambda: wr.unpack(bucket.buffer, bucket.layout, into={"w": frozen}), wr.LayoutError)
    assert not frozen.any()


def test_a_leaf_with_gaps_is_made_row_major_once(monkeypatch):
    calls, stack = [], wr.packed._windrow.stack
    monkeypatch.setattr(wr.packed._windrow, "stack", lambda samples: calls.append(samples) or stack(samples))
    tree = {"turned": paint_values((30, 40)).T, "plain": paint_values((30, 40)), "swapped": np.arange(500, dtype=">i4"), "small": np.ones(3)}
    into = {key: np.zeros(array.shape, array.dtype.newbyteorder("=")) for key, array in tree.items()}
    assert len(put_together(tree, 100, into)) > 100
    assert len(calls) == 2
    for key, array in tree.items():
        np.testing.assert_array_equal(into[key], array)


def test_leaves_that_move_between_two_buckets():
    torch = pytest.importorskip("torch")
    for move in (lambda t: t.resize_(1 << 22), lambda t: t.untyped_storage().resize_(1 << 24)):
        tensor = torch.arange(1 << 12, dtype=torch.float32)
        buckets = wr.pack_buckets({"t": tensor}, 1 << 10)
        next(buckets)
        move(tensor)
        refusal(lambda: next(buckets), wr.LayoutError, "memory that was moved or freed")
    kept = torch.arange(1 << 12, dtype=torch.float32)
    want, pieces = kept.numpy().tobytes(), []
    for bucket in wr.pack_buckets({"t": kept}, 1 << 10):
        pieces.append(bytes(bucket.buffer))
        kept.data = torch.zeros(1)
    assert b"".join(pieces) == want
