"""torchdata: batches assembled by windrow, moved ahead of use, taken up where they were left."""

import torch
import torchdata.nodes as nodes
import windrow.torch
from torchdata.stateful_dataloader import StatefulDataLoader

samples = [{"x": torch.full((3,), float(i)), "y": i} for i in range(10)]
device = "cuda" if torch.cuda.is_available() else "cpu"


def pipeline() -> nodes.BaseNode:
    batches = nodes.Batcher(nodes.IterableWrapper(samples), batch_size=2)
    return windrow.torch.ToDevice(nodes.Mapper(batches, windrow.torch.collate_fn()), device)


def loader() -> StatefulDataLoader:
    """Returns a loader with worker processes; the sampler keeps the order of the epoch."""
    sampler = windrow.torch.BatchSampler([[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]], seed=0)
    return StatefulDataLoader(samples, batch_sampler=sampler, num_workers=2, collate_fn=windrow.torch.collate_fn())


if __name__ == "__main__":
    node = pipeline()
    print(next(node)["y"], next(node)["y"])
    state = node.state_dict()
    later = pipeline()
    later.reset(state)
    assert [batch["y"].tolist() for batch in later] == [[4, 5], [6, 7], [8, 9]]

    first = loader()
    batches = iter(first)
    print(next(batches)["y"], next(batches)["y"])
    saved = first.state_dict()
    rest = [batch["y"].tolist() for batch in batches]
    second = loader()
    second.load_state_dict(saved)
    assert [batch["y"].tolist() for batch in second] == rest and len(rest) == 3
