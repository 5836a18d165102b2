"""Arrow columns to batches, without a Python object for each row: pyarrow, polars, duckdb."""

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

import windrow as wr

rng = np.random.default_rng(0)
lengths = rng.integers(1, 9, 6)
table = pa.table(
    {
        "ids": [rng.integers(0, 1000, n) for n in lengths],
        "image": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(6 * 4, np.float32)), 4),
        "label": rng.integers(0, 2, 6),
        "name": list("abcdef"),
    }
)

# A table is the list of its rows, dicts of its columns.
batch = wr.collate(table, {"ids": wr.Pad(mask="real"), "image": wr.Stack(dtype="float16")})
print(batch["ids"].shape, batch["image"].dtype, batch["label"].numpy(), batch["name"])

# A column is the list of its rows; imported once, batches are made by index.
rows = wr.SampleList(table["ids"])
print(wr.ragged(rows.take([4, 0])).offsets.numpy())

# The same of polars and of a query.
print(wr.pad(pl.DataFrame(table)["ids"]).shape)
query = duckdb.connect().sql("select range as y, range(range) as steps from range(4)")
print(wr.collate(query, {"steps": wr.Ragged()})["steps"].numpy())
