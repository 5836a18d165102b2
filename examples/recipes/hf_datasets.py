"""Hugging Face datasets to batches, from the memory of their Arrow tables: no Python object for a row."""

import functools

import datasets
import numpy as np
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import windrow as wr
from windrow.hf import collate_columns

rng = np.random.default_rng(0)
rows = [{"input_ids": rng.integers(0, 30000, n), "label": n % 2, "text": f"text {n}"} for n in rng.integers(5, 60, 1000)]
dataset = datasets.Dataset.from_list(rows).with_format("arrow")

# Slices and `iter` give tables, which are collated as they are.
spec = {"input_ids": wr.Pad(mask="real", dtype="int64", multiple_of=8)}
for table in dataset.iter(batch_size=256):
    batch = collate_columns(table, spec)
    print({name: getattr(value, "shape", len(value)) for name, value in batch.items()})

# With torch's loader: the sampler gives whole batches of indices, so that the dataset is asked once for each.
sampler = BatchSampler(RandomSampler(dataset), 256, drop_last=True)
collate = functools.partial(collate_columns, spec=spec, columns=["input_ids", "label"])
for batch in DataLoader(dataset, sampler=sampler, batch_size=None, collate_fn=collate):
    print(batch["input_ids"].shape, batch["input_ids_mask"].sum().item())
