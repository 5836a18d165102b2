#!/usr/bin/env python3
"""Makes batches without end, as a training job does: all forms, many kinds of samples, and failures thrown in.

Each round takes a form, samples and options at random. Some of the batches are compared whole with the oracle of the
Python tests, some are kept for a while and compared again, some go out by DLPack, NumPy or torch. One round in eight
fails: a sample that does not fit, a producer that raises, an output that is too small, more than memory. At the end
no byte of the pools may be in use, every deleter must have run once, `stats()` must know every batch, and resident
memory may not have grown: the lowest of the last quarter is compared with the lowest of the second.
"""

import argparse
import gc
import json
import random
import sys
import time
from collections import deque
from pathlib import Path

def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checked", type=float, default=0.1, help="share of the batches compared with the oracle")
    parser.add_argument("--report", type=Path, help="a JSON line for each look at the figures")
    return parser.parse_args()


# The arguments are parsed before the imports, none of which --help needs.
ARGUMENTS = options()
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/tests"))

import numpy as np  # noqa: E402

import oracle  # noqa: E402
import windrow as wr  # noqa: E402
from dlpack_harness import Handle, Producer, double_frees  # noqa: E402
from helpers import assert_same, memory, paint_values, rss_bytes, settle  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

DTYPES = ("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64")
LONGEST = 200_000
LIMIT_BYTES = 32 << 20


class Stop(BaseException):
    """Stands for KeyboardInterrupt."""


class Counting(Producer):
    """A producer that notes the tensors of all capsules in one deque, oldest first."""

    made = 0
    noted = deque()

    def __dlpack__(self, **_):
        handle = Handle(self.array)
        Counting.made += 1
        Counting.noted.append(handle)
        return handle.capsule()


class Raising(Producer):
    def __init__(self, error):
        super().__init__(None)
        self.error = error

    def __dlpack__(self, **_):
        raise self.error


class Soak:
    def __init__(self, seed, checked):
        self.random, self.checked = random.Random(seed), checked
        self.paint = {name: paint_values(LONGEST + 2500, name) for name in DTYPES}
        self.engine = self.new_engine()
        self.kept = deque(maxlen=16)
        self.counts = {"batches": 0, "checked": 0, "failed": 0, "engines": 0}
        # The expected count of the default engine.
        self.expected = 0
        wr.reset_stats()

    def new_engine(self):
        return wr.Engine(threads=self.random.randint(1, 3), pool_bytes=self.random.choice([0, 1 << 20, 1 << 28]))

    def arrays(self, form):
        """Painted samples of one dtype that fit the form."""
        choose = self.random
        name = choose.choice(DTYPES)
        rest = tuple(choose.randint(1, 12) for _ in range(choose.randint(0, 2)))
        # Most sizes are small; some are enough for threads, for the pool, and for large pages.
        longest = choose.choices([8, 200, 4000, LONGEST], [50, 30, 15, 0.3])[0] // max(1, int(np.prod(rest))) + 1
        count = choose.randint(1, 24 if longest < 1000 else 6)
        same = choose.randint(0, longest)
        lengths = [same if form == "stack" else choose.randint(0, longest) for _ in range(count)]
        step = int(np.prod(rest))
        starts = [choose.randint(0, 250) for _ in lengths]
        return [self.paint[name][i : i + n * step].reshape((n, *rest)) for i, n in zip(starts, lengths)], name

    def sample(self, array):
        kind = self.random.randint(0, 5)
        if kind == 0 and torch is not None:
            return torch.from_numpy(array)
        if kind == 1:
            return Counting(array)
        if kind == 2:
            return wr.asarray(array)
        if kind == 3 and array.dtype != bool:
            return memoryview(array)
        if kind == 4:
            return array.astype(array.dtype.newbyteorder()) if array.ndim == 1 else np.asfortranarray(array)
        return array

    def round(self):
        choose = self.random
        form = choose.choice(["stack", "concat", "pad", "ragged"])
        arrays, name = self.arrays(form)
        samples = [self.sample(array) for array in arrays]
        options = {"engine": self.engine} if choose.random() < 0.3 else {}
        if choose.random() < 0.125:
            self.failure(form, samples, options)
            return
        cast = choose.choice([None, None, None, "float32", "int64", "float16"])
        if cast:
            options["dtype"] = cast
        wanted = {}
        if form == "pad":
            wanted = {"side": choose.choice(["left", "right", "center"]), "mask": choose.choice([None, "real", "pad"]), "dims": [0]}
            wanted["multiple_of"] = choose.choice([1, 8])
        if choose.random() < 0.2:
            samples = wr.SampleList(samples)
        if choose.random() < 0.1:
            spec = {"x": getattr(wr, form.capitalize())(**wanted)}
            trees = [{"x": samples[i], "n": i, "s": "text"} for i in range(len(arrays))]
            batch = wr.collate(trees, spec, **options)["x"]
            self.count(options, 2)
        else:
            batch = getattr(wr, form)(samples, **wanted, **options)
            self.count(options, 1)
        if choose.random() < self.checked:
            want = getattr(oracle, form)(arrays, name, dst=cast, **wanted)
            self.compare(batch, want, cast or name)
            self.kept.append((batch, want, cast or name, self.exported(batch)))

    def exported(self, batch):
        ways = [batch.numpy, batch.__dlpack__, lambda: memoryview(batch), lambda: list(batch)]
        if torch is not None:
            ways.append(batch.torch)
        return self.random.choice(ways)()

    def count(self, options, batches):
        self.counts["batches"] += batches
        if "engine" not in options:
            self.expected += batches

    def compare(self, batch, want, name):
        self.counts["checked"] += 1
        assert_same(memory(batch), want.data, name)
        for field in ("lengths", "offsets", "mask"):
            expected = getattr(want, field, None)
            if expected is not None and getattr(batch, field) is not None:
                assert_same(memory(getattr(batch, field)), np.asarray(expected))

    def failure(self, form, samples, options):
        """A call that must fail, by one of many reasons."""
        choose = self.random
        bad, kind, changes = choose.choice(
            [
                (np.zeros((1, 2, 3, 4, 5, 6)), wr.ShapeError, {}),
                (np.zeros(1, "i4, f4"), (wr.LayoutError, wr.DTypeError), {}),
                (None, TypeError, {}),
                (object(), TypeError, {}),
                (Raising(ValueError("no")), ValueError, {}),
                (Raising(BufferError("no")), BufferError, {}),
                (Raising(Stop()), Stop, {}),
                (np.zeros(1), (ValueError, TypeError), {"out": np.zeros((1, 1, 1, 1, 1, 1, 1))}),
                (np.zeros(3), TypeError, {"nonsense": 1}),
                (np.broadcast_to(np.zeros((), "int8"), (1 << 46,)), MemoryError, {"alone": True}),
            ]
        )
        if changes.pop("alone", False):
            samples = []
        samples.insert(choose.randint(0, len(samples)), bad)
        try:
            getattr(wr, form)(samples, **changes, **options)
        except kind:
            self.counts["failed"] += 1
        else:
            raise AssertionError(f"{form} of {bad!r} did not fail")

    def tidy(self):
        """Rare events of a long run; then the figures have to agree."""
        if self.random.random() < 0.5:
            self.engine = self.new_engine()
            self.counts["engines"] += 1
        if self.random.random() < 0.1:
            wr.empty_cache()
        for batch, want, name, _ in self.kept:
            assert_same(memory(batch), want.data, name)
        gc.collect()
        assert double_frees() == []
        while Counting.noted and Counting.noted[0].deleted == 1:
            Counting.noted.popleft()
        stats = wr.stats()
        assert stats["batches"] == self.expected, (stats["batches"], self.expected)
        return {**self.counts, "rss": rss_bytes(), "pool": stats["pool_bytes"], "used": stats["pool_used_bytes"]}

    def finish(self):
        self.kept.clear()
        del self.engine
        gc.collect()
        settle()
        wr.empty_cache()
        stats = wr.stats()
        assert stats["pool_used_bytes"] == stats["pool_bytes"] == 0, stats
        alive = [handle for handle in Counting.noted if handle.deleted != 1]
        assert not alive, f"{len(alive)} of {Counting.made} capsules were not freed once"


def main(arguments):
    soak, begun, looks = Soak(arguments.seed, arguments.checked), time.monotonic(), []
    report = arguments.report.open("w") if arguments.report else None
    # Collections do not traverse the objects that exist already.
    gc.freeze()
    rounds = 0
    while soak.counts["batches"] < arguments.batches and time.monotonic() - begun < arguments.seconds:
        try:
            soak.round()
        except BaseException:
            print(f"round {rounds} of seed {arguments.seed}", file=sys.stderr)
            raise
        rounds += 1
        if rounds % 2000 == 0:
            looks.append({"seconds": round(time.monotonic() - begun, 1), **soak.tidy()})
            if report:
                print(json.dumps(looks[-1]), file=report, flush=True)
    soak.tidy()
    soak.finish()
    quarter = len(looks) // 4
    grown = 0
    if quarter:
        lowest = [min(look["rss"] for look in looks[n * quarter : (n + 1) * quarter]) for n in (1, 3)]
        grown = lowest[1] - lowest[0]
    print(
        f"{soak.counts}, capsules {Counting.made}, {time.monotonic() - begun:.0f} s, "
        f"rss {rss_bytes() >> 20} MiB, grown by {grown >> 10} KiB"
    )
    if grown > LIMIT_BYTES:
        sys.exit("resident memory grew")


if __name__ == "__main__":
    main(ARGUMENTS)
