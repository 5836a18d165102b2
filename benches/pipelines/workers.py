"""DataLoaders with worker processes: `default_collate`, windrow with new shared memory for each batch, and windrow
with memory that is used again.

An epoch is timed from its first `next` to its last; the contenders take turns. Results are compared before anything is timed.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List

import torch
import windrow.torch
from loader import line
from torch.utils.data import DataLoader, default_collate
from windrow._measure import interleave

EPOCHS = 9


class Held(torch.utils.data.Dataset):
    """The samples of a case, which are there. A worker that is spawned makes its own."""

    def __init__(self, title: str) -> None:
        torch.manual_seed(0)
        self.title, self.samples = title, CASES[title][0]()

    def __reduce__(self) -> Any:
        return Held, (self.title,)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def images(dtype: torch.dtype, count: int, side: int = 224) -> Callable[[], List[Any]]:
    return lambda: [torch.randint(0, 255, (3, side, side)).to(dtype) for _ in range(count)]


def trees(count: int, leaves: int, size: int) -> Callable[[], List[Any]]:
    return lambda: [{f"leaf{leaf}": torch.rand(size) for leaf in range(leaves)} for _ in range(count)]


# Title, samples, samples of a batch.
CASES = {
    "uint8 images, 32": (images(torch.uint8, 1024), 32),
    "uint8 images, 256": (images(torch.uint8, 1024), 256),
    "float32 images, 32": (images(torch.float32, 512, 112), 32),
    "float32 images, 256": (images(torch.float32, 1024, 112), 256),
    "dicts of 8 x 16 floats, 256": (trees(8192, 8, 16), 256),
    "dicts of 114 x 64 floats, 16": (trees(1024, 114, 64), 16),
}
# How workers are started, whether they stay alive, how many there are, and of which cases.
WAYS = [
    ("fork", True, 2, tuple(CASES)),
    ("fork", True, 4, ("uint8 images, 32", "float32 images, 256", "dicts of 8 x 16 floats, 256")),
    ("spawn", True, 2, ("uint8 images, 32", "dicts of 8 x 16 floats, 256")),
    ("fork", False, 2, ("uint8 images, 32", "float32 images, 256", "dicts of 8 x 16 floats, 256")),
]


def leaves(batch: Any) -> List[torch.Tensor]:
    return list(batch.values()) if isinstance(batch, dict) else [batch]


def consume(loader: Any) -> Callable[[], None]:
    def epoch() -> None:
        for _ in loader:
            pass

    return epoch


def case(title: str, start: str, is_persistent: bool, workers: int) -> Dict[str, Any]:
    """One line of the result."""
    dataset, size = Held(title), CASES[title][1]
    collates = {
        "default_collate": default_collate,
        "windrow, workers_memory=0": windrow.torch.collate_fn(workers_memory=0),
        "windrow": windrow.torch.collate_fn(),
    }
    made = {
        name: DataLoader(
            dataset, size, num_workers=workers, collate_fn=collate, persistent_workers=is_persistent, multiprocessing_context=start
        )
        for name, collate in collates.items()
    }
    for name in list(made)[1:]:
        for got, want in zip(made[name], made["default_collate"]):
            assert all(map(torch.equal, leaves(got), leaves(want))), f"{title}: batches of {name} differ"
    times = interleave({name: consume(loader) for name, loader in made.items()}, 0.0, (EPOCHS, EPOCHS))
    del made
    stays = "" if is_persistent else ", started for each epoch"
    return line(f"{workers} workers ({start}{stays}), {title} a batch", len(dataset), times)


def measure(say: Callable[[Dict[str, Any]], None]) -> None:
    """Every comparison in turn; `say` gets each as it is done."""
    for start, is_persistent, workers, titles in WAYS:
        for title in titles:
            say(case(title, start, is_persistent, workers))
