"""Many small graphs as one graph of disconnected parts."""

import torch
from windrow.structure import concat_graphs


def ring(n: int) -> dict[str, object]:
    nodes = torch.arange(n)
    return {"x": torch.rand(n, 4), "edge_index": torch.stack([nodes, nodes.roll(-1)]), "y": n}


if __name__ == "__main__":
    batch = concat_graphs([ring(3), ring(5), ring(4)])
    assert batch["edge_index"].max() == 11
    means = torch.zeros(3, 4).index_reduce(0, batch["batch"], batch["x"], "mean", include_self=False)
    print(means.shape, batch["ptr"], batch["y"])
