"""A torchdata pipeline: batches assembled by windrow, moved ahead of use, taken up where it was left."""

import torch
import torchdata.nodes as nodes
import windrow.torch

samples = [{"x": torch.full((3,), float(i)), "y": i} for i in range(10)]
device = "cuda" if torch.cuda.is_available() else "cpu"


def pipeline() -> nodes.BaseNode:
    batches = nodes.Batcher(nodes.IterableWrapper(samples), batch_size=2)
    return windrow.torch.ToDevice(nodes.Mapper(batches, windrow.torch.collate_fn()), device)


if __name__ == "__main__":
    node = pipeline()
    print(next(node)["y"], next(node)["y"])
    state = node.state_dict()
    later = pipeline()
    later.reset(state)
    assert [batch["y"].tolist() for batch in later] == [[4, 5], [6, 7], [8, 9]]
