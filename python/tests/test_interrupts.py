"""Ctrl-C at any moment of a call: the exception that a signal's handler raises arrives, and as it is."""

import sys

import pytest

import isolated

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="SKIP: no interval timers")]

# A timer goes off within each round of calls. Code that runs Python there, such as isinstance() with an
# abstract class, runs the handler too.
STORM = """
import collections, dataclasses, random
{imports}

class Row(collections.UserDict):
    pass

@dataclasses.dataclass
class Item:
    x: object
    y: object

arrays = [paint(4, "float32", seed) for seed in range(16)]
dicts = [dict(x=row, y=1.0, s="a") for row in arrays]
rows = [Row(x=row, y=1.0) for row in arrays]
items = [Item(row, Row(z=row)) for row in arrays]
samples = wr.SampleList(arrays)
calls = {calls}

ran = caught = 0
unraisable = []
sys.unraisablehook = unraisable.append

def handler(signum, frame):
    global ran
    ran += 1
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, handler)

def storm(call, end):
    while time.monotonic() < end:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 3e-4))
        for _ in range(4):
            call()
        signal.setitimer(signal.ITIMER_REAL, 0)
    # An interrupt that another thread was given arrives here at the latest.
    time.sleep(0.05)

for name, call in calls.items():
    call()
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        try:
            storm(call, end)
        except KeyboardInterrupt:
            caught += 1
    assert (ran, unraisable) == (caught, []), (name, ran, caught, unraisable)
assert ran > 0
"""

CALLS = """{
    "dicts": lambda: wr.collate(dicts),
    "mappings": lambda: wr.collate(rows),
    "dataclasses": lambda: wr.collate(items),
    "specs": lambda: wr.collate(rows, {"x": wr.Pad(size=8, mask="real"), "*": wr.Stack()}),
    "explain": lambda: wr.explain(rows, "collate"),
    "stack": lambda: wr.stack(arrays),
    "list": lambda: wr.stack(wr.SampleList(arrays).take(range(8))),
    "one sample": lambda: wr.pad(samples, dims=(0,), multiple_of=(8,)),
}"""

TORCH_CALLS = """{
    "dicts": lambda: collate(dicts),
    "mappings": lambda: collate(rows),
    "specs": lambda: padded(rows),
    "default_collate": lambda: torch.utils.data.default_collate(rows),
    "tensors": lambda: wr.collate([{"x": tensor} for tensor in tensors]),
    "gradients": lambda: collate(tensors),
}"""
TORCH = """
import torch, windrow.torch
windrow.torch.install()
collate, padded = windrow.torch.collate_fn(), windrow.torch.collate_fn({"x": wr.Pad(size=8)})
tensors = [torch.ones(4) for _ in range(16)]
"""


def test_interrupts_are_not_lost():
    isolated.run(STORM.format(imports="", calls=CALLS))


def test_interrupts_are_not_lost_by_torchs_rules(torch):
    isolated.run(STORM.format(imports=TORCH, calls=TORCH_CALLS))
