"""Chooses the samples of each batch from their lengths: rows of a token budget, and equal work for ranks."""

import random

from torch.utils.data import DataLoader

import windrow.torch
from windrow import plan
from windrow.sequence import pack_rows

dataset = [list(range(random.Random(i).randint(4, 400))) for i in range(1000)]
lengths = [len(tokens) for tokens in dataset]

# Rows of at most 1024 tokens. As a batch sampler, each row is one list of samples.
rows = plan.pack(lengths, max_tokens=1024)
loader = DataLoader(dataset, batch_sampler=rows, collate_fn=list)
print(f"{len(rows)} rows, {rows.waste:.1%} padding; the first holds {[len(tokens) for tokens in next(iter(loader))]} tokens")

# The same rows assembled: ids, labels, positions and segments [B, 1024], and the boundaries for attention.
batch = pack_rows(dataset, rows)
print({name: tuple(values.shape) for name, values in batch.items()})

# Batches of similar lengths that stay below 4096 tokens once padded to a multiple of 8.
batches = plan.token_budget(lengths, max_tokens=4096, pad_to_multiple_of=8)
print(f"{len(batches)} batches, {batches.waste:.1%} padding")

# Two data-parallel ranks take their share of the batches, in another order each epoch.
sampler = windrow.torch.BatchSampler(batches, seed=0, rank=0, num_ranks=2)
for epoch in range(2):
    sampler.set_epoch(epoch)
    print(f"epoch {epoch}: {len(sampler)} batches, the first of {len(next(iter(sampler)))} samples")

# Or equal work: one row of samples for each rank, which computes all of them and takes its own.
ranks = plan.balance(lengths, num_ranks=2)
print([sum(lengths[i] for i in rank) for rank in ranks], "tokens a rank")
