"""Chooses the samples of each batch from their lengths: packed rows of a loader, token budgets, equal work for ranks."""

import functools

import numpy as np
from torch.utils.data import DataLoader

import windrow as wr
import windrow.torch
from windrow import plan
from windrow.sequence import pack_rows

CONTEXT = 1024

# Documents of one file of tokens, as np.memmap has it: where each begins, and the end of the last.
rng = np.random.default_rng(0)
begins = np.append(0, rng.integers(4, 3000, 1000).cumsum())
tokens = rng.integers(1, 50_000, begins[-1]).astype(np.uint16)

# A document longer than a row is cut. A piece is a range of the file: there is no object for it.
cuts = np.append(np.concatenate([np.arange(a, b, CONTEXT) for a, b in zip(begins[:-1], begins[1:])]), begins[-1])
pieces, lengths = wr.SampleList.split(tokens, cuts), np.diff(cuts)

# Rows of at most 1024 tokens. The loader's data set are the rows: a batch of 8 of them has ids, labels, positions and
# segments [8, 1024], and the boundaries for attention.
rows = plan.pack(lengths, max_tokens=CONTEXT)
collate = functools.partial(pack_rows, pieces, max_tokens=CONTEXT)
loader = DataLoader(rows, batch_size=8, shuffle=True, collate_fn=collate)
print(f"{len(rows)} rows, {rows.waste:.1%} padding")
print({name: tuple(values.shape) for name, values in next(iter(loader)).items()})

# Batches of similar lengths that stay below 4096 tokens once padded to a multiple of 8: a batch_sampler of the pieces.
batches = plan.token_budget(lengths, max_tokens=4096, pad_to_multiple_of=8)
print(f"{len(batches)} batches, {batches.waste:.1%} padding; the first has {len(batches[0])} pieces")

# Two data-parallel ranks take their share of the batches, in another order each epoch.
sampler = windrow.torch.BatchSampler(batches, seed=0, rank=0, num_ranks=2)
for epoch in range(2):
    sampler.set_epoch(epoch)
    print(f"epoch {epoch}: {len(sampler)} batches, the first of {len(next(iter(sampler)))} pieces")

# A second way is equal work: one row of samples for each rank, which computes all of them and takes its own.
ranks = plan.balance(lengths, num_ranks=2)
print([int(lengths[rank].sum()) for rank in ranks], "tokens a rank")
