"""`python -m windrow doctor`: what it says of devices and drivers."""

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import windrow.doctor
from windrow import _shared_memory, _windrow

import isolated

pytestmark = pytest.mark.slow


@functools.cache
def doctor(**environment):
    done = isolated.python("-m", "windrow", "doctor", env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_doctor_says_what_there_is(driver):
    text = doctor()
    for part in ("driver for CUDA", "kernels by nvcc", "cuda:0", "compute capability", "upload", "direct pinned", "download"):
        assert part in text, part


@pytest.mark.parametrize(
    "toolkit, driver, end",
    [
        ("13.0.88", (12, 9), "need a driver for CUDA 13.0: 580 or newer"),
        ("13.0.88", (13, 0), "for sm_90"),
        ("12.9.86", (12, 0), "need a driver for CUDA 12.1: 530 or newer"),
        ("12.9.86", (12, 1), "for sm_90"),
        ("14.0.1", (13, 4), "need a driver for CUDA 14.0: a newer one"),
    ],
)
def test_doctor_says_that_the_driver_is_too_old(monkeypatch, toolkit, driver, end):
    monkeypatch.setattr(_windrow, "_cuda_build", lambda: {"toolkit": toolkit, "targets": "sm_90", "driver": driver})
    assert windrow.doctor.cuda().endswith(end)


def test_doctor_says_what_there_is_not():
    assert "/nonexistent/libcuda.so" in doctor(WINDROW_CUDA_DRIVER="/nonexistent/libcuda.so")


def test_doctor_suggests_cures(monkeypatch):
    monkeypatch.setattr(windrow.doctor.wr, "cuda_available", lambda: False)
    monkeypatch.setattr(windrow.doctor.platform, "system", lambda: "Linux")
    monkeypatch.setattr(_shared_memory.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(64 << 20, 0, 64 << 20))
    monkeypatch.setattr(windrow.doctor, "huge_pages", lambda: "never: large batches take longer")
    monkeypatch.setattr(windrow.doctor, "num_cores", lambda: 0)
    rows = [{"library": "torch", "version": "2.1.0", "read by": "__dlpack__", "nanoseconds": 4000}]
    rows += [{"library": "jax", "problem": "jax does not load: ImportError: x"}, {"library": "cupy", "problem": "cupy is not installed"}]
    cures = ("driver 580 or newer", "--shm-size", "transparent_hugepage", "0 of ", "torch>=2.10", "jax is installed and does not load")
    found = list(windrow.doctor.suggestions(rows))
    assert len(found) == len(cures) and all(cure in text for cure, text in zip(cures, found)), found


def test_doctor_says_where_workers_have_their_batches(monkeypatch):
    assert "GiB of memory that is used again" in windrow.doctor.workers() or sys.platform != "linux"
    counted = {"batches": 3, "bytes": 1, "refused": 2, "blocks": 1, "pool_bytes": 0, "locked": 1, "locked_bytes": 4096}
    monkeypatch.setattr(windrow.doctor.wr, "stats", lambda: {"workers": counted})
    monkeypatch.setattr(_windrow, "_start_pool", None, raising=False)
    assert "3 batches, 2 times more than the limit, 4096 bytes page-locked" in windrow.doctor.workers()
    monkeypatch.delattr(_windrow, "_start_pool")
    assert "new shared memory for each batch" in windrow.doctor.workers()


def test_doctor_prints_its_suggestions():
    assert re.search(r"\nsuggestions\n  \S", doctor())


def test_a_system_without_shared_memory_in_files(monkeypatch, tmp_path):
    monkeypatch.setattr(_shared_memory, "FOLDER", str(tmp_path / "none"))
    assert _shared_memory.room() is None and windrow.doctor.shared_memory() == "none"
    monkeypatch.setattr(_shared_memory, "FOLDER", str(tmp_path))
    for system, reserved in (("darwin", 0), ("linux", 4096)):
        if system in ("darwin", sys.platform):
            monkeypatch.setattr(_shared_memory.sys, "platform", system)
            (tmp_path / system).touch()
            _shared_memory.reserve(system, 4096)
            assert (tmp_path / system).stat().st_size == reserved
    free, total = _shared_memory.room()
    assert 0 < free <= total


def test_a_torch_without_the_function_for_shared_memory(torch, monkeypatch):
    from windrow.torch import _shared

    owner = next(cls for cls in torch.UntypedStorage.__mro__ if "_new_shared" in vars(cls))
    monkeypatch.delattr(owner, "_new_shared")
    for tensor in _shared.share([("float32", (2, 3)), ("uint8", (1 << 17,))]):
        assert not tensor.is_shared() and tensor.fill_(1).sum() == tensor.numel()


def test_a_source_folder_says_that_nothing_is_built():
    """A build that failed leaves such a folder."""
    source = Path(__file__).parents[1] / "python"
    if list((source / "windrow").glob("_windrow.*so")):
        pytest.skip("the source folder has a build")
    run = subprocess.run([sys.executable, "-m", "windrow", "doctor"], cwd=source, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 1 and "windrow is not built here: run `pip install ./python` in a checkout" in run.stderr
