"""windrow.ray on two Ray nodes, both on this machine, of which one is killed while it assembles batches: every row comes once."""

import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import isolated
import windrow as wr

pa = pytest.importorskip("pyarrow", reason="SKIP: pyarrow is not installed")
ray = pytest.importorskip("ray", reason="SKIP: ray is not installed")
pytest.importorskip("ray.data", reason="SKIP: ray[data] is not installed", exc_type=ImportError)
pytest.importorskip("ray.train", reason="SKIP: ray.train, which iter_torch_batches asks for a device", exc_type=ImportError)
pytest.importorskip("torch", reason="SKIP: torch is not installed")

import windrow.ray  # noqa: E402

pytestmark = pytest.mark.slow

# A batch of ROWS rows is larger than what Ray keeps in the memory of the driver: it is lost with its node.
BLOCKS, ROWS, LONGEST = 16, 32, 2048
# Batches that a node makes before it waits: more than the driver takes from there in advance.
FREE = 4


def length(i):
    return 1 + i * 7919 % LONGEST


def makes_rows(folder):
    """The part of a task before windrow assembles: it makes a block of rows, and leaves a file that says which and where. After
    FREE of them it waits until the driver has killed a node."""

    def make(batch):
        first, node = int(batch["id"][0]), ray.get_runtime_context().get_node_id()
        if len(list(folder.glob(f"made-{node}-*"))) >= FREE:
            (folder / f"waits-{node}-{first}-{os.getpid()}").touch()
            while not (folder / "killed").exists():
                time.sleep(0.02)
        ids = [np.full(length(i), i, np.int32) for i in batch["id"].tolist()]
        (folder / f"made-{node}-{first}").touch()
        return pa.table({"ids": pa.array(ids), "y": batch["id"]})

    return make


def fields_of(folder, kind):
    return [path.name.split("-")[1:] for path in folder.glob(f"{kind}-*")]


def check(batch):
    lengths = np.array([length(i) for i in batch["y"].tolist()])
    want = np.where(np.arange(max(lengths)) < lengths[:, None], batch["y"].numpy()[:, None], -1)
    assert np.array_equal(batch["ids_lengths"].numpy(), lengths) and np.array_equal(batch["ids"].numpy(), want)
    assert np.array_equal(batch["ids_mask"].numpy(), want >= 0) and batch["ids"].numpy().dtype == np.int64
    return batch["y"].tolist()


def lose_a_node(folder):
    """Reads a dataset on two nodes of one core each, the driver's and another one, which is killed after the first batch."""
    from ray.cluster_utils import Cluster

    folder = Path(folder)
    # A node that does not answer is dead after some 3 s instead of 15, and one that is slow to answer after 30 as always.
    noticed = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}
    cluster = Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": noticed})
    other = cluster.add_node(num_cpus=1)
    ray.init(cluster.address, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    kept = ray.get_runtime_context().get_node_id()

    packed = (
        ray.data.range(BLOCKS * ROWS, override_num_blocks=BLOCKS)
        .map_batches(makes_rows(folder), batch_size=None)
        .map_batches(
            windrow.ray.pack,
            batch_format="pyarrow",
            batch_size=None,
            zero_copy_batch=True,
            fn_kwargs={"spec": {"ids": wr.Pad(value=-1, mask="real", dtype="int64")}},
        )
    )
    batches = iter(packed.iter_torch_batches(batch_size=1, prefetch_batches=0, collate_fn=windrow.ray.UnpackCollate()))
    seen = check(next(batches))
    # Each node has made its batches, few of which the driver has, and is at the next one.
    while len(fields_of(folder, "waits")) < 2:
        time.sleep(0.02)
    lost, at, pid = next(fields for fields in fields_of(folder, "waits") if fields[0] != kept)
    cluster.remove_node(other, allow_graceful=False)
    os.kill(int(pid), signal.SIGKILL)
    (folder / "killed").touch()
    for batch in batches:
        seen += check(batch)
    assert len(seen) == BLOCKS * ROWS and sorted(seen) == list(range(BLOCKS * ROWS))

    # Blocks of the lost node that the driver did not have were made again, and its unfinished ones were made elsewhere.
    made = fields_of(folder, "made")
    by_lost, by_kept = ({first for node, first in made if node == which} for which in (lost, kept))
    assert len(by_lost) == FREE and at not in by_lost and at in by_kept
    assert by_lost & by_kept and len(by_lost | by_kept) == BLOCKS
    ray.shutdown()
    cluster.shutdown()


@pytest.mark.skipif(sys.platform == "win32", reason="SKIP: Ray has clusters of several nodes on Linux and macOS")
def test_a_node_that_is_killed_costs_no_row(tmp_path):
    # A folder of Ray's own: `ray.init()` elsewhere on this machine would join the cluster that it finds. The path of a socket is short.
    own = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    try:
        isolated.run("from test_ray_nodes import lose_a_node\nlose_a_node(sys.argv[1])", tmp_path, env={"RAY_TMPDIR": own}, timeout=180)
    finally:
        shutil.rmtree(own, ignore_errors=True)
