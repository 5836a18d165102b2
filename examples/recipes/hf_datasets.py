"""Hugging Face datasets to batches, from the memory of their Arrow tables: no Python object for a row."""

from typing import Any

import datasets
import numpy as np
from torch.utils.data import DataLoader

import windrow as wr
from windrow.hf import collate_columns

rng = np.random.default_rng(0)
rows = [{"input_ids": rng.integers(0, 30000, n), "label": n % 2, "text": f"text {n}"} for n in rng.integers(5, 60, 1000)]
dataset = datasets.Dataset.from_list(rows)

# Slices and `iter` give tables in the format "arrow", which are collated as they are.
spec = {"input_ids": wr.Pad(mask="real", dtype="int64", multiple_of=8)}
for table in dataset.with_format("arrow").iter(batch_size=256):
    batch = collate_columns(table, spec)
    print({name: getattr(value, "shape", len(value)) for name, value in batch.items()})


# Torch's loader goes over the numbers of the rows; a worker has the dataset's files mapped, not its rows.
def collate(rows: list[int]) -> dict[str, Any]:
    return collate_columns(dataset, spec, rows=rows, columns=["input_ids", "label"])


for batch in DataLoader(range(len(dataset)), batch_size=256, shuffle=True, drop_last=True, collate_fn=collate):
    print(batch["input_ids"].shape, batch["input_ids_mask"].sum().item())
