"""How the cost grows: with bytes per sample, with samples, with leaves, with threads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, List, Tuple

import windrow as wr
from windrow._system import num_cores
from windrow.bench.moves import sized
from windrow.bench.samples import LAYOUTS, Setting
from windrow.bench.trees import fields, leaves
from windrow.bench.workload import Case, Workload

TOTAL_BYTES = 32 << 20
"""A batch of the sweep over sizes, as long as the number of samples allows."""

MOST_SAMPLES = 65536
ROW_BYTES = 512

# These contenders of a workload take part, from one piece the first two: a sweep has many points.
STACKS = ("windrow", "torch.stack", "windrow, SampleList.take", "np.stack", "DALI as_batch")
TREES = ("windrow", "default_collate", "torch.stack for each field", "np.stack for each field")


@dataclass(frozen=True)
class Point:
    """One workload of a sweep, of as many samples as the setting's scale has led to."""

    x: int
    num_samples: int
    case: Case
    setting: Setting
    timed: Tuple[str, ...] = STACKS

    def __call__(self) -> Workload:
        """Makes the workload, with the contenders that take part."""
        workload = self.case(f"{self.x}", replace(self.setting, scale=1.0))
        names = self.timed if self.setting.layout == "scattered" else self.timed[:2]
        calls = {name: call for name, call in workload.calls.items() if name in names}
        return replace(workload, calls=calls, absent={name: text for name, text in workload.absent.items() if name in names})


@dataclass(frozen=True)
class Sweep:
    """Workloads that differ in one number."""

    name: str
    title: str
    # The meaning of the number, and its unit.
    axis: str
    unit: str
    points: Callable[[Setting], List[Point]]


def both(setting: Setting) -> List[Setting]:
    """The setting in each layout."""
    return [replace(setting, layout=layout) for layout in LAYOUTS]


def thinned(values: List[int], setting: Setting) -> List[int]:
    """The values; for `--quick` the ends and the middle."""
    return [values[0], values[len(values) // 2], values[-1]] if setting.quick and len(values) > 3 else values


def by_bytes(setting: Setting) -> List[Point]:
    points = []
    for size in thinned([16 << 2 * i for i in range(10)], setting):
        count = max(min(int(TOTAL_BYTES * setting.scale) // size, MOST_SAMPLES), 2)
        points += [Point(size, count, sized(count, size), s) for s in both(setting)]
    return points


def by_samples(setting: Setting) -> List[Point]:
    most = 12 if setting.quick else 17
    counts = thinned([1 << i for i in range(0, most + 1, 2)], setting)
    return [Point(n, n, sized(n, ROW_BYTES), s) for n in counts for s in both(setting)]


def by_leaves(setting: Setting) -> List[Point]:
    count = setting.count(4096)
    title = f"collate {count} dicts"
    counts = thinned([1, 2, 4, 8, 16, 32], setting)
    return [Point(n, count, Case(title, fields, leaves(n), count), setting, TREES) for n in counts]


def by_threads(count: int, size: int) -> Callable[[Setting], List[Point]]:
    def points(setting: Setting) -> List[Point]:
        cores = setting.threads or num_cores()
        counts = sorted({1, cores, *(1 << i for i in range(cores.bit_length()) if 1 << i <= cores)})
        n = setting.count(count)
        return [Point(t, n, sized(n, size), replace(setting, threads=t, engine=wr.Engine(threads=t))) for t in counts]

    return points


SWEEPS: Tuple[Sweep, ...] = (
    Sweep("bytes", f"Throughput against sample size: stack {TOTAL_BYTES >> 20} MiB, at most {MOST_SAMPLES} samples", "bytes per sample", "B", by_bytes),
    Sweep("samples", f"Throughput against number of samples of {ROW_BYTES} B: stack", "samples", "", by_samples),
    Sweep("leaves", "Time against leaves: collate 4096 dicts, 128 B a leaf", "leaves per sample", "", by_leaves),
    Sweep("threads-images", "Throughput against threads: stack 256 x 150 528 B", "threads", "", by_threads(256, 150_528)),
    Sweep("threads-rows", "Throughput against threads: stack 65 536 x 512 B", "threads", "", by_threads(65_536, 512)),
)
