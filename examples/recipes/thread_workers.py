"""A loader whose workers are threads: batches are made where they are used, in page-locked memory if there is a GPU."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import windrow as wr
import windrow.torch

samples = [{"image": torch.full((3, 8, 8), i, dtype=torch.uint8), "label": i} for i in range(24)]
batches = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(samples), batch_size=8, drop_last=True)

# The engine copies without Python's lock, so that threads assemble side by side.
collate = windrow.torch.collate_fn(device="pinned" if wr.cuda_available() else None)


def load(indices: list[int]) -> dict[str, Any]:
    """The work of a worker: reading, decoding and augmenting belong here, in libraries that release the lock."""
    batch: dict[str, Any] = collate([samples[i] for i in indices])
    return batch


def ahead_of_use(batches: Iterable[list[int]], workers: int = 2, depth: int = 4) -> Iterator[dict[str, Any]]:
    """Batches in order, up to `depth` of them begun before they are asked for."""
    with ThreadPoolExecutor(workers) as pool:
        under_way: deque[Future[dict[str, Any]]] = deque()
        for indices in batches:
            under_way.append(pool.submit(load, indices))
            if len(under_way) >= depth:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


for batch in ahead_of_use(batches):
    assert batch["image"].shape == (8, 3, 8, 8)
    assert (batch["image"][:, 0, 0, 0] == batch["label"]).all()
    print(batch["label"].tolist())
