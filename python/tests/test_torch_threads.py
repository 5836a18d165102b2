"""windrow.torch.collate_fn in workers that are threads: of concurrent.futures and of SPDL."""

import ctypes
import gc
from concurrent.futures import ThreadPoolExecutor

import pytest

import windrow as wr

torch = pytest.importorskip("torch", reason="SKIP: torch is not installed")

import windrow.torch as wt  # noqa: E402

SAMPLES = [{"image": torch.full((3, 20, 20), i, dtype=torch.uint8), "ids": torch.arange(i % 7), "label": i} for i in range(64)]
SPEC = {"ids": wr.Pad(value=-1, mask="real")}


def load(collate, start):
    return collate([SAMPLES[(start + i) % len(SAMPLES)] for i in range(16)])


def check(batch, start):
    labels = [(start + i) % len(SAMPLES) for i in range(16)]
    assert batch["label"].tolist() == labels
    assert batch["image"].shape == (16, 3, 20, 20) and (batch["image"] == batch["label"].view(-1, 1, 1, 1)).all()
    rows = [[*range(label % 7), *[-1] * (max(label % 7 for label in labels) - label % 7)] for label in labels]
    assert batch["ids"].data.tolist() == rows and batch["ids"].lengths.tolist() == [label % 7 for label in labels]


@pytest.mark.parametrize("arena", [False, True])
def test_pinned_batches_of_eight_threads(driver, arena):
    if not driver.is_simulated:
        torch.cuda.init()
    collate = wt.collate_fn(SPEC, device="pinned", arena=arena)
    wr.empty_cache()
    with ThreadPoolExecutor(8) as pool:
        for batch, start in zip(pool.map(lambda start: load(collate, start), range(400)), range(400)):
            check(batch, start)
            if start == 200:
                held = batch
    assert wr.stats()["pinned_used_bytes"] > 0
    check(held, 200)
    del held, batch
    gc.collect()
    assert wr.stats()["pinned_used_bytes"] == 0
    wr.empty_cache()


@pytest.mark.simulated("which counts calls and what lives")
def test_driver_calls_of_pinned_batches_in_threads(sim):
    """256 images from eight threads. torch may still copy from a block that it had, so that up to 16 rest before the device is
    waited for once, for all of them: no more page-locked memory than these and what is alive, and few calls."""
    images = [torch.full((3, 64, 64), i, dtype=torch.uint8) for i in range(256)]
    collate, calls = wt.collate_fn(device="pinned"), sim.library.cudasim_calls
    calls.restype = ctypes.c_uint64
    wr.empty_cache()
    before = sim.live()["pinned_allocations"]
    collate(images)
    num_calls = calls()
    with ThreadPoolExecutor(8) as pool:
        for _ in range(16):
            for batch in pool.map(lambda _: collate(images), range(8)):
                assert (batch[:, 0, 0, 0] == torch.arange(256)).all()
    assert calls() - num_calls <= 7 * 128
    assert sim.live()["pinned_allocations"] - before <= 16 + 8 + 1
    del batch
    gc.collect()
    wr.empty_cache()


def test_spdl():
    pipeline = pytest.importorskip("spdl.pipeline", reason="SKIP: spdl is not installed")
    builder = pipeline.PipelineBuilder().add_source(range(64)).pipe(SAMPLES.__getitem__, concurrency=4).aggregate(16, drop_last=True)
    collate = wt.collate_fn(SPEC)
    made = builder.pipe(collate, concurrency=2).add_sink(2).build(num_threads=8)
    with made.auto_stop():
        batches = list(made)
    assert sorted(label for batch in batches for label in batch["label"].tolist()) == list(range(64))
    for batch in batches:
        assert (batch["image"] == batch["label"].view(-1, 1, 1, 1)).all()
