"""NVTX ranges, told to a recorder that stands in for a profiler."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import isolated
import windrow as wr

SOURCE = Path(__file__).with_name("nvtx_recorder.c")

PROGRAM = """
import numpy as np, sys, windrow as wr
from windrow import _windrow

rows = [np.arange(n, dtype=np.int16) for n in (3, 1, 2)]
device = sys.argv[1] or None
batch = wr.pad(rows, device=device)
if device is None:
    assert batch.numpy().tolist() == [[0, 1, 2], [0, 0, 0], [0, 1, 0]]
else:
    assert bytes(wr.stack([batch], device="cpu"))[:6] == bytes(rows[0])
try:
    wr.stack(rows)
except wr.ShapeError:
    pass
print(_windrow._observers()["nvtx"])
print([line for line in open("/proc/self/maps") if "recorder" in line][:1])
"""


@pytest.fixture(scope="module")
def recorder(tmp_path_factory):
    if "not in this build" in str(wr._windrow._observers()["nvtx"]):
        pytest.skip("SKIP: NVTX comes with the CUDA engine, which this platform has not")
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("SKIP: no C compiler for the recorder")
    library = tmp_path_factory.mktemp("nvtx") / "librecorder.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(SOURCE)], check=True)
    return library


def ranges(recorder, device="", **environment):
    """The recorder's lines of the program, and the program's own two lines."""
    record = recorder.with_name("record.txt")
    record.unlink(missing_ok=True)
    base = {name: value for name, value in os.environ.items() if name not in ("WINDROW_NVTX", "NVTX_INJECTION64_PATH")}
    environment = {**base, "NVTX_RECORD": str(record), **environment}
    done = isolated.python("-c", PROGRAM, device, env=environment)
    assert done.returncode == 0, done.stderr
    told = record.read_text().splitlines() if record.exists() else None
    return told, done.stdout.splitlines()


def nested(told):
    """Ranges as names with their depth; every one of them is ended."""
    assert told[0] == "domain windrow"
    depth, found = 0, []
    for line in told[1:]:
        if line == "pop":
            depth -= 1
            assert depth >= 0
        else:
            word, name = line.split(" ", 1)
            assert word == "push"
            found.append((depth, name))
            depth += 1
    assert depth == 0
    return found


@pytest.mark.slow
def test_stages_in_their_order(recorder):
    told, (state, loaded) = ranges(recorder, WINDROW_NVTX="1", NVTX_INJECTION64_PATH=str(recorder))
    # A small batch needs no plan.
    first = [(0, "import"), (0, "run"), (0, "export")]
    assert nested(told) == [*first, (0, "import"), (0, "plan")]
    assert state == "None" and "librecorder" in loaded


@pytest.mark.slow
def test_launches_and_waits_are_in_the_run(recorder, driver):
    on = {"WINDROW_NVTX": "1", "NVTX_INJECTION64_PATH": str(recorder)}
    found = nested(ranges(recorder, "cuda", **on)[0])
    assert found[:4] == [(0, "import"), (0, "plan"), (0, "run"), (1, "launch")]
    back = found[4:-2]
    assert [name for _, name in back[:4]] == ["import", "plan", "run", "launch"]
    assert (1, "wait") in back


@pytest.mark.slow
@pytest.mark.parametrize("value", [None, "", "0"])
def test_off_nothing_is_loaded(recorder, value):
    environment = {} if value is None else {"WINDROW_NVTX": value}
    told, (state, loaded) = ranges(recorder, NVTX_INJECTION64_PATH=str(recorder), **environment)
    assert told is None and loaded == "[]"
    assert state.startswith("off; WINDROW_NVTX=1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment, reason",
    [
        ({}, "no profiler listens"),
        ({"NVTX_INJECTION64_PATH": "/nonexistent/lib.so"}, "/nonexistent/lib.so does not load"),
        ({"NVTX_REFUSE": "1"}, "did not start"),
    ],
)
def test_without_a_profiler_calls_go_on(recorder, environment, reason):
    if "NVTX_REFUSE" in environment:
        environment = {**environment, "NVTX_INJECTION64_PATH": str(recorder)}
    told, (state, _) = ranges(recorder, WINDROW_NVTX="1", **environment)
    assert told is None or told == []
    assert reason in state
