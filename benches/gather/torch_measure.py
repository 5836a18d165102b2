"""Measures a workload of bench_torch.py: outputs verified, contenders in turn, one row for each clock."""

from __future__ import annotations

import gc
import math
import time
from typing import Any, Callable

import numpy as np
import torch

import native_peers as peers
from torch_samples import Bench
from torch_workload import Workload
from windrow.bench.clocks import DeviceClock

COPY, COPY_KERNEL = "plain copy", "copy kernel, 16 bytes a lane"
FEWEST = 3
"""Runs of each contender, even without time; of those that take half a second no more, and what takes two is not timed."""
SLOW, TOO_SLOW = 0.5, 2.0


class CaptureEnded(Exception):
    """A contender has ended its capture: torch cannot be used in this process any more."""


def on_device(bench: Bench, want: Any) -> list[torch.Tensor]:
    """Arrays as tensors beside what they are compared with: across the bus once, and not for each contender."""
    return [torch.from_numpy(np.ascontiguousarray(value)).to(bench.device) for value in (want if isinstance(want, tuple) else (want,))]


def difference(result: Any, want: list[torch.Tensor], tolerance: float) -> str:
    """How what a contender made differs, bit for bit where there is no tolerance; or nothing."""
    values = result if isinstance(result, tuple) else (result,)
    if len(values) != len(want):
        return f"{len(values)} tensors instead of {len(want)}"
    for value, expected in zip(values, want):
        got = value if isinstance(value, torch.Tensor) else torch.from_dlpack(value)
        if got.shape != expected.shape or got.dtype != expected.dtype:
            return f"{got.dtype} {tuple(got.shape)} instead of {expected.dtype} {tuple(expected.shape)}"
        if tolerance and got.is_floating_point():
            # `<=` is negated, as a NaN is wrong: `>` would let it pass.
            wrong = ~((got.float() - expected.float()).abs() <= tolerance)
        else:
            wrong = got.contiguous().view(torch.uint8) != expected.view(torch.uint8)
        if wrong.any():
            return f"{int(wrong.sum())} of {wrong.numel()} {'elements' if tolerance else 'bytes'} differ"
    return ""


class Copy:
    """A plain copy of as many bytes as are moved: each is read and written, or crosses the bus."""

    def __init__(self, bench: Bench, workload: Workload, copy: Callable[[Any, Any], object]) -> None:
        size = max(workload.num_bytes // (1 if workload.crosses else 2), 1)
        source = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cpu" if workload.crosses else bench.device)
        if workload.crosses and not bench.dry:
            source = source.pin_memory()
        self.source, self.target, self.copy = source, torch.empty(size, dtype=torch.uint8, device=bench.device), copy

    def __call__(self, _: Any) -> torch.Tensor:
        self.copy(self.target, self.source)
        return self.target


class Measured:
    """The runs of the contenders of one workload."""

    def __init__(self, bench: Bench, workload: Workload, clock: DeviceClock | None) -> None:
        self.bench, self.workload, self.clock = bench, workload, clock
        self.calls = {name: contender.call for name, contender in workload.contenders.items()}
        self.problems: dict[str, str] = {}
        # Seconds by contender, clock and cache.
        self.runs: dict[tuple[str, str, str], list[float]] = {}
        self.late: dict[tuple[str, str, str], int] = {}
        self.slow: set[str] = set()

    def verify(self, which: int, when: str = "") -> None:
        """Leaves out who does not give the batch of a set."""
        s = self.workload.sets[which]
        want = on_device(self.bench, self.workload.want(s))
        for name in list(self.calls):
            if name in (COPY, COPY_KERNEL):
                continue
            try:
                begin = time.perf_counter()
                text = difference(self.calls[name](s), want, self.workload.contenders[name].tolerance)
                if time.perf_counter() - begin > SLOW:
                    # The first call may have compiled something.
                    begin = time.perf_counter()
                    difference(self.calls[name](s), want, self.workload.contenders[name].tolerance)
                    seconds = time.perf_counter() - begin
                    self.slow |= {name} if seconds > SLOW else set()
                    if seconds > TOO_SLOW and not text and not name.startswith("windrow"):
                        self.workload.absent[name] = f"{seconds:.1f} s for one batch: not timed"
                        del self.calls[name]
                        continue
            except Exception as error:
                text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"
            if text:
                self.problems[name] = when + text
                del self.calls[name]

    def add_copies(self) -> None:
        self.calls[COPY] = Copy(self.bench, self.workload, lambda target, source: target.copy_(source, non_blocking=True))
        if not self.workload.crosses:
            try:
                made = Copy(self.bench, self.workload, peers.copy_kernel(self.bench))
                made(None)
                self.calls[COPY_KERNEL] = made
            except (peers.Absent, OSError, RuntimeError) as reason:
                self.workload.absent[COPY_KERNEL] = str(reason)

    def note(self, name: str, clock: str, cache: str, seconds: float, is_late: bool = False) -> None:
        self.runs.setdefault((name, clock, cache), []).append(seconds)
        self.late[name, clock, cache] = self.late.get((name, clock, cache), 0) + is_late

    def turn(self, number: int) -> None:
        """One run of each contender by each clock."""
        s = self.workload.sets[number % len(self.workload.sets)]
        for name, call in self.calls.items():
            if name in self.slow and number >= FEWEST:
                continue

            def run(call: Callable[[Any], object] = call) -> object:
                return call(s)

            if self.clock is None:
                begin = time.perf_counter()
                run()
                self.note(name, "host", "cold", time.perf_counter() - begin)
                continue
            self.clock.cold = True
            times = self.clock(run)
            self.note(name, "host", "cold", times.host)
            self.note(name, "wall", "cold", times.wall)
            self.note(name, "device", "cold", times.device, times.is_late)
            if not self.workload.crosses:
                # The run reads and writes the memory of the run before it.
                self.clock.cold = False
                run()
                self.note(name, "device", "warm", *self.clock.between_events(run, times.host))

    def time(self, repeats: int, end: float) -> None:
        """Takes turns until there were enough, or the time is over."""
        gc.collect()
        gc.disable()
        try:
            for s in self.workload.sets:
                # Other forms of the samples are made here.
                for call in self.calls.values():
                    call(s)
            for number in range(repeats):
                if number >= FEWEST and time.perf_counter() > end:
                    break
                self.turn(number)
        finally:
            gc.enable()

    def capture(self, name: str) -> Any:
        """A graph of a call on the first set, and its output."""
        s = self.workload.sets[0]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph):
                output = self.calls[name](s)
        except Exception as error:
            # After a capture that ended with an error, torch stays on its stream, and takes the capture for active.
            if torch.cuda.current_stream() != self.bench.stream:
                raise CaptureEnded(f"{self.workload.name}: {name} has ended its capture: {error}") from error
            self.workload.absent[f"{name}, in a graph"] = (str(error).splitlines() or [type(error).__name__])[0][:160]
            return None
        return graph, output

    def replay(self, repeats: int) -> None:
        """Device time of graphs of one call."""
        if self.clock is None or self.bench.stream is None or self.workload.crosses:
            return
        captured = {name for name, contender in self.workload.contenders.items() if contender.is_captured} | {COPY, COPY_KERNEL}
        want = on_device(self.bench, self.workload.want(self.workload.sets[0]))
        for name in [name for name in self.calls if name in captured]:
            made = self.capture(name)
            if made is None:
                continue
            graph, output = made
            graph.replay()
            for cold, cache in ((True, "cold"), (False, "warm")):
                self.clock.cold = cold
                for _ in range(repeats):
                    self.note(name, "graph", cache, *self.clock.between_events(graph.replay, 5e-5))
            if name in self.workload.contenders:
                text = difference(output, want, self.workload.contenders[name].tolerance)
                if text:
                    self.problems[name] = f"in a graph: {text}"
            del graph, output, made

    def rows(self) -> list[dict[str, Any]]:
        """One row for each contender, clock and cache; and for each contender that was not timed."""
        w = self.workload
        base: dict[tuple[str, str], float] = {}
        for (name, clock, cache), values in self.runs.items():
            if name in (COPY, COPY_KERNEL) and clock != "host":
                base[clock, cache] = min(base.get((clock, cache), math.inf), float(np.median(values)))
        head = {"workload": w.name, "title": w.title, "layout": w.layout, "samples": w.num_samples, "bytes": w.num_bytes}
        found = []
        for (name, clock, cache), values in self.runs.items():
            low, median, high = (float(value) for value in np.percentile(values, [10, 50, 90]))
            copy = base.get((clock, cache))
            found.append({
                **head, "contender": name, "clock": clock, "cache": cache, "median_us": round(median * 1e6, 3), "p10": round(low * 1e6, 3),
                "p90": round(high * 1e6, 3), "gbps": None if clock == "host" else round(w.num_bytes / median / 1e9, 2),
                "share_of_copy": round(copy / median, 4) if copy else None, "runs": len(values), "late": self.late[name, clock, cache],
                "right": name not in self.problems, "problem": self.problems.get(name, ""),
                "tolerance": w.contenders[name].tolerance if name in w.contenders else 0.0,
            })  # fmt: skip
        timed = {row["contender"] for row in found}
        for name in (name for name in self.problems if name not in timed):
            found.append({**head, "contender": name, "clock": None, "cache": None, "median_us": None, "right": False, "problem": self.problems[name]})
        return found


def measure(bench: Bench, workload: Workload, clock: DeviceClock | None, repeats: int, end: float) -> Measured:
    """All runs of a workload."""
    made = Measured(bench, workload, clock)
    made.verify(0)
    made.add_copies()
    made.time(repeats, end)
    made.verify(-1, "after it was timed: ")
    # Last: who ends a capture ends the program.
    made.replay(repeats if time.perf_counter() < end else FEWEST)
    return made
