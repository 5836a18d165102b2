"""Leaves of trees that are read together, by several threads if they are many: the same batches and errors as one by one."""

import gc
import sys
import threading

import numpy as np
import pytest

import windrow as wr
from helpers import assert_tensor, paint, refusal

torch = pytest.importorskip("torch")

# More samples than this in all columns are read by several threads.
MANY = 2048


def trees(count, num_columns, make):
    """Dicts of columns that are made in another order than they are listed."""
    columns = {}
    for column in np.random.default_rng(count).permutation(num_columns):
        columns[f"c{column}"] = [make(i, column) for i in range(count)]
    return [{f"c{column}": columns[f"c{column}"][i] for column in range(num_columns)} for i in range(count)]


def tensor(i, column, shape=(2, 3)):
    return torch.from_numpy(paint(shape, ("float32", "int64", "uint8", "float16")[column % 4], i + 7 * column))


def array(i, column):
    return tensor(i, column).numpy()


def assert_batch(batch, samples):
    assert list(batch) == list(samples[0])
    for name in batch:
        assert_tensor(batch[name], np.stack([np.asarray(sample[name]) for sample in samples]))


@pytest.mark.parametrize("make", [tensor, array])
@pytest.mark.parametrize("count, num_columns", [(1, 3), (2, 2), (5, 30), (17, 5), (MANY // 30, 30), (MANY // 30 + 1, 30), (256, 40), (3 * MANY, 2)])
def test_columns_of_every_number(make, count, num_columns):
    samples = trees(count, num_columns, make)
    assert_batch(wr.collate(samples), samples)
    assert_batch(wr.collate(samples, engine=wr.Engine(threads=1)), samples)
    assert_batch(wr.collate([samples[i] for i in reversed(range(count))]), samples[::-1])


def test_views_strides_and_rows_of_other_lengths():
    whole = torch.arange(4000, dtype=torch.int32).view(100, 40)
    samples = [{"row": whole[i], "part": whole[i, 3:9], "turned": whole[:5, :3].t(), "few": whole[i, : i % 7 + 1], "one": whole[i, 0]} for i in range(100)]
    batch = wr.collate(samples, {"few": wr.Pad(value=-1)})
    for name in ("row", "part", "turned", "one"):
        assert_tensor(batch[name], np.stack([sample[name].numpy() for sample in samples]))
    assert batch["few"].lengths.numpy().tolist() == [i % 7 + 1 for i in range(100)]
    assert batch["few"].numpy()[3].tolist() == [120, 121, 122, 123, -1, -1, -1]


def odd(kind, i):
    plain = tensor(i, 0)
    return {
        "requires grad": lambda: plain.requires_grad_(),
        "view that requires grad": lambda: plain.requires_grad_()[:],
        "conjugated": lambda: torch.complex(plain, plain).conj(),
        "sparse": lambda: plain.to_sparse(),
        "meta": lambda: plain.to("meta"),
        "none": lambda: None,
        "of another shape": lambda: plain[:1],
        "of another dtype": lambda: plain.double(),
    }[kind]()


ERRORS = {
    "requires grad": wr.LayoutError,
    "view that requires grad": wr.LayoutError,
    "sparse": wr.LayoutError,
    "none": TypeError,
    "of another shape": wr.ShapeError,
    "of another dtype": wr.DTypeError,
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("count", [5, 300])
def test_an_odd_sample_is_named_by_index_and_path(kind, count):
    for index in (0, 1, count - 1):
        samples = trees(count, 10, lambda i, column: tensor(i, 0))
        samples[index]["c7"] = odd(kind, index)
        named = 1 if index == 0 and kind.startswith("of another") else index
        found = refusal(lambda: wr.collate(samples), ERRORS[kind], f'sample {named} at "c7"')
        assert found is None or getattr(found, "index", named) == named


def test_samples_of_several_kinds_in_one_column():
    samples = trees(400, 6, tensor)
    for i, sample in enumerate(samples):
        sample["c0"] = torch.nn.Parameter(sample["c0"], requires_grad=False) if i % 3 else sample["c0"]
        sample["c1"] = sample["c1"].numpy() if i % 5 else sample["c1"]
        sample["c2"] = wr.asarray(sample["c2"])
        sample["text"], sample["inner"], sample["number"] = str(i), {"a": sample["c3"], "b": sample["c4"]}, i
    batch = wr.collate(samples)
    assert batch["text"] == [str(i) for i in range(400)]
    assert_tensor(batch["number"], np.arange(400))
    assert_batch({f"c{i}": batch[f"c{i}"] for i in range(6)}, [{f"c{i}": np.asarray(sample[f"c{i}"]) for i in range(6)} for sample in samples])
    assert_batch(batch["inner"], [sample["inner"] for sample in samples])


def test_what_is_kept_is_kept():
    """Views hold their samples, a `SampleList` its own, and large rows are copied while they are read."""
    whole = torch.arange(24.0).view(4, 6)
    view = wr.collate([{"a": whole[i], "b": whole[i]} for i in range(4)], copy=False)
    whole[2, 2] = -1
    assert view["a"].numpy()[2, 2] == view["b"].numpy()[2, 2] == -1
    whole.untyped_storage().resize_(24 * 4)
    large = [{"a": torch.full((300, 300), i), "b": torch.full((300, 300), -i)} for i in range(20)]
    assert_batch(wr.collate(large), large)
    out = {"a": np.zeros((20, 300, 300), np.int64), "b": np.zeros((20, 300, 300), np.int64)}
    wr.collate(large, out=out)
    assert (out["b"] == np.arange(0, -20, -1)[:, None, None]).all()


def references(samples):
    return [sys.getrefcount(value) for sample in samples for value in sample.values()]


@pytest.mark.parametrize("num_elems", [1, 15, 16, 17, 5000])
def test_no_sample_is_kept_and_every_reference_is_given_back(num_elems):
    """Columns of up to 64 bytes a sample are assembled before references are counted."""
    samples = trees(256, 12, lambda i, column: tensor(i, 0, (num_elems,)))
    before = references(samples)
    for kwargs in ({}, {"arena": True}, {"dtype": "float64"}, {"copy": None}, {"spec": {"c3": wr.Pad()}}):
        assert_batch(wr.collate(samples, **kwargs), [{name: value.numpy().astype(kwargs.get("dtype", "float32")) for name, value in sample.items()} for sample in samples])
    wr.explain(samples, "collate")
    out = {name: np.zeros((256, num_elems), "float32") for name in samples[0]}
    wr.collate(samples, out=out)
    samples[200]["c5"] = samples[200]["c5"][:0]
    before[200 * 12 + 5] = sys.getrefcount(samples[200]["c5"]) - 1
    refusal(lambda: wr.collate(samples), wr.ShapeError, 'sample 200 at "c5"')
    refusal(lambda: wr.collate([*samples, {}]), KeyError, "sample 256")
    refusal(lambda: wr.collate([*samples, 1]), TypeError, "sample 256")
    del out
    after = references(samples)
    before[200 * 12 + 5] = after[200 * 12 + 5]
    assert after == before


@pytest.mark.parametrize("count", [5, 300])
@pytest.mark.parametrize("num_elems", [3, 40])
def test_values_that_only_temporary_dicts_hold(count, num_elems):
    class Point:
        def __init__(self, i):
            self.i = i

    def made(i):
        return {"x": torch.full((num_elems,), i), "y": torch.full((num_elems,), -i), "z": torch.full((num_elems,), 0.5 * i)}

    wr.register_node(Point, lambda point: made(point.i), lambda children: children)
    assert_batch(wr.collate(Point(i) for i in range(count)), [made(i) for i in range(count)])
    assert_batch(wr.collate(made(i) for i in range(count)), [made(i) for i in range(count)])
    nested = wr.collate({"n": i, "p": Point(i)} for i in range(count))
    assert_batch(nested["p"], [made(i) for i in range(count)])


def swapped(samples):
    """Other tensors with the same values in place of all, whose memory gets others."""
    for sample in samples:
        for name in list(sample):
            sample[name] = sample[name].clone()
    return [torch.full((8,), np.nan) for _ in range(3 * len(samples))]


def test_keys_whose_text_runs_code():
    class Key:
        def __str__(self):
            kept.append(swapped(samples))
            return "name"

    kept, keys = [], [Key() for _ in range(3)]
    samples = [{key: torch.full((8,), i) for key in keys} for i in range(200)]
    batch = wr.collate(samples)
    assert kept and all((batch[key].numpy()[:, 0] == np.arange(200)).all() for key in keys)


def test_a_collection_at_any_moment():
    class Garbage:
        def __init__(self):
            self.itself = self

        def __del__(self):
            kept.append(swapped(samples))

    kept, thresholds = [], gc.get_threshold()
    samples = [{name: torch.full((8,), i) for name in "abcd"} for i in range(100)]
    try:
        for moment in range(1, 80):
            gc.collect()
            gc.set_threshold(gc.get_count()[0] + moment)
            Garbage()
            batch = wr.collate(samples)
            gc.set_threshold(*thresholds)
            assert all((batch[name].numpy() == np.arange(100)[:, None]).all() for name in "abcd"), moment
            del kept[:]
    finally:
        gc.set_threshold(*thresholds)


def test_threads_that_collate_side_by_side():
    samples, failures = trees(300, 12, tensor), []
    want = wr.collate(samples)

    def work():
        for _ in range(20):
            got = wr.collate(samples)
            if any(got[name].numpy().tobytes() != want[name].numpy().tobytes() for name in want):
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures
