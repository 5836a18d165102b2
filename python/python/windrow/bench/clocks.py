"""Times of a call on a device, by clocks that tell the host's time from the device's.

| clock | runs |
|---|---|
| host | until the call returns, the device idle before it: what a loop pays that does not wait |
| wall | until the device is done, the device idle before it: what a step pays that waits |
| device | between two events around the call. The stream is busy before them, so that all of the call is enqueued when the device comes to the first |
"""

from __future__ import annotations

import time
from typing import Any, Callable, NamedTuple, Tuple

from windrow._system import optional

torch = optional("torch")

LONGEST_DELAY = 0.06
"""Seconds that the stream is kept busy at most: who takes longer to enqueue is late."""


def l2_bytes(device: Any) -> int:
    """Size of the device's second cache; 64 MiB where torch does not say."""
    return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)) or 64 << 20


class Times(NamedTuple):
    """Seconds of one call, and whether the device came to the first event before all was enqueued: it may have waited for the host."""

    wall: float
    host: float
    device: float
    is_late: bool


class DeviceClock:
    """The clocks of a device, for what is enqueued on torch's current stream. Cold ones sweep the second cache before each run."""

    def __init__(self, device: Any, cold: bool = True) -> None:
        self.cold = cold
        self.swept = torch.zeros(2 * l2_bytes(device) // 8, dtype=torch.int64, device=device)
        self.cycles_per_second = self.measured_cycles(device)

    def measured_cycles(self, device: Any) -> float:
        """Cycles of a second under load. The most of many: an idle GPU begins at a fifth of its clock, and delays have to be long enough."""
        burnt = torch.rand((4096, 4096), device=device, dtype=torch.float16)
        found, cycles = 0.0, 2_000_000
        for _ in range(40):
            for _ in range(10):
                burnt @ burnt
            begin = self.event()
            torch.cuda._sleep(cycles)
            end = self.event()
            end.synchronize()
            found = max(found, cycles / (begin.elapsed_time(end) / 1e3))
        return found

    def event(self) -> Any:
        """An event that is recorded now."""
        made = torch.cuda.Event(enable_timing=True)
        made.record()
        return made

    def sweep(self) -> None:
        """Reads twice as many bytes as the second cache holds. What was in it is not, and nothing waits to be written."""
        self.swept.sum()

    def walled(self, call: Callable[[], object]) -> Tuple[float, float]:
        """Seconds until the call returns, and until the device is done."""
        if self.cold:
            self.sweep()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        result = call()
        host = time.perf_counter() - begin
        torch.cuda.synchronize()
        wall = time.perf_counter() - begin
        del result
        return host, wall

    def between_events(self, call: Callable[[], object], host: float) -> Tuple[float, bool]:
        """Seconds on the device, and whether it was late; `host` is what the call takes until it returns, about."""
        torch.cuda._sleep(int(min(1.5 * host + 3e-5, LONGEST_DELAY) * self.cycles_per_second))
        if self.cold:
            self.sweep()
        begin = self.event()
        result = call()
        is_late = begin.query()
        end = self.event()
        end.synchronize()
        del result
        return begin.elapsed_time(end) / 1e3, is_late

    def __call__(self, call: Callable[[], object]) -> Times:
        """One call for the host and the wall, and one for the device."""
        host, wall = self.walled(call)
        return Times(wall, host, *self.between_events(call, host))
