"""Graphs of PyTorch Geometric to its own `Batch`: joined and raised by their `__cat_dim__` and `__inc__`."""

import torch
from torch.utils.data import DataLoader
from torch_geometric.data import Batch, Data, HeteroData

import windrow as wr
import windrow.torch


def ring(n: int) -> Data:
    nodes = torch.arange(n)
    return Data(x=torch.rand(n, 4), edge_index=torch.stack([nodes, nodes.roll(-1)]), y=torch.tensor([n]))


class Pair(Data):
    """Two graphs in one; the edges of each are raised by its own number of nodes."""

    def __inc__(self, key: str, value: object, *args: object, **kwargs: object) -> int:
        return {"edges_a": len(self.x_a), "edges_b": len(self.x_b)}.get(key, 0)

    def __cat_dim__(self, key: str, value: object, *args: object, **kwargs: object) -> int:
        return 1 if key.startswith("edges") else 0


def pair(n: int, m: int) -> Pair:
    return Pair(x_a=torch.rand(n, 2), edges_a=ring(n).edge_index, x_b=torch.rand(m, 2), edges_b=ring(m).edge_index, num_nodes=n + m)


def ratings(users: int, items: int) -> HeteroData:
    graph = HeteroData()
    graph["user"].x, graph["item"].x = torch.rand(users, 3), torch.rand(items, 5)
    graph["user", "rates", "item"].edge_index = torch.stack([torch.arange(users), torch.arange(users) % items])
    return graph


if __name__ == "__main__":
    for graphs in ([ring(3), ring(5), ring(4)], [pair(3, 2), pair(2, 4)], [ratings(3, 2), ratings(4, 3)]):
        batch, own = wr.collate(graphs), Batch.from_data_list(graphs)
        assert type(batch) is type(own)
        for store, own_store in zip(batch.stores, own.stores):
            assert all(torch.equal(torch.as_tensor(store[key]), torch.as_tensor(value)) for key, value in own_store.items())
        print(batch)

    rings = [ring(3 + i % 5) for i in range(64)]
    for batch in DataLoader(rings, batch_size=32, collate_fn=windrow.torch.collate_fn()):
        means = torch.zeros(batch.num_graphs, 4).index_reduce(0, batch.batch, batch.x, "mean", include_self=False)
        print(batch.num_graphs, batch.num_nodes, means.shape)
