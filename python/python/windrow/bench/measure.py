"""Outputs verified, calls timed in turn, targets judged."""

from __future__ import annotations

import functools
import itertools
import math
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Optional, Tuple

import windrow as wr
from windrow._measure import Array, Memcpy, difference, interleave, quartiles, seconds_of, to_numpy
from windrow._system import cache_bytes, num_cores
from windrow.bench.clocks import DeviceClock
from windrow.bench.results import MEMCPY
from windrow.bench.samples import Setting, num_bytes, torch
from windrow.bench.workload import Contender, Target, Workload


@dataclass
class Pace:
    """How long and how often one workload is timed: seconds, fewest rounds, most rounds; the time for one batch beyond
    which a contender is timed no further, since the others would wait; and when, by `time.perf_counter`, the workload is to end."""

    seconds: float = 5.0
    fewest: int = 9
    most: int = 200
    slow_seconds: float = 2.0
    end: float = math.inf

    @property
    def seconds_left(self) -> float:
        """Seconds for timing, less where `end` is sooner."""
        return max(min(self.seconds, self.end - time.perf_counter()), 0.0)


class Budget:
    """The time of each part of a run: a fixed one, or with a limit an equal share of what is left of it."""

    def __init__(self, seconds: Optional[float], num_parts: int, quick: bool = False) -> None:
        self.begin = time.perf_counter()
        self.end = math.inf if seconds is None else self.begin + seconds
        self.num_parts = num_parts
        self.done = 0
        self.quick = quick

    def workload_pace(self) -> Optional[Pace]:
        """The pace of one workload in one layout; None if the limit is spent."""
        return self.part(Pace(0.15, 3, 20) if self.quick else Pace(3.0))

    def point_pace(self) -> Optional[Pace]:
        """The pace of one point of a sweep, of which there are many; None if the limit is spent."""
        return self.part(Pace(0.02, 3, 100) if self.quick else Pace(0.375, 5, 100))

    def part(self, pace: Pace) -> Optional[Pace]:
        """The pace of the next part, which counts as done from then on; None if it would end too late."""
        now = time.perf_counter()
        share = (self.end - now) / max(self.num_parts - self.done, 1)
        # Making and verifying samples takes its time: what is likely to end too late is not begun.
        if now + (now - self.begin) / max(self.done, 1) >= self.end:
            return None
        self.done += 1
        # The fewest rounds are run after the end too: a contender that fills them alone would keep the rest waiting.
        return pace if share == math.inf else replace(pace, fewest=3, slow_seconds=min(pace.slow_seconds, share / 10), end=now + share)


@dataclass
class Result:
    """One contender: its quartiles in seconds, or why it has none."""

    name: str
    quartiles: Optional[List[float]]
    # The share of the speed of the fastest plain copy.
    share: Optional[float]
    problem: str = ""
    # The way of windrow that it is held against.
    against: str = ""
    # Quartiles on a device: until the call returns, and on the device alone. Those above are then of the wall clock.
    host: Optional[List[float]] = None
    device: Optional[List[float]] = None


def to_host(value: Any) -> Any:
    """A result of any library in host memory; of a batch its data."""
    value = value.data if isinstance(value, wr.Batch) else value
    if hasattr(value, "cpu") and callable(value.cpu):
        return value.cpu()
    if getattr(value, "device", "cpu") not in ("cpu", "pinned") and hasattr(value, "torch"):
        return value.torch().cpu()
    return value.get() if hasattr(value, "get") and hasattr(value, "__cuda_array_interface__") else value


@functools.lru_cache(maxsize=None)
def device_clock(device: str, cold: bool) -> DeviceClock:
    """One for all workloads: it finds out how fast the device's clock is."""
    return DeviceClock(device, cold)


def repeated(call: Callable[[], Any], times: int) -> Callable[[], Any]:
    """`times` calls as one."""
    def calls() -> Any:
        for _ in range(times - 1):
            call()
        return call()

    return calls if times > 1 else call


def tensors(made: Any) -> Tuple[Any, ...]:
    """What a contender has made, in host memory."""
    return tuple(map(to_host, made if isinstance(made, tuple) else (made,)))


def verify(workload: Workload, name: str, want: Tuple[Array, ...], pace: Pace) -> str:
    """The fault of a contender or of its output, or that it is too slow or no time is left; else an empty text. windrow is verified whatever
    the time."""
    if time.perf_counter() > pace.end and not name.startswith("windrow"):
        return "not timed: no time was left"

    def run() -> Tuple[Any, float]:
        begin = time.perf_counter()
        made = workload.calls[name](workload.sets[-1])
        if not workload.setting.on_host:
            torch.cuda.synchronize(workload.setting.device)
        return made, time.perf_counter() - begin

    try:
        made, seconds = run()
        if seconds > pace.slow_seconds:
            # The first call may have compiled something.
            made, seconds = run()
        got = tensors(made)
        if len(got) != len(want):
            return f"WRONG: {len(got)} tensors instead of {len(want)}"
        # The definition's own roundings are asked of windrow only.
        tolerance = 0.0 if name.startswith("windrow") else workload.tolerance
        for value, expected in zip(got, want):
            text = difference(value, expected, tolerance if expected.dtype.kind == "f" else 0.0)
            if text:
                return f"WRONG: {text}"
    except Exception as error:
        return f"FAILED: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return f"slow: {seconds:.1f} s for one batch, timed no further" if seconds > pace.slow_seconds else ""


def copies(num_bytes: int, setting: Setting) -> Dict[str, Callable[[], object]]:
    """Calls that copy this many bytes in one piece, by name: on the host on one thread and on all, else on the device."""
    if not setting.on_host:
        source = torch.randint(0, 256, (max(num_bytes, 1),), dtype=torch.uint8, device=setting.device)
        target = torch.empty_like(source)
        return {f"{MEMCPY}, device": lambda: target.copy_(source)}
    counts = sorted({1, setting.threads or num_cores()})
    # Like the samples: in no cache, unless they are asked to be.
    total = 0 if setting.warm or setting.quick else 2 * cache_bytes()
    return {f"{MEMCPY}, threads: {threads}": Memcpy(num_bytes, threads, total) for threads in counts}


def measure(workload: Workload, pace: Pace, tick: Callable[[float], None] = lambda share: None) -> Tuple[List[Result], Tuple[int, int]]:
    """Verifies and times the contenders and the copy they are held against; and the bytes read and written."""
    want = tuple(map(to_numpy, tensors(workload.expected(workload.sets[-1]))))
    moved = workload.sets[0].num_bytes, num_bytes(want)
    problems = {name: verify(workload, name, want, pace) for name in workload.calls}
    del want
    for other in workload.sets:
        other.convert_like(workload.sets[-1])
    turn = itertools.cycle(workload.sets)

    def bind(call: Contender) -> Callable[[], object]:
        return lambda: call(next(turn))

    # A copy reads and writes each byte once, so half of what is moved.
    calls = copies(sum(moved) // 2, workload.setting)
    calls.update({name: bind(workload.calls[name]) for name, text in problems.items() if not text})
    calls = {name: repeated(call, workload.repeat) for name, call in calls.items()}
    rounds, setting = (pace.fewest, pace.most), workload.setting
    clock = seconds_of if setting.on_host else device_clock(setting.device, not setting.warm)
    times = interleave(calls, pace.seconds_left, rounds, tick, clock)

    def spread(values: List[float]) -> List[float]:
        return [value / workload.repeat for value in quartiles(values)]

    apart: Dict[str, Dict[str, List[float]]] = {}
    if not setting.on_host:
        apart = {name: {"host": spread([t.host for t in values]), "device": spread([t.device for t in values])} for name, values in times.items()}
        times = {name: [t.wall for t in values] for name, values in times.items()}
    found = {name: spread(values) for name, values in times.items()}
    floor = min(values[1] for name, values in found.items() if name.startswith(MEMCPY))
    against, problems = workload.against, {**{name: text for name, text in problems.items() if text}, **workload.absent}
    results = [Result(name, values, floor / values[1], "", against.get(name, ""), **apart.get(name, {})) for name, values in found.items()]
    return results + [Result(name, None, None, text, against.get(name, "")) for name, text in problems.items()], moved


def judge(target: Target, results: List[Result]) -> Dict[str, Any]:
    """A target as a report has it, with the ratio that was measured; its ratio is None where one side is missing."""
    medians = {result.name: result.quartiles[1] for result in results if result.quartiles}
    peers = {name: median for name, median in medians.items() if name.startswith(MEMCPY)}
    if target.peers != (MEMCPY,):
        peers = {name: medians[name] for name in target.peers if name in medians}
    fastest = min(peers, key=lambda name: peers[name], default="")
    ratio = peers[fastest] / medians[target.ours] if fastest and target.ours in medians else None
    return {"ours": target.ours, "peer": fastest or ", ".join(target.peers), "at_least": target.at_least, "ratio": ratio}
