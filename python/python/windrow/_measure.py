"""Shared by the demo and the benchmark: exact checks, interleaved timing, facts about the machine."""

from __future__ import annotations

import ctypes
import datetime
import functools
import gc
import os
import platform
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

import windrow as wr
from windrow._system import caches, cpu_name, num_cores, optional

torch = optional("torch")

Array = Any
"""A NumPy array of any dtype."""

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""ImageNet's, the usual pair for photographs."""


def to_numpy(value: Any) -> Array:
    """A tensor of any kind as an array."""
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def difference(got: Any, want: Array, tolerance: float = 0.0) -> str:
    """Says how `got` differs from `want`, or nothing. Tolerance 0 compares bit for bit."""
    got = to_numpy(got)
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype} {got.shape} instead of {want.dtype} {want.shape}"
    if tolerance:
        # The comparison is not `<=`, because a NaN is wrong.
        wrong = ~(np.abs(np.subtract(got, want, dtype=np.float32)) < tolerance)
    else:
        bits = np.dtype(f"u{want.itemsize}") if want.dtype.kind == "f" else want.dtype
        wrong = np.ascontiguousarray(got).view(bits) != np.ascontiguousarray(want).view(bits)
    count = int(np.count_nonzero(wrong))
    return f"{count} of {wrong.size} elements differ" if count else ""


def normalised(images: Sequence[Array], dtype: str) -> List[Array]:
    """8-bit HWC images to `(x / 255 - mean) / std` in CHW, with the roundings that the contract defines.

    One multiply-add with the coefficients rounded to float32. In float64 its terms are exact for
    8-bit input, so that rounding to float32 here is the rounding of the fused operation.
    """
    a = np.float32(1 / 255 / np.array(STD)).astype(np.float64)
    b = np.float32(-np.array(MEAN) / np.array(STD)).astype(np.float64)
    table = (np.arange(256)[:, None] * a + b).astype(np.float32).astype(dtype)
    return [np.stack([table[:, c][image[:, :, c]] for c in range(image.shape[2])]) for image in images]


def transform() -> wr.Transform:
    """The transform that `normalised` computes."""
    return wr.Transform(scale=1 / 255, mean=MEAN, std=STD, channel_dim=2, permute=(2, 0, 1))


# The code that users write instead, by NumPy and by torch


def numpy_padded(rows: Sequence[Array], dtype: Any, scale: Optional[float] = None) -> Tuple[Array, Array]:
    """Rows in one rectangle, zeros behind each, and a mask that is True where they are."""
    data = np.zeros((len(rows), max(map(len, rows)), *rows[0].shape[1:]), dtype)
    mask = np.zeros(data.shape[:2], bool)
    for i, row in enumerate(rows):
        data[i, : len(row)] = row if scale is None else row * np.float32(scale)
        mask[i, : len(row)] = True
    return data, mask


def torch_padded(rows: Sequence[Any], dtype: str) -> Tuple[Any, Any, Any]:
    """The padded data and the mask of `numpy_padded`, made by torch, and the lengths."""
    lengths = torch.tensor([len(row) for row in rows], device=rows[0].device)
    data = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(getattr(torch, dtype))
    return data, torch.arange(data.shape[1], device=lengths.device) < lengths[:, None], lengths


def numpy_ragged(rows: Sequence[Array]) -> Tuple[Array, Array]:
    """Rows one after the other, and where each begins."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return np.concatenate(rows), offsets


def torch_ragged(rows: Sequence[Any]) -> Tuple[Any, Any]:
    offsets = torch.cumsum(torch.tensor([0, *(len(row) for row in rows)]), 0)
    return torch.cat(rows), offsets.to(rows[0].device)


def numpy_normalised(images: Array, dtype: str) -> Array:
    """A batch of 8-bit HWC images as `normalised` ones, each operation rounded."""
    planes = np.divide(images.transpose(0, 3, 1, 2), np.float32(255), dtype=np.float32)
    mean, std = (np.array(values, np.float32).reshape(3, 1, 1) for values in (MEAN, STD))
    return ((planes - mean) / std).astype(dtype, copy=False)


def torch_constants(device: Any = "cpu") -> Tuple[Any, Any]:
    """Mean and deviation of each plane on the device."""
    mean, std = (torch.tensor(values, device=device).view(3, 1, 1) for values in (MEAN, STD))
    return mean, std


def torch_normalised(images: Any, dtype: str, constants: Tuple[Any, Any]) -> Any:
    mean, std = constants
    return ((images.permute(0, 3, 1, 2) / 255 - mean) / std).to(getattr(torch, dtype))


@functools.lru_cache(maxsize=1)
def random_bytes(count: int) -> Array:
    """Bytes to copy, kept for the next one that asks for as many."""
    return np.random.default_rng(0).integers(0, 256, count, np.uint8)


class Memcpy:
    """Plain copies on a number of threads: what the memory of this machine gives. Each call copies `num_bytes` bytes, from the
    next place of a source of `total_bytes` bytes to the same target."""

    def __init__(self, num_bytes: int, threads: int, total_bytes: int) -> None:
        self.num_bytes = max(num_bytes, 1)
        self.threads = threads
        self.places = max(total_bytes // self.num_bytes, 1)
        self.source = random_bytes(self.places * self.num_bytes)
        self.target = np.zeros(self.num_bytes, np.uint8)
        self.pool = ThreadPoolExecutor(threads)
        self.calls = 0

    def __call__(self) -> None:
        begin = self.source.ctypes.data + self.calls % self.places * self.num_bytes
        self.calls += 1
        step = -(-self.num_bytes // self.threads)
        parts = [(at, min(step, self.num_bytes - at)) for at in range(0, self.num_bytes, step)]
        to = self.target.ctypes.data
        # ctypes releases the GIL, so that the copies do run side by side.
        others = [self.pool.submit(ctypes.memmove, to + at, begin + at, size) for at, size in parts[1:]]
        ctypes.memmove(to, begin, parts[0][1])
        for other in others:
            other.result()


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds until a call returns. Its result is dropped outside the clock."""
    begin = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - begin
    del result
    return seconds


def interleave(
    calls: Dict[str, Callable[[], object]],
    seconds: float,
    rounds: Tuple[int, int] = (5, 101),
    tick: Callable[[float], None] = lambda share: None,
    clock: Callable[[Callable[[], object]], Any] = seconds_of,
) -> Dict[str, List[Any]]:
    """Times of each call, in the clock's unit. The calls take turns, so that a slow spell hits all alike. There are at least
    `rounds[0]` rounds, and at most `rounds[1]` until `seconds` are over, behind one call of each that is not clocked.

    A result is dropped before the next call, outside the clock: every library may reuse its memory.
    A pause lets the threads of the last one fall asleep: OpenMP's spin for a while. The C allocator
    merges what it freed in small pieces at the next large request, which for thousands of pieces takes
    longer than some of the calls: that too is done outside the clock. `tick` gets the share of rounds that
    is done.
    """
    times: Dict[str, List[Any]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    gc.collect()
    gc.disable()
    try:
        end = time.perf_counter() + seconds
        for done in range(rounds[1]):
            if done >= rounds[0] and time.perf_counter() > end:
                break
            tick(min(1 - (end - time.perf_counter()) / max(seconds, 1e-9), done / rounds[0], 1.0))
            for name, call in calls.items():
                time.sleep(0.002)
                bytearray(1 << 16)
                times[name].append(clock(call))
    finally:
        gc.enable()
    return times


def quartiles(values: Sequence[float]) -> Tuple[float, float, float]:
    """Lower quartile, median, upper quartile of at least two values."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def format_seconds(seconds: Optional[float]) -> str:
    """Milliseconds with three digits that count; `-` for nothing."""
    if seconds is None:
        return "-"
    ms = seconds * 1e3
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms" if ms >= 10 else f"{ms:.2f} ms" if ms >= 1 else f"{ms:.3f} ms"


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool = False) -> str:
    """Text in columns, the first to the left and the others to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]

    def render(line: Sequence[str]) -> str:
        cells = [cell.ljust(widths[i]) if i == 0 else cell.rjust(widths[i]) for i, cell in enumerate(line)]
        return f"| {' | '.join(cells)} |" if markdown else "  ".join(cells).rstrip()

    rule = ["-" * width if i == 0 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    body = [render(line) for line in lines[1:]]
    return "\n".join([render(lines[0]), render(rule) if markdown else "-" * len(render(lines[0])), *body])


def try_to_write(path: str) -> None:
    """Raises an OSError if a file cannot be written, before what takes minutes to measure is lost. Leaves the file as it is."""
    is_new = not os.path.lexists(path)
    with open(path, "ab"):
        pass
    if is_new:
        os.remove(path)


def machine(*libraries: str) -> Dict[str, str]:
    """Processor, cores, versions, load, date, as text by name; libraries that are not installed are left out."""
    found = {"cpu": cpu_name(), "cores": str(num_cores()), "system": f"{platform.system()} {platform.machine()}"}
    found["caches"] = " + ".join(f"{size >> 10} KiB" for size in caches().values())
    found["windrow"] = wr.__version__
    found["python"] = platform.python_version()
    for name in ("numpy", *libraries):
        module = optional(name)
        if module is not None:
            found[name] = str(getattr(module, "__version__", "?"))
    if hasattr(os, "getloadavg"):
        # Other processes at work make every figure below doubtful, torch's most of all.
        found["load"] = f"{os.getloadavg()[0]:.1f}"
    found["date"] = datetime.date.today().isoformat()
    return found
