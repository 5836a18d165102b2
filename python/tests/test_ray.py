"""windrow.ray on a cluster of this machine: two worker processes, blocks in the object store."""

import os

import numpy as np
import pytest

import windrow as wr
from helpers import run_examples

pa = pytest.importorskip("pyarrow", reason="SKIP: pyarrow is not installed")
ray = pytest.importorskip("ray", reason="SKIP: ray is not installed")
pytest.importorskip("ray.data", reason="SKIP: ray[data] is not installed", exc_type=ImportError)
pytest.importorskip("ray.train", reason="SKIP: ray.train, which iter_torch_batches asks for a device", exc_type=ImportError)
torch = pytest.importorskip("torch")

import windrow.ray  # noqa: E402
from ray.data.extensions import ArrowVariableShapedTensorArray  # noqa: E402

pytestmark = pytest.mark.slow

BLOCKS, ROWS = 4, 40
SPEC = {"ids": wr.Pad(value=-1, mask="real", multiple_of=8), "image": wr.Pad(dtype="float16"), "feature": wr.Stack()}


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=128 << 20, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


def row(i):
    """Row `i` of the whole dataset."""
    return {
        "ids": np.arange(i, i + 1 + i * 7 % 23, dtype=np.int32),
        "image": np.full((2 + i % 3, 3 + i % 2, 3), i % 251, np.uint8),
        "feature": np.arange(4, dtype=np.float32) + i,
        "y": np.int64(i),
    }


def block(first):
    rows = [row(i) for i in range(first, first + ROWS)]
    features = pa.array(np.concatenate([row["feature"] for row in rows]))
    return pa.table(
        {
            "ids": pa.array([row["ids"] for row in rows]),
            "image": ArrowVariableShapedTensorArray.from_numpy([row["image"] for row in rows]),
            "feature": pa.FixedSizeListArray.from_arrays(features, 4),
            "y": pa.array([row["y"] for row in rows]),
        }
    )


@pytest.fixture(scope="module")
def dataset(cluster):
    """Blocks that two worker processes have put into the object store."""

    class Maker:
        def make(self, table):
            return table

        def pid(self):
            return os.getpid()

    actor = ray.remote(num_cpus=0)(Maker)
    makers = [actor.remote(), actor.remote()]
    assert len({os.getpid(), *ray.get([maker.pid.remote() for maker in makers])}) == 3
    blocks = [makers[b % 2].make.remote(block(b * ROWS)) for b in range(BLOCKS)]
    dataset = ray.data.from_arrow_refs(blocks)
    yield dataset
    del makers


def assert_batch(batch, first, count):
    """The batch holds rows `first` to `first + count` of the dataset, padded."""
    rows = [row(i) for i in range(first, first + count)]
    longest = -(-max(len(row["ids"]) for row in rows) // 8) * 8
    ids = np.full((count, longest), -1, np.int32)
    image = np.zeros((count, *np.max([row["image"].shape for row in rows], axis=0)), np.float16)
    for i, sample in enumerate(rows):
        ids[i, : len(sample["ids"])] = sample["ids"]
        height, width, _ = sample["image"].shape
        image[i, :height, :width] = sample["image"]
    lengths = np.array([len(row["ids"]) for row in rows])
    want = {
        "ids": ids,
        "ids_lengths": lengths,
        "ids_mask": np.arange(longest) < lengths[:, None],
        "image": image,
        "feature": np.stack([row["feature"] for row in rows]),
        "y": np.array([row["y"] for row in rows]),
    }
    for name, array in want.items():
        assert isinstance(batch[name], torch.Tensor)
        assert batch[name].numpy().dtype == array.dtype and np.array_equal(batch[name].numpy(), array), name


def assert_parts(batches):
    """Every row of the dataset is in one of the batches, in whatever order Ray's threads give them."""
    expected = 0
    for batch in sorted(batches, key=lambda batch: int(batch["y"][0])):
        first, count = int(batch["y"][0]), len(batch["y"])
        assert first == expected
        assert_batch(batch, first, count)
        expected += count
    assert expected == BLOCKS * ROWS


def assert_dataset(batches, size):
    batches = list(batches)
    total = BLOCKS * ROWS
    assert sorted(len(batch["y"]) for batch in batches) == sorted(min(size, total - i) for i in range(0, total, size))
    assert_parts(batches)


# 16 cuts blocks, 40 takes them whole, 64 spans them.
@pytest.mark.parametrize("size", [16, 40, 64])
def test_iter_torch_batches(dataset, size):
    collate = windrow.ray.GatherCollate(SPEC)
    assert_dataset(dataset.iter_torch_batches(batch_size=size, collate_fn=collate), size)


def test_numpy_batches(dataset):
    collate = windrow.ray.NumpyGatherCollate(SPEC)
    assert_dataset(dataset.iter_torch_batches(batch_size=64, collate_fn=collate), 64)


def test_blocks_are_read_where_the_object_store_has_them(dataset):
    seen = []

    class Look(windrow.ray.GatherCollate):
        def __call__(self, batch):
            chunk = batch["feature"].chunks[0]
            buffer = chunk.buffers()[-1]
            samples = windrow.ray._columns.columns_of(batch, ["feature"])["feature"]
            seen.append((buffer.is_mutable, samples[0].data_ptr() - buffer.address))
            return super().__call__(batch)

    assert_dataset(dataset.iter_torch_batches(batch_size=40, collate_fn=Look(SPEC)), 40)
    assert len(seen) == BLOCKS
    for is_mutable, offset in seen:
        assert not is_mutable and 0 <= offset < ROWS * 16


def test_prefetching_threads_share_one_collate(dataset):
    collate = windrow.ray.GatherCollate(SPEC)
    batches = dataset.iter_torch_batches(batch_size=16, collate_fn=collate, prefetch_batches=4)
    assert_dataset(batches, 16)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_packed_by_workers(dataset, device):
    packed = dataset.map_batches(
        windrow.ray.pack,
        batch_format="pyarrow",
        batch_size=64,
        zero_copy_batch=True,
        fn_kwargs={"spec": SPEC},
    ).materialize()
    batches = list(packed.iter_torch_batches(batch_size=1, collate_fn=windrow.ray.UnpackCollate(device)))
    assert len(batches) == packed.count() >= BLOCKS * ROWS / 64
    assert_parts(batches)
    assert_parts(windrow.ray.unpack(row, device) for row in packed.iter_rows())


@pytest.mark.parametrize("page", ["docs/recipes/ray.md", "docs/scale.md"])
def test_the_examples_of_pages_run(cluster, page):
    run_examples(page)


def test_an_error_arrives_and_the_next_iteration_works(dataset):
    with pytest.raises(wr.ShapeError, match="column 'ids': sample 1"):
        list(dataset.iter_torch_batches(batch_size=40, collate_fn=windrow.ray.GatherCollate()))
    collate = windrow.ray.GatherCollate(SPEC)
    assert_dataset(dataset.iter_torch_batches(batch_size=40, collate_fn=collate), 40)


def test_an_iteration_that_is_left_early(dataset):
    collate = windrow.ray.GatherCollate(SPEC)
    for batch in dataset.iter_torch_batches(batch_size=16, collate_fn=collate, prefetch_batches=2):
        assert_batch(batch, int(batch["y"][0]), 16)
        break


def test_a_header_of_more_bytes_than_there_are():
    packed = windrow.ray.pack(pa.table({"ids": [[1, 2, 3], [4]]}), {"ids": wr.Pad()})
    row = packed.to_pylist()[0]
    with pytest.raises(ValueError, match="windrow_arena has 64 bytes, and windrow_header is of"):
        windrow.ray.unpack({**row, "windrow_arena": row["windrow_arena"][:64]})
