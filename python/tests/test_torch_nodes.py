"""windrow.torch.ToDevice in a torchdata pipeline."""

import pytest

torch = pytest.importorskip("torch")
nodes = pytest.importorskip("torchdata.nodes", reason="SKIP: torchdata is not installed")

import windrow.torch as wt  # noqa: E402
from test_torch_prefetch import Lagging, counting, large, small_tree  # noqa: E402

N = 13


def pipeline(depth=1, ahead=False):
    source = nodes.IterableWrapper([{"x": large(i), "i": i} for i in range(N)])
    batches = nodes.Mapper(nodes.Batcher(source, 2, drop_last=False), wt.collate_fn())
    if ahead:
        batches = nodes.Prefetcher(batches, prefetch_factor=2)
    return wt.ToDevice(batches, "cpu", depth)


@pytest.mark.parametrize("depth", [0, 1, 3, 20])
@pytest.mark.parametrize("ahead", [False, True])
def test_all_batches_each_epoch(depth, ahead):
    loader = nodes.Loader(pipeline(depth, ahead))
    for _ in range(2):
        seen = [batch["i"].tolist() for batch in loader]
        assert seen == [[i, i + 1] for i in range(0, N - 1, 2)] + [[N - 1]]


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("taken", [0, 1, 4, 7])
def test_a_run_is_taken_up_where_it_was_left(depth, taken):
    node = pipeline(depth)
    before = [next(node)["i"].tolist() for _ in range(taken)]
    state = node.state_dict()
    again = pipeline(depth)
    again.reset(state)
    after = [batch["i"].tolist() for batch in again]
    assert sum(before + after, []) == list(range(N))


def test_errors_come_in_their_place():
    def fail(i):
        if i == 3:
            raise KeyError("three")
        return torch.full((2,), i)

    node = wt.ToDevice(nodes.Mapper(nodes.IterableWrapper(range(6)), fail), depth=2)
    assert [next(node)[0].item() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="three"):
        next(node)


def test_copies_are_under_way_before_they_are_asked_for():
    node = pipeline(depth=2)
    node._transfer = Lagging(3)
    for i, batch in enumerate(node):
        assert torch.equal(batch["x"][0], large(2 * i))
        assert len(node._line) == min(2, (N + 1) // 2 - 1 - i)


def test_a_tree_of_small_tensors_is_one_copy():
    node = wt.ToDevice(nodes.IterableWrapper([small_tree(seed) for seed in range(4)]), "cpu", depth=1)
    node._transfer = Lagging(2)
    copies = counting(node._transfer)
    for seed, batch in enumerate(node):
        assert all(torch.equal(batch[name][0], leaf[0]) for name, leaf in small_tree(seed).items())
    assert copies == 4 * [40 * 256]


def test_arguments():
    with pytest.raises(ValueError, match="depth must be at least 0, got -1"):
        wt.ToDevice(nodes.IterableWrapper([]), depth=-1)
    assert "ToDevice" in wt.__all__
    with pytest.raises(AttributeError, match="ToDevicf"):
        wt.ToDevicf
