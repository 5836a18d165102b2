"""A user's program for type checkers: what they know of results, and what they refuse. Read by mypy and pyright, never run.

Each ``type: ignore`` is a refusal: both checkers report one that is not needed.
"""

from typing import Any, Dict, List, Tuple

import numpy as np
import torch
from typing_extensions import assert_type

import windrow as wr
import windrow.torch
from windrow.sequence import pack_rows, pack_tokens, pad_tokens
from windrow.torch import ops

tensors = [torch.ones(3), torch.ones(2)]
arrays = [np.ones(3), np.ones(2)]
lists = [[1, 2], [3]]

# Samples of any library, one array, Python numbers; dtypes and devices of any library.
batch = wr.pad(tensors, side="left", mask="real", mask_dtype="int64", dtype=torch.float16, device=torch.device("cpu"))
assert_type(batch, wr.Batch)
assert_type(batch.torch(), torch.Tensor)
assert_type(batch[0].torch(), torch.Tensor)
assert_type(batch.data, wr.Tensor)
batch.lengths.numpy().sum()
assert_type(batch.shape, Tuple[int, ...])
assert_type([sample.dtype for sample in batch], List[str])
wr.stack(np.ones((2, 3)), dtype=np.float32, out=np.ones((2, 3), np.float32))
wr.stack([b"abc", bytearray(3), memoryview(b"abc")], dtype="float32")
wr.stack((torch.ones(2) for _ in range(2)), stream=7)
wr.stack([1, 2.5, True])
wr.ragged(lists, offsets_dtype="int32")
wr.concat([wr.asarray(arrays[0]), tensors[0], arrays[1]])
wr.pad(lists, size=4, side=["right"])
wr.pad(lists, size=np.int64(4), dims=np.int64(0), value=np.float32(0))
batch[np.int64(0)]
wr.Transform(mean=np.zeros(3), std=np.ones(3), channel_dim=0, permute=np.array([1, 2, 0]))
rows = wr.SampleList(arrays)
assert_type(rows.take(np.array([0])), wr.SampleList)
assert_type(rows.take([0]).stack([0]), wr.Batch)

# Flat dicts of arrays are dicts of batches, unless a spec keeps samples apart; other trees are what the caller says.
trees = [{"x": tensor, "y": tensor} for tensor in tensors]
assert_type(wr.collate(trees), Dict[str, wr.Batch])
assert_type(wr.collate(trees, {"x": wr.Pad(side="left", multiple_of=8), "y": wr.Ragged()}), Dict[str, wr.Batch])
nested: List[Dict[str, Any]] = [{"a": {"b": 1.5}, "name": "x"}]
wr.collate(nested)["a"]["b"]
own: Dict[str, List[wr.Tensor]] = wr.collate(trees, wr.List())
weights = {"w": np.ones(2)}
packed = wr.pack(weights)
wr.unpack(packed.buffer, packed.layout, into=weights)["w"].sum()

# Plans and counters.
assert_type(wr.Pad(multiple_of=8).explain(lists), wr.Explain)
assert_type(wr.explain(lists, "ragged").padding_waste, float)
assert_type(wr.stats().paths, Dict[str, int])
assert_type(wr.stats()["paths"], Dict[str, int])
assert_type(wr.stats()["batches"], int)
assert_type(wr.Engine(threads=2).stats().run_seconds, float)

# torch.
assert_type(ops.pad(tensors, side="center"), Tuple[torch.Tensor, torch.Tensor])
with windrow.torch.install():
    collate: windrow.torch.Collator = windrow.torch.collate_fn({"x": wr.Pad()})

assert_type([sample for sample in wr.SampleList(arrays)], List[Any])

# Sequences, in a list that was imported before too.
pack_rows(lists, [[0, 1]], max_tokens=4)
pack_rows(wr.SampleList.split(arrays[0], [0, 2, 3]), [[0, 1]], max_tokens=4)
for take in (pack_tokens, pad_tokens):
    take(wr.SampleList([{"input_ids": row} for row in lists]))

# Refused.
wr.pad(lists, side="lft")  # type: ignore
wr.pad(lists, mask="reel")  # type: ignore
wr.pad(lists, pad_value=3)  # type: ignore
wr.pad(lists, mask="real", mask_dtype="int23")  # type: ignore
wr.Quantize("int9")  # type: ignore
wr.stack(lists, dtype=dict)  # type: ignore
wr.copy_many(3, 4)  # type: ignore
wr.stats().batchs  # type: ignore
windrow.torch.collate_fn({"x": "pad"})  # type: ignore
windrow.torch.collate_fn(device=3.5)  # type: ignore
wr.stack("abc")  # type: ignore
wr.stack([object()])  # type: ignore
wr.stack(lists, dtype=3)  # type: ignore
wr.stack(lists, stream="main")  # type: ignore
wr.explain(lists, "fold")  # type: ignore
wr.Pad(side="lft")  # type: ignore
wr.Stack(dims=0)  # type: ignore
wr.Quantize("int8", scale="column")  # type: ignore
ops.pad(tensors, side="lft")  # type: ignore
