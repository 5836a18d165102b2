"""The benchmark on a device: its clocks, on a made-up device, and what is done before they start."""

from dataclasses import replace

import numpy as np
import pytest

from windrow.bench import clocks, results, samples, trees
from windrow.bench.catalogue import WORKLOADS
from windrow.bench.measure import Result
from windrow.bench.samples import Setting

QUICK = Setting(scale=1 / 512, quick=True, warm=True, compiles=False)


class Device:
    """torch.cuda as far as the clocks call it: writes down what is enqueued, each thing taking a millisecond of the device."""

    def __init__(self):
        self.queue, self.synchronised = [], 0

    def get_device_properties(self, device):
        return type("Properties", (), {"L2_cache_size": 50 << 20})

    def _sleep(self, cycles):
        self.queue.append(("sleep", cycles))

    def synchronize(self):
        self.synchronised = len(self.queue)

    def Event(self, enable_timing):
        return Event(self)


class Event:
    def __init__(self, device):
        self.device = device

    def record(self):
        self.at = len(self.device.queue)

    def query(self):
        return self.device.synchronised >= self.at

    def synchronize(self):
        self.device.synchronised = self.at

    def elapsed_time(self, end):
        return float(end.at - self.at)


@pytest.fixture
def device_clock(monkeypatch, torch):
    """A clock of a made-up device, and the device."""
    device = Device()
    monkeypatch.setattr(clocks, "torch", type("torch", (), {"cuda": device, "zeros": lambda count, **_: torch.zeros(8), "int64": torch.int64}))
    monkeypatch.setattr(clocks.DeviceClock, "measured_cycles", lambda clock, device: 1e9)
    monkeypatch.setattr(clocks.DeviceClock, "sweep", lambda clock: device.queue.append("sweep"))
    return clocks.DeviceClock("cuda"), device


def test_host_wall_and_device_are_timed_apart(device_clock, monkeypatch):
    clock, device = device_clock
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    waits = device.synchronize

    def call():
        now[0] += 0.002
        device.queue += ["kernel", "kernel", "kernel"]

    def synchronize():
        now[0] += 0.001 * (len(device.queue) - device.synchronised)
        waits()

    device.synchronize = synchronize
    times = clock(call)
    assert times == pytest.approx((0.005, 0.002, 0.003, False))
    kernels = ["kernel"] * 3
    assert device.queue == ["sweep", *kernels, ("sleep", int(1e9 * (1.5 * 0.002 + 3e-5))), "sweep", *kernels]


def test_a_device_that_waited_for_the_host_is_late(device_clock):
    clock, device = device_clock
    assert clock.between_events(device.synchronize, 0.0)[1]
    assert not clock.between_events(lambda: None, 0.0)[1]
    clock.cold = False
    device.queue.clear()
    clock(lambda: None)
    assert "sweep" not in device.queue


def test_sets_are_larger_than_the_cache_of_their_device(device_clock, monkeypatch):
    monkeypatch.setattr(samples, "cache_bytes", lambda: 1 << 20)
    for num_bytes, on_host, on_device in ((1 << 20, 2, 64), (10 << 20, 2, 11), (200 << 20, 2, 2)):
        array = np.broadcast_to(np.uint8(0), (num_bytes,))
        for device, count in (("cpu", on_host), ("cuda", on_device)):
            how = replace(QUICK, device=device, warm=False, quick=False)
            assert len(samples.sets_of(lambda: samples.Samples([array], []), how)) == count


def test_reports_say_host_time_apart_from_device_time():
    result = vars(Result("windrow", [1e-3] * 3, 0.5, host=[1e-5] * 3, device=[4e-4] * 3))
    entry = {"bytes": 1, "results": [result, vars(Result("other", None, None, "no room"))]}
    assert results.header(entry)[-2:] == ["until it returns", "on the device"]
    assert [row[-2:] for row in results.rows(entry)] == [["10 us", "400 us"], ["-", "-"]]
    assert len(results.header({"results": [vars(Result("windrow", [1.0] * 3, 1.0))]})) == 7


@pytest.mark.parametrize("name, contender", [("W1", "torch eager"), ("W7", "torch, loop of copies")])
def test_constants_go_to_a_device_before_the_clock_starts(name, contender, monkeypatch, torch):
    made = WORKLOADS[name](name, QUICK)
    monkeypatch.setattr(torch, "tensor", lambda *_, **__: pytest.fail("a copy to the device within the timed call"))
    made.calls[contender](made.sets[0])


def test_graphs_are_joined_by_one_call(monkeypatch):
    called = []
    monkeypatch.setattr(trees, "concat_graphs", lambda graphs, **_: called.append(len(graphs)) or {"x": 0, "edge_index": 0, "batch": 0})
    made = WORKLOADS["W9"]("W9", QUICK)
    made.calls["windrow"](made.sets[0])
    assert called == [2]
