"""windrow.jax.grain: batches of grain pipelines, in one process and in workers."""

import doctest
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

import isolated
import oracle
import windrow as wr
from helpers import assert_same, paint, paint_values, refusal

pytest.importorskip("jax", reason="SKIP: jax is not installed")
grain = pytest.importorskip("grain", reason="SKIP: grain is not installed")

import windrow.jax  # noqa: E402
import windrow.jax.grain  # noqa: E402
from grain.multiprocessing import SharedMemoryArray  # noqa: E402

pytestmark = pytest.mark.slow

COUNT, SIZE = 21, 4
SPEC = {"ids": wr.Pad(value=-1, mask="real"), "half": wr.Stack(dtype="bfloat16")}


class Source:
    """Samples made on the spot; picklable, for workers."""

    def __len__(self):
        return COUNT

    def __getitem__(self, i):
        return {
            "image": paint((16, 8, 3), "uint8", i),
            "ids": np.arange(i, i + 1 + i % 5),
            "half": paint_values(6, "float32", i),
            "name": f"n{i}",
        }


def assert_batch(batch, indices):
    samples = [Source()[i] for i in indices]
    ids = oracle.pad([sample["ids"] for sample in samples], "int64", -1, mask="real")
    assert_same(np.asarray(batch["image"]), np.stack([sample["image"] for sample in samples]))
    assert isinstance(batch["ids"], windrow.jax.JaxBatch)
    assert_same(np.asarray(batch["ids"].data), ids.data)
    assert_same(np.asarray(batch["ids"].mask), ids.mask)
    assert_same(np.asarray(batch["ids"].lengths), ids.lengths)
    half = oracle.stack([sample["half"] for sample in samples], "float32", "bfloat16").data
    assert_same(np.asarray(batch["half"]).view(np.uint16), half)
    assert batch["name"] == [sample["name"] for sample in samples]


def pipeline(batch_fn):
    return grain.MapDataset.source(Source()).to_iter_dataset().batch(SIZE, batch_fn=batch_fn)


def parts():
    return [range(start, min(start + SIZE, COUNT)) for start in range(0, COUNT, SIZE)]


def test_in_one_process():
    batches = list(pipeline(windrow.jax.grain.BatchFn(SPEC)))
    assert len(batches) == len(parts())
    for batch, indices in zip(batches, parts()):
        assert_batch(batch, indices)
        assert type(batch["image"]) is np.ndarray


def segments():
    """Segments of shared memory that are there now."""
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir() if path.name.startswith("psm_")} if folder.is_dir() else set()


def test_shared_memory_is_written_to_directly():
    make = windrow.jax.grain.BatchFn(SPEC)
    make.enable_shared_memory_output()
    before = segments()
    batch = make([Source()[i] for i in range(SIZE)])
    assert_batch(batch, range(SIZE))
    shared = [batch["image"], batch["ids"].data]
    for array in shared:
        assert isinstance(array, SharedMemoryArray)
        assert array.metadata.shape == array.shape and array.metadata.dtype == array.dtype
        array.unlink_on_del()
    del batch, shared, array
    assert segments() <= before


def test_a_failure_leaves_no_segment():
    make = windrow.jax.grain.BatchFn({"b": wr.Stack()})
    make.enable_shared_memory_output()
    before = segments()
    samples = [{"a": paint((64, 64)), "b": paint(3 + i)} for i in range(3)]
    refusal(lambda: make(samples), wr.ShapeError, "leaf 'b'", index=1, path="b")
    assert segments() <= before


def test_empty_leaves_in_shared_memory():
    make = windrow.jax.grain.BatchFn(wr.Ragged())
    make.enable_shared_memory_output()
    batch = make([np.empty((0, 3), np.float32)] * 2)
    assert batch.data.shape == (0, 3) and batch.max_length == 0


def test_it_pickles_and_makes_its_engine_where_it_is_used():
    make = windrow.jax.grain.BatchFn(SPEC, threads=2)
    assert_batch(make([Source()[i] for i in range(3)]), range(3))
    again = pickle.loads(pickle.dumps(make))
    assert again._engine is None
    assert_batch(again([Source()[i] for i in range(3)]), range(3))


def test_errors():
    make = windrow.jax.grain.BatchFn
    refusal(lambda: make({"a": 3}), TypeError, "wr.Pad")
    refusal(lambda: make({"a": wr.Pad()})([{"b": 1}]), ValueError, "'a' matches no leaf", "'b'")
    refusal(lambda: make()([{"b": 1}, {"c": 1}]), ValueError, "sample 1")
    refusal(lambda: make()([{"b": object()}]), TypeError, "leaf 'b'")


def test_the_example_of_the_docstring_runs():
    (found,) = doctest.DocTestFinder(recurse=False).find(windrow.jax.grain.BatchFn, "BatchFn")
    assert found.examples and doctest.DocTestRunner(verbose=False).run(found).failed == 0


# Workers start as fresh interpreters, from a program of its own.
PROGRAM = """
import gc
import time
import absl.flags
import grain
import windrow as wr, windrow.jax.grain
from test_jax_grain import COUNT, SPEC, SharedMemoryArray, assert_batch, pipeline, segments

class Tells(windrow.jax.grain.BatchFn):
    def __call__(self, values):
        batch = super().__call__(values)
        return {**batch, "was": type(batch["image"]).__name__}

def read(batch_fn, workers):
    return iter(pipeline(batch_fn).mp_prefetch(grain.MultiprocessingOptions(num_workers=workers)))

def check(batch):
    indices = [int(name[1:]) for name in batch["name"]]
    assert_batch(batch, indices)
    assert isinstance(batch["image"], SharedMemoryArray)
    return indices

if __name__ == "__main__":
    absl.flags.FLAGS.mark_as_parsed()
    before = segments()
    seen = []
    for batch in read(Tells(SPEC), 2):
        assert batch["was"] == "SharedMemoryArray", batch["was"]
        seen += check(batch)
    assert sorted(seen) == list(range(COUNT)), seen
    # The pipeline is read to its end: if it is given up, grain may leave what a worker has just sent.
    for batch in read(windrow.jax.grain.BatchFn(SPEC), 1):
        check(batch)
    try:
        next(read(windrow.jax.grain.BatchFn(), 1))
    except Exception as error:
        assert "leaf 'ids'" in str(error), error
        print("refused")
    del batch
    for _ in range(100):
        gc.collect()
        if segments() <= before:
            break
        time.sleep(0.1)
    print("left:", sorted(segments() - before))
"""


def test_in_worker_processes(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "JAX_PLATFORMS": "cpu"}
    done = isolated.python(program, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[:2] == ["refused", "left: []"], done.stdout


def test_rows_of_arrow_scales_and_texts():
    pa = pytest.importorskip("pyarrow", reason="SKIP: pyarrow is not installed")
    rows = pa.RecordBatch.from_pydict({"a": [1, 2, 3], "b": [4, 5, 6]})
    for made in (windrow.jax.grain.BatchFn()(rows), windrow.jax.collate(rows)):
        assert {name: np.asarray(column).tolist() for name, column in made.items()} == {"a": [1, 2, 3], "b": [4, 5, 6]}
    samples = [np.full((2, 32), index + 1, "f4") for index in range(2)]
    for form in (wr.Stack, wr.Pad):
        want = getattr(wr, form.__name__.lower())(samples, transform=wr.Quantize("int8"))
        for shared in (False, True):
            make = windrow.jax.grain.BatchFn(form(transform=wr.Quantize("int8")))
            if shared:
                make.enable_shared_memory_output()
            batch = make(samples)
            assert np.array_equal(batch.data, want.numpy()) and np.array_equal(batch.scales, want.scales.numpy())
    refusal(lambda: windrow.jax.grain.BatchFn()(["a", 1]), TypeError, "sample 1: expected str, got int", index=1)
