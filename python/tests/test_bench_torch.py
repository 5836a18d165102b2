"""benches/gather/bench_torch.py on the host: its contenders are right, and its rows say what was measured."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benches/gather"

pytestmark = pytest.mark.skipif(not (FOLDER / "bench_torch.py").exists(), reason="SKIP: needs a checkout")


def bench(*arguments):
    command = [sys.executable, FOLDER / "bench_torch.py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})


@pytest.mark.slow
def test_all_contenders_are_right_on_the_host(torch, tmp_path):
    done = bench("--dry", "--only", "W1,W2,W5,W7,W8,W9,size 64,count 64,W10a", "--json", tmp_path / "r.json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["dry"] and report["failed"] == report["left"] == []
    assert [row for row in report["rows"] if not row["right"]] == []
    assert {"W1", "W2", "W2b", "W5", "W7", "W8", "W8b", "W9", "size 64", "count 64", "W10a"} <= {row["workload"] for row in report["rows"]}
    assert {row["layout"] for row in report["rows"]} == {"scattered", "contiguous", "page-locked", "at any byte"}
    stacks = {row["contender"] for row in report["rows"] if row["workload"] == "size 64"}
    assert {"windrow", "torch.stack", "torch.cat, view", "torch._foreach_copy_(out)", "pad_sequence", "torch.index_select of one table",
            "torch.nested, to_padded_tensor", "plain copy"} <= stacks  # fmt: skip
    absent = {entry["contender"]: entry["reason"] for entry in report["absent"] if entry["workload"] == "size 64"}
    needing = ["cupy.stack", "CUB batched memcpy, tables kept", "cuMemcpyBatchAsync, addresses kept", "Triton gather, addresses kept"]
    assert {name: absent[name] for name in needing} == dict.fromkeys(needing, "needs a GPU")
    assert report["versions"]["torch"] == torch.__version__ and report["machine"]["cpu"]


@pytest.mark.slow
def test_without_a_gpu_nothing_is_timed(torch):
    if torch.cuda.is_available():
        pytest.skip("SKIP: there is a GPU")
    done = bench("--only", "count 1")
    assert done.returncode == 1 and done.stdout == "SKIP: torch finds no GPU (--dry runs on the host)\n"


@pytest.mark.slow
def test_names_that_there_are_not_are_refused(torch):
    done = bench("--dry", "--only", "W99")
    assert done.returncode == 1 and "no workload begins with W99; there are W1, size 64" in done.stderr


# Rows


@pytest.fixture
def modules(monkeypatch, torch):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    import torch_measure
    import torch_samples
    import torch_workload

    return torch_measure, torch_samples, torch_workload


class Clock:
    """Says one time after another, and keeps what it was asked for."""

    def __init__(self):
        self.cold, self.asked = True, []

    def __call__(self, call):
        from windrow.bench.clocks import Times

        call()
        self.asked.append("cold" if self.cold else "warm")
        return Times(30e-6, 10e-6, 20e-6, False)

    def between_events(self, call, host):
        call()
        self.asked.append("cold" if self.cold else "warm")
        return 8e-6, True


def workload(modules, broken=lambda s: s.tensors[0]):
    import torch

    _, samples, workloads = modules
    bench = samples.Bench(dry=True)
    sets = samples.sets_of(bench, lambda seed: samples.samples(bench, [(4,)] * 8, "float32", seed), 8)
    made = workloads.Workload("T", "a test", "scattered", 8, 256, sets, lambda s: np.stack(s.arrays))
    made.add("windrow", lambda s: torch.stack(s.tensors))
    made.add("broken", broken)
    return bench, made


def test_a_row_for_each_clock_and_cache(modules):
    bench, made = workload(modules)
    clock = Clock()
    found = modules[0].measure(bench, made, clock, 2, float("inf"))
    rows = {(row["clock"], row["cache"]): row for row in found.rows() if row["contender"] == "windrow"}
    assert set(rows) == {("host", "cold"), ("wall", "cold"), ("device", "cold"), ("device", "warm")}
    assert [row["median_us"] for row in rows.values()] == [10.0, 30.0, 20.0, 8.0]
    device = rows["device", "cold"]
    assert (device["gbps"], device["share_of_copy"], device["runs"], device["late"]) == (0.01, 1.0, 2, 0)
    assert rows["device", "warm"]["late"] == 2 and rows["device", "warm"]["gbps"] == 0.03
    assert rows["host", "cold"]["gbps"] is None and rows["host", "cold"]["share_of_copy"] is None
    assert clock.asked == ["cold", "warm"] * 4, "windrow and the copy, two turns"


@pytest.mark.parametrize(
    "broken, text",
    [
        (lambda s: s.tensors[0], "torch.float32 (4,) instead of torch.float32 (8, 4)"),
        (lambda s: (s.tensors[0], s.tensors[1]), "2 tensors instead of 1"),
        (lambda s: s.kept["no"], "KeyError: 'no'"),
    ],
)
def test_who_is_wrong_is_not_timed(modules, broken, text):
    bench, made = workload(modules, broken)
    rows = modules[0].measure(bench, made, Clock(), 1, 0.0).rows()
    found = [row for row in rows if row["contender"] == "broken"]
    assert [(row["right"], row["problem"], row["median_us"]) for row in found] == [(False, text, None)]


def test_who_is_wrong_after_the_timing_is_told(modules):
    import torch

    calls = []

    def broken(s):
        calls.append(1)
        return torch.stack(s.tensors) + (len(calls) > 3)

    bench, made = workload(modules, broken)
    rows = modules[0].measure(bench, made, Clock(), 1, 0.0).rows()
    found = [row for row in rows if row["contender"] == "broken"]
    assert len(found) == 4 and not any(row["right"] for row in found)
    assert found[0]["problem"].startswith("after it was timed: ") and found[0]["problem"].endswith("of 128 bytes differ")


def test_roundings_are_allowed_where_they_are_named_and_nan_is_not(modules):
    import torch

    difference = modules[0].difference
    want = [torch.zeros(4)]
    assert difference(torch.full((4,), 1e-3), want, 4e-3) == ""
    assert difference(torch.full((4,), 1e-3), want, 0.0).endswith("of 16 bytes differ")
    assert difference(torch.full((4,), torch.nan), want, 4e-3) == "4 of 4 elements differ"
    assert difference(torch.zeros(4) * -1, want, 0.0) == "4 of 16 bytes differ"


def test_a_graph_is_verified(modules, monkeypatch):
    bench, made = workload(modules)
    made.contenders["windrow"].is_captured, bench.stream = True, "a stream"
    replayed = []

    def capture(measured, name):
        graph = type("Graph", (), {"replay": lambda self: replayed.append(name)})()
        return graph, measured.calls[name](made.sets[1 if name == "windrow" else 0])

    monkeypatch.setattr(modules[0].Measured, "capture", capture)
    rows = modules[0].measure(bench, made, Clock(), 2, float("inf")).rows()
    found = {(row["contender"], row["clock"], row["cache"]): row for row in rows}
    assert found["windrow", "graph", "cold"]["median_us"] == 8.0 and ("plain copy", "graph", "warm") in found
    assert "bytes differ" in found["windrow", "graph", "cold"]["problem"] and replayed.count("windrow") == 5
