"""Two ranks share one plan: as many steps on each, and nearly as many tokens in each step. Both run on this machine here."""

import multiprocessing
import random
import tempfile
from typing import Any, Dict, List

import torch.distributed as dist
from torch.utils.data import DataLoader

from windrow import plan
from windrow.sequence import pack_tokens

NUM_RANKS, BUDGET = 2, 2048
dataset: List[Dict[str, Any]] = [{"input_ids": [i] * random.Random(i).randint(4, 400)} for i in range(1000)]


def shares_of(rank: int, num_ranks: int, lengths: List[int], budget: int, epoch: int) -> List[List[int]]:
    """The samples of one rank in each step. Every rank computes the same steps and the same shares, and takes its own."""
    if max(lengths) > budget:
        raise ValueError(f"sample {lengths.index(max(lengths))} has {max(lengths)} tokens, more than {budget}: cut or drop it")
    order = random.Random(epoch).sample(range(len(lengths)), len(lengths))
    steps = plan.pack([lengths[i] for i in order], num_ranks * budget, "in_order")
    if len(steps[-1]) < num_ranks:
        steps.pop()  # a rank would have none of it; other epochs leave out others
    shares = []
    for step in steps:
        samples = [order[i] for i in step]
        ranks = plan.balance([lengths[i] for i in samples], num_ranks)
        shares.append([samples[i] for i in ranks[rank]])
    return shares


def train(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=NUM_RANKS)
    # A rank that knows only the lengths of its own files asks the others for theirs.
    half = len(dataset) // NUM_RANKS
    parts: List[List[int]] = [[]] * NUM_RANKS
    dist.all_gather_object(parts, [len(row["input_ids"]) for row in dataset[rank * half : (rank + 1) * half]])
    lengths = [length for part in parts for length in part]

    counts: List[List[int]] = []
    shares = shares_of(rank, NUM_RANKS, lengths, BUDGET, epoch=0)
    for batch in DataLoader(dataset, batch_sampler=shares, collate_fn=pack_tokens):
        # The exchange stands for a step of the model, which waits for all ranks too.
        counts.append([0] * NUM_RANKS)
        dist.all_gather_object(counts[-1], batch["input_ids"].numel())
    if rank == 0:
        # Flushed: the pool ends its processes without waiting for what they have buffered.
        print(f"{len(counts)} steps; tokens of the ranks in the first three: {counts[:3]}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, multiprocessing.get_context("spawn").Pool(NUM_RANKS) as ranks:
        ranks.starmap(train, [(rank, f"{folder}/store") for rank in range(NUM_RANKS)], 1)
