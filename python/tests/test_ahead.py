"""Stacks whose rows are copied while later samples are imported."""

import numpy as np
import pytest

import isolated
import windrow as wr

torch = pytest.importorskip("torch")

ENGINE = wr.Engine(threads=3)


def rows(count, length=256):
    data = torch.arange(count * length, dtype=torch.float32).reshape(count, length)
    return data, [row.clone() for row in data]


@pytest.mark.parametrize("count", [1023, 1024, 1025, 2048, 5000])
@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_many_equal_tensors(count, kind):
    data, samples = rows(count)
    batch = wr.stack(kind(samples), engine=ENGINE)
    assert torch.equal(batch.torch(), data)


@pytest.mark.parametrize("place", [1, 2, 999, 2047])
def test_a_sample_that_does_not_fit_is_named_and_nothing_stays_behind(place):
    _, samples = rows(2048)
    engine = wr.Engine(threads=3)
    samples[place] = torch.zeros(255)
    with pytest.raises(wr.ShapeError) as caught:
        wr.stack(samples, engine=engine)
    assert caught.value.index == place
    samples[place] = object()
    with pytest.raises(TypeError, match=f"sample {place}"):
        wr.stack(samples, engine=engine)
    samples[place] = torch.zeros(256).to_sparse()
    with pytest.raises(wr.LayoutError) as caught:
        wr.stack(samples, engine=engine)
    assert caught.value.index == place
    assert engine.stats()["pool_used_bytes"] == 0
    samples[place] = torch.zeros(256)
    assert torch.equal(wr.stack(samples, engine=engine).torch(), torch.stack(samples))


@pytest.mark.parametrize("place", [1, 1000, 2047])
def test_a_sample_of_another_kind_of_memory_is_fine(place):
    data, samples = rows(2048)
    for other in (samples[place].numpy(), torch.stack([samples[place]] * 2, 1)[:, 0], data[place]):
        mixed = samples[:place] + [other] + samples[place + 1 :]
        assert torch.equal(wr.stack(mixed, engine=ENGINE).torch(), data)


def test_columns_of_trees():
    a, samples = rows(2048)
    b = -a
    trees = [{"a": x, "b": -x, "c": float(i)} for i, x in enumerate(samples)]
    batch = wr.collate(trees, engine=ENGINE)
    assert torch.equal(batch["a"].torch(), a) and torch.equal(batch["b"].torch(), b)
    assert np.array_equal(batch["c"].numpy(), np.arange(2048.0))


def test_a_tree_that_breaks_off():
    _, samples = rows(2048)
    trees = [{"a": x, "b": x} for x in samples]
    trees[-1] = {"a": samples[-1], "b": None}
    with pytest.raises(TypeError, match="sample 2047"):
        wr.collate(trees, engine=ENGINE)
    assert ENGINE.stats()["pool_used_bytes"] == 0


def test_counted_once():
    _, samples = rows(2048)
    engine = wr.Engine(threads=2)
    wr.stack(samples, engine=engine)
    stats = engine.stats()
    assert (stats["batches"], stats["samples"], stats["bytes_out"]) == (1, 2048, 2048 * 1024)


def arrays(count, length=256):
    data = np.arange(count * length, dtype=np.float32).reshape(count, length)
    return data, [row.copy() for row in data]


@pytest.mark.parametrize("count", [1023, 1024, 1025, 2048, 5000])
@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_many_equal_arrays(count, kind):
    data, samples = arrays(count)
    assert np.array_equal(wr.stack(kind(samples), engine=ENGINE).numpy(), data)


class Writer(np.ndarray):
    """Runs Python code when read, which writes to another array."""

    def __dlpack__(self, **kwargs):
        self.other[:] = -1
        return super().__dlpack__(**kwargs)


@pytest.mark.parametrize("place", [1, 1000, 2047])
def test_an_array_of_another_kind_is_fine(place):
    data, samples = arrays(2048)
    frozen = samples[place].copy()
    frozen.flags.writeable = False
    strided = np.stack([samples[place]] * 2, 1)[:, 0]
    turned = samples[place][::-1].copy()[::-1]
    foreign = samples[place].astype(samples[place].dtype.newbyteorder())
    for other in (frozen, strided, turned, foreign, torch.from_numpy(samples[place]), memoryview(samples[place])):
        mixed = samples[:place] + [other] + samples[place + 1 :]
        assert np.array_equal(wr.stack(mixed, engine=ENGINE).numpy(), data)


@pytest.mark.parametrize("place", [1, 1000, 2047])
def test_an_array_that_does_not_fit_is_named_and_nothing_stays_behind(place):
    _, samples = arrays(2048)
    engine = wr.Engine(threads=3)
    for other, kind in [
        (np.zeros(255, np.float32), wr.ShapeError),
        (np.zeros(256, np.int32), wr.DTypeError),
        (np.zeros(256, np.dtype(np.int32).newbyteorder()), wr.DTypeError),
        (object(), TypeError),
    ]:
        mixed = samples[:place] + [other] + samples[place + 1 :]
        with pytest.raises(kind) as caught:
            wr.stack(mixed, engine=engine)
        assert f"sample {place}" in str(caught.value)
    assert engine.stats()["pool_used_bytes"] == 0


GUARD = """
import mmap
region = mmap.mmap(-1, 2 * mmap.PAGESIZE)
end = ctypes.addressof(ctypes.c_char.from_buffer(region)) + mmap.PAGESIZE
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(end), mmap.PAGESIZE, 0) == 0
samples = [np.zeros(256, np.float32) for _ in range(20_000)]
samples[1] = np.frombuffer(region, np.float32, 64, mmap.PAGESIZE - 256)
for _ in range(5):
    try:
        wr.stack(samples, engine=wr.Engine(threads=3))
    except wr.ShapeError as error:
        assert error.index == 1
    else:
        raise SystemExit("stacked")
"""


@pytest.mark.slow
def test_nothing_beyond_a_shorter_array_is_read():
    """It ends where memory ends that can be read."""
    isolated.run(GUARD)


def test_python_code_that_writes_to_arrays_already_read():
    data, samples = arrays(2048)
    writer = samples[1000].view(Writer)
    writer.other = samples[3]
    batch = wr.stack(samples[:1000] + [writer] + samples[1001:], engine=ENGINE).numpy()
    # Nothing of what was copied before it is used.
    data[3] = -1
    assert np.array_equal(batch, data)
