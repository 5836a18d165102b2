"""torch's DataLoader with windrow's collate function beside its own, worker threads beside its processes, and default_collate
alone on small dicts.

An epoch is timed from its first `next` to its last; the contenders take turns, each with workers of its own that stay
alive. Results are compared before anything is timed.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import torch
import windrow.torch
from torch.utils.data import DataLoader, default_collate
from windrow._measure import interleave, quartiles

SIDE = 224
EPOCHS = 11
NUM_IMAGES = 2048
DISTINCT = 512
"""Images held; 77 MB as uint8, more than the caches."""


class Images(torch.utils.data.Dataset):
    """Pictures with a label: held as tensors, or cut from larger arrays for each item as an augmentation does."""

    def __init__(self, kind: str) -> None:
        rng = np.random.default_rng(0)
        self.kind = kind
        if kind == "uint8 cropped by the dataset":
            self.held: Any = rng.integers(0, 256, (64, 256, 256, 3), np.uint8)
        elif kind == "float32 CHW held":
            self.held = [torch.rand(3, SIDE, SIDE) for _ in range(DISTINCT // 4)]
        else:
            self.held = [torch.from_numpy(rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)) for _ in range(DISTINCT)]

    def __len__(self) -> int:
        return NUM_IMAGES

    def __getitem__(self, i: int) -> Tuple[Any, int]:
        if self.kind == "uint8 cropped by the dataset":
            y, x = i * 7 % 32, i * 13 % 32
            return self.held[i % len(self.held), y : y + SIDE, x : x + SIDE].copy(), i
        return self.held[i % len(self.held)], i


class ThreadLoader:
    """A loader like a DataLoader, with workers that are threads and stay alive, and as many batches ahead."""

    def __init__(self, dataset: Images, batch_size: int, workers: int, collate: Callable[[Any], Any]) -> None:
        self.dataset, self.batch_size, self.collate = dataset, batch_size, collate
        self.pool, self.depth = ThreadPoolExecutor(workers), 2 * workers

    def load(self, start: int) -> Any:
        return self.collate([self.dataset[i] for i in range(start, min(start + self.batch_size, len(self.dataset)))])

    def __iter__(self) -> Any:
        under_way: Any = deque()
        for start in range(0, len(self.dataset), self.batch_size):
            under_way.append(self.pool.submit(self.load, start))
            if len(under_way) >= self.depth:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


KINDS = ("uint8 held", "float32 CHW held", "uint8 cropped by the dataset")


def epoch(loader: Any) -> Callable[[], int]:
    return lambda: sum(len(labels) for _, labels in loader)


def same(got: Any, want: Any) -> bool:
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(got, want)) and len(got) == len(want)


def loaders(workers: int, batch_size: int, kind: str) -> Dict[str, Any]:
    """One line of the result: seconds of an epoch as quartiles."""
    dataset = Images(kind)
    collates = {"default_collate": default_collate, "windrow": windrow.torch.collate_fn()}
    made: Dict[str, Any] = {
        name: DataLoader(dataset, batch_size, num_workers=workers, collate_fn=collate, persistent_workers=workers > 0)
        for name, collate in collates.items()
    }
    if workers:
        made["windrow, threads"] = ThreadLoader(dataset, batch_size, workers, collates["windrow"])
    for name in list(made)[1:]:
        for got, want in zip(made[name], made["default_collate"]):
            assert same(got, want), f"{kind}: batches of {name} differ"
    # Few rounds, as an epoch takes a second; `interleave` warms each up with one that does not count.
    times = interleave({name: epoch(loader) for name, loader in made.items()}, 0.0, (EPOCHS, EPOCHS))
    del made
    return line(f"DataLoader, {workers} workers, {batch_size} images a batch, {kind}", NUM_IMAGES, times)


def line(title: str, count: int, times: Dict[str, List[float]]) -> Dict[str, Any]:
    """The record of one comparison; `count` things in so many seconds."""
    found = {name: list(quartiles(seconds)) for name, seconds in times.items()}
    return {"title": title, "count": count, "quartiles": found}


LEAVES = (("obs", (8,)), ("next_obs", (8,)), ("action", (2,)), ("reward", ()), ("done", ()), ("value", ()), ("log_prob", ()), ("step", ()))


def trees(kind: str, count: int) -> Dict[str, Any]:
    """Dicts of eight small leaves, collated in the process itself."""
    rng = np.random.default_rng(1)
    samples = [{name: rng.random(shape, np.float32) if shape else np.float32(rng.random()) for name, shape in LEAVES} for _ in range(count)]
    if kind == "tensors":
        samples = [{name: torch.as_tensor(leaf) for name, leaf in sample.items()} for sample in samples]
    if kind == "arrays":
        samples = [{name: np.asarray(leaf) for name, leaf in sample.items()} for sample in samples]
    ours = windrow.torch.collate_fn()
    got, want = ours(samples), default_collate(samples)
    assert same(list(got.values()), list(want.values())) and list(got) == list(want)
    times = interleave({"default_collate": lambda: default_collate(samples), "windrow": lambda: ours(samples)}, 3.0)
    return line(f"{count} dicts of 8 small {kind}", count, times)


def measure(say: Callable[[Dict[str, Any]], None]) -> None:
    """Every comparison in turn; `say` gets each as it is done."""
    for kind in KINDS:
        for workers in (0, 2):
            for batch_size in (32, 256):
                say(loaders(workers, batch_size, kind))
    for kind in ("arrays", "tensors"):
        for count in (64, 1024):
            say(trees(kind, count))
