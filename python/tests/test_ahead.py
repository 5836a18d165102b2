"""Stacks whose rows are copied while later samples are imported."""

import numpy as np
import pytest

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
