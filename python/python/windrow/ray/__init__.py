"""windrow for Ray Data: batches from Arrow's own memory, padded or packed in one pass.

    for batch in dataset.iter_torch_batches(
        batch_size=256,
        collate_fn=windrow.ray.GatherCollate({"ids": wr.Pad(value=0, mask="real")}),
    ):
        model(batch["ids"], batch["ids_mask"])

Blocks of the object store are read where they are: fixed-size lists, Ray's tensor columns, lists and
tensors of varying shape go to the engine by their buffers, with no Python object for a row.
"""

from windrow.ray._collate import GatherCollate, NumpyGatherCollate
from windrow.ray._pack import UnpackCollate, pack, unpack

__all__ = ["GatherCollate", "NumpyGatherCollate", "UnpackCollate", "pack", "unpack"]
