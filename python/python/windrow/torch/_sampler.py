"""`BatchSampler`: the rows of a plan as torch's DataLoader takes them, epoch after epoch and rank by rank."""

from __future__ import annotations

import random
from typing import Iterator, List, Optional, Sequence

import torch.utils.data

from windrow.plan import int_of


class BatchSampler(torch.utils.data.Sampler[List[int]]):
    """Rows of sample indices as a ``batch_sampler``: shuffled for each epoch, and divided among data-parallel ranks.

    Every rank gets the same number of rows, so that none waits for another at the end. The rows themselves stay as they are.
    ``list(sampler)[k:]`` are the rows that are left of an epoch after ``k`` of them.

    Args:
        rows: as `windrow.plan.pack`, `windrow.plan.token_budget` and `windrow.plan.buckets` give them.
        seed: shuffles the rows, in another order for each epoch that `set_epoch` sets and in the same order on all ranks; without
            `set_epoch` each epoch has the same order. None: the order of the plan.
        rank: the share of the rows that this process takes, from 0.
        num_ranks: the number of shares.
        drop_last: leaves out the last rows that cannot be divided evenly among the ranks; if False, the first rows are repeated instead.

    Raises:
        ValueError: ``rank`` is not from 0 to ``num_ranks`` - 1, ``num_ranks`` is below 1, or ``seed`` is negative.
        TypeError: one of them is not an int.

    Example:
        >>> import windrow.torch
        >>> from windrow import plan
        >>> sampler = windrow.torch.BatchSampler(plan.pack([3, 6, 2, 5], max_tokens=8), rank=1, num_ranks=2)
        >>> list(sampler), len(sampler)
        ([[3, 0]], 1)
    """

    def __init__(
        self,
        rows: Sequence[Sequence[int]],
        *,
        seed: Optional[int] = None,
        rank: int = 0,
        num_ranks: int = 1,
        drop_last: bool = False,
    ) -> None:
        num_ranks = int_of("num_ranks", num_ranks)
        seed = None if seed is None else int_of("seed", seed, 0, 64)
        rank = int_of("rank", rank, 0)
        if rank >= num_ranks:
            raise ValueError(f"rank must be from 0 to num_ranks - 1, {num_ranks - 1}, got {rank}")
        self.rows, self.seed, self.rank, self.num_ranks, self.drop_last = rows, seed, rank, num_ranks, drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, from 0, that seeds the next order: call it before each epoch on every rank, like DistributedSampler's."""
        self.epoch = int_of("epoch", epoch, 0)

    def __len__(self) -> int:
        """The number of rows of this rank."""
        whole, rest = divmod(len(self.rows), self.num_ranks)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[List[int]]:
        order = list(range(len(self.rows)))
        if self.seed is not None:
            # The seed depends on both numbers, so that no epoch has the order of another seed's.
            random.Random(f"{self.seed} {self.epoch}").shuffle(order)
        for turn in range(len(self)):
            yield list(self.rows[order[(turn * self.num_ranks + self.rank) % len(order)]])
