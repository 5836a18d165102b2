#!/usr/bin/env python3
"""Takes batches from worker processes without end: random trees, lifetimes, limits and ways to start, and what goes wrong in between.

Each leaf of each sample is painted with one value, and the tensors of a batch are looked at when they come and when they are let go: a
block that was written while somebody had it would show. Batches, single tensors, views and arrays of them are kept for random times; loops
are left, the reader forks with batches alive, and workers are killed. At the end no pool may be in use, and descriptors and resident
memory may not have grown.
"""

import argparse
import gc
import logging
import os
import random
import signal
import sys
import time

WAYS = ("fork", "spawn", "forkserver")


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", choices=WAYS, help="only this way to start workers; without it each in turn, mostly fork")
    return parser.parse_args()


ARGUMENTS = options() if __name__ == "__main__" else None

import numpy as np  # noqa: E402
import torch  # noqa: E402
import windrow as wr  # noqa: E402
import windrow.torch  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

DTYPES = (torch.uint8, torch.int16, torch.int64, torch.float32, torch.float64, torch.bool)


def leaves_of(number):
    """Name, dtype and shape of each leaf of this batch, and where it is in the tree."""
    rng = random.Random(number)
    sizes = [rng.choice((1, 3, 40, 900, 9_000, 40_000)) for _ in range(rng.choice((1, 2, 3, 8, 30)))]
    return [(f"leaf{index}", rng.choice(DTYPES), rng.choice(((size,), (size, 1), (2, size))), rng.randrange(3)) for index, size in enumerate(sizes)]


def paint(number, index, leaf, dtype):
    value = (number * 7 + index * 13 + leaf * 29) % 120
    return value % 2 if dtype is torch.bool else value


class Samples(torch.utils.data.Dataset):
    """Trees by number of batch and position in it."""

    def __getitem__(self, key):
        number, index = key
        tree = {"number": number, "text": f"{number}.{index}", "list": [], "dict": {}}
        for leaf, (name, dtype, shape, place) in enumerate(leaves_of(number)):
            made = torch.full(shape, paint(number, index, leaf, dtype), dtype=dtype)
            if place == 0:
                tree[name] = made
            elif place == 1:
                tree["list"].append(made)
            else:
                tree["dict"][name] = made
        return tree


def tensors_in(batch):
    """The batch's tensors in the order of its leaves."""
    others = iter(batch["list"])
    for leaf, (name, dtype, _, place) in enumerate(leaves_of(int(batch["number"][0]))):
        yield leaf, dtype, (batch.get(name), None, batch["dict"].get(name))[place] if place != 1 else next(others)


def check_tensor(values, number, leaf, dtype):
    values = np.asarray(values).reshape(len(values), -1)
    want = np.array([paint(number, index, leaf, dtype) for index in range(len(values))])
    assert (values.min(1) == want).all() and (values.max(1) == want).all(), f"batch {number}, leaf {leaf}: torn"


def check(batch):
    number = int(batch["number"][0])
    assert batch["number"].tolist() == [number] * len(batch["number"]) and batch["text"][0] == f"{number}.0"
    for leaf, dtype, tensor in tensors_in(batch):
        assert tensor.dtype is dtype
        check_tensor(tensor.numpy(), number, leaf, dtype)


class Around:
    """A wrapper of the caller's."""

    def __init__(self, collate):
        self.collate = collate

    def __call__(self, samples):
        return dict(self.collate(samples))


def users_of(batch, rng):
    """The part of a batch that a program may keep, as a function that looks at it."""
    number, kind = int(batch["number"][0]), rng.randrange(3)
    if kind == 0:
        return lambda batch=batch: check(batch)
    leaf, dtype, tensor = rng.choice(list(tensors_in(batch)))
    if kind == 1:
        return lambda view=tensor[:]: check_tensor(view.numpy(), number, leaf, dtype)
    array = tensor.numpy()
    if rng.random() < 0.1:
        tensor.share_memory_()
    return lambda: check_tensor(array, number, leaf, dtype)


def loader_of(rng, first, start, collate):
    count = rng.choice((20, 100, 400)) if start == "fork" else 300
    numbers = range(first, first + count)
    sampler = [[(number, index) for index in range(1 + number % 7)] for number in numbers]
    workers = rng.randrange(1, 4) if start == "fork" else 1
    in_order = rng.random() < 0.8
    return DataLoader(Samples(), batch_sampler=sampler, num_workers=workers, collate_fn=collate, multiprocessing_context=start, in_order=in_order), count


def child_that_looks(kept):
    """Forks a child that looks at what was kept, a little later."""
    child = os.fork()
    if child == 0:
        try:
            time.sleep(0.05)
            for look in kept:
                look()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return child


def epoch(rng, first, start, collate, kept, tally):
    """Batches of one loader, and what was kept of others."""
    collate = Around(collate) if rng.random() < 0.25 else collate
    loader, count = loader_of(rng, first, start, collate)
    leave = rng.randrange(count) if rng.random() < 0.2 else count
    kill = rng.randrange(count) if rng.random() < 0.05 else count
    iterator, children, killed = iter(loader), [], None
    try:
        for position, batch in enumerate(iterator):
            check(batch)
            tally["batches"] += 1
            if rng.random() < 0.5:
                kept.append(users_of(batch, rng))
            while len(kept) > 20 or kept and rng.random() < 0.4:
                kept.pop(rng.randrange(len(kept)))()
            if rng.random() < 0.003:
                children.append(child_that_looks(kept))
            if position == kill:
                killed = rng.choice(iterator._workers)
                # Not while it has this lock of torch's, for which the loop would wait without end.
                with iterator._workers_done_event._cond:
                    os.kill(killed.pid, signal.SIGKILL)
                # Torch raises once the worker is dead, wherever the program is: here. While the loop is left, the other
                # workers would stay alive.
                os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
            if position == leave:
                break
    except (RuntimeError, EOFError, ConnectionError) as error:
        # The last two where torch asks the worker for a descriptor just then, of a batch that went its way.
        is_said = not isinstance(error, RuntimeError) or "exited unexpectedly" in str(error) or "killed" in str(error)
        assert kill < count and is_said, error
        tally["killed"] += 1
    if killed:
        # Torch raises again at the end of each child until the dead one is waited for.
        killed.join()
    for child in children:
        _, status = os.waitpid(child, 0)
        assert status == 0, "a child saw other values"
        tally["children"] += 1


def resident():
    """Resident MiB of this process alone: pools are not in it."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon:")) >> 10


def main():
    """The command."""
    torch.set_num_threads(1)
    logging.getLogger("windrow").setLevel(logging.ERROR)
    # Workers of these limits take over each other's pools.
    limits = (None, None, 8 << 20, 256 << 10)
    collates = [windrow.torch.collate_fn(arena=in_arena, workers_memory=limit) for limit in limits for in_arena in (False, True)]
    rng, kept, tally = random.Random(ARGUMENTS.seed), [], {"batches": 0, "killed": 0, "children": 0}
    begin, first, said, settled = time.monotonic(), 0, 0, None
    while tally["batches"] < ARGUMENTS.batches and time.monotonic() - begin < ARGUMENTS.seconds:
        start = ARGUMENTS.start or rng.choices(WAYS, (20, 1, 1))[0]
        epoch(rng, first, start, rng.choice(collates), kept, tally)
        first += 1000
        figures = len(os.listdir("/proc/self/fd")), resident()
        if tally["batches"] - said >= ARGUMENTS.batches / 20:
            said = tally["batches"]
            settled = settled or figures
            print(f"{tally}, {figures[0]} descriptors, {figures[1]} MiB, {wr.stats()['workers']}", flush=True)
    while kept:
        kept.pop()()
    collates.clear()
    gc.collect()
    figures, workers = (len(os.listdir("/proc/self/fd")), resident()), wr.stats()["workers"]
    print(f"{tally}, {figures[0]} descriptors, {figures[1]} MiB, {workers}, {time.monotonic() - begin:.0f} s")
    assert workers["pool_bytes"] == 0, "memory of workers that have ended"
    if settled:
        assert figures[0] <= settled[0] + 3 and figures[1] <= settled[1] + 64, (settled, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
