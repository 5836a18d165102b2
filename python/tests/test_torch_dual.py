"""Forward-mode AD: no tangent is lost silently."""

import contextlib
import threading

import numpy as np
import pytest

import windrow as wr
from helpers import assert_tensor, refusal

torch = pytest.importorskip("torch")
from torch.autograd import forward_ad  # noqa: E402
from torch.utils.data import default_collate  # noqa: E402

import windrow.torch as wt  # noqa: E402
from test_torch_grad import CALLS, Asking, Mine, WithoutApi  # noqa: E402


@pytest.fixture(autouse=True)
def level():
    with forward_ad.dual_level():
        yield


@contextlib.contextmanager
def outside():
    forward_ad.exit_dual_level()
    try:
        yield
    finally:
        forward_ad.enter_dual_level()


def dual(*shape):
    return forward_ad.make_dual(torch.arange(float(np.prod(shape))).view(shape), torch.ones(shape))


def tangent(tensor):
    return forward_ad.unpack_dual(tensor).tangent


def late():
    """A view whose base has come to have a tangent."""
    base = torch.zeros(4)
    view = base[1:]
    base.copy_(dual(4))
    return view


KINDS = {
    "dual": lambda: dual(3),
    "result": lambda: dual(3) * 2,
    "view": lambda: dual(2, 3)[1],
    "view whose base has come to": late,
    "of six dims": lambda: dual(1, 1, 1, 1, 1, 3),
    "leaf": lambda: forward_ad.make_dual(torch.ones(3, requires_grad=True), torch.ones(3)),
    "float64": lambda: forward_ad.make_dual(torch.ones(3).double(), torch.ones(3).double()),
    "subclass": lambda: dual(3).as_subclass(Mine),
    "subclass with a function": lambda: dual(3).as_subclass(Asking),
    "of a class without the exchange API": lambda: dual(3).as_subclass(WithoutApi),
}
MODES = {"no_grad": torch.no_grad, "inference mode": torch.inference_mode}
CURE = r"expected a tensor without a tangent, got a dual tensor; unpack_dual\(tensor\)\.primal"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_tangent_is_refused_in_every_mode(kind, mode):
    sample = KINDS[kind]()
    primal = forward_ad.unpack_dual(sample).primal.detach()
    with MODES[mode]():
        for call in CALLS.values():
            refusal(lambda: call([primal, sample]), wr.LayoutError, CURE, index=1)
        refusal(lambda: wr.asarray(sample), wr.LayoutError, CURE)
    if not sample.requires_grad:
        for call in CALLS.values():
            refusal(lambda: call([sample, primal]), wr.LayoutError, CURE, index=0)
    for call in CALLS.values():
        call([primal, primal])


@pytest.mark.parametrize("mode", [torch.enable_grad, *MODES.values()])
def test_tables_outputs_and_specs(mode):
    table, plain, row = dual(2, 3), [torch.ones(3)] * 2, dual(6)
    with mode():
        refusal(lambda: wr.stack(table), wr.LayoutError, CURE)
        refusal(lambda: wr.SampleList(table), wr.LayoutError, CURE)
        for form, out in ((wr.stack, table), (wr.pad, table), (wr.concat, row), (wr.ragged, row)):
            refusal(lambda: form(plain, out=out), wr.LayoutError, "out: " + CURE)
        refusal(lambda: wr.collate([{"x": plain[0]}] * 2, out={"x": table}), wr.LayoutError, CURE)
        for spec in (wr.Pad(), wr.Ragged(), wr.Concat(), wr.Stack()):
            refusal(lambda: wt.collate_fn({"x": spec})([{"x": torch.zeros(6)}, {"x": row}]), wr.LayoutError, CURE, path="x", index=1)
    assert torch.equal(forward_ad.unpack_dual(table).primal, torch.arange(6.0).view(2, 3))


TREES = {
    "tensor": lambda x: x,
    "dict": lambda x: {"x": x, "y": 1},
    "tuple": lambda x: (x, torch.zeros(2)),
    "nested": lambda x: {"a": [{"x": x}]},
}


def leaf_of(batch):
    while not isinstance(batch, torch.Tensor):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return batch


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("mode", [torch.enable_grad, *MODES.values()])
def test_collate_fn_does_as_default_collate(tree, mode):
    for samples in ([dual(3), dual(3)], [torch.zeros(3), dual(3)], [dual(3), torch.zeros(3)], [late(), late()]):
        samples = [TREES[tree](sample) for sample in samples]
        with mode():
            got, want = leaf_of(wt.collate_fn()(samples)), leaf_of(default_collate(samples))
        assert torch.equal(forward_ad.unpack_dual(got).primal, forward_ad.unpack_dual(want).primal)
        assert (tangent(got) is None) == (tangent(want) is None)
        assert tangent(got) is None or torch.equal(tangent(got), tangent(want))


def test_an_installed_collate_fn():
    wt.install()
    try:
        loader = torch.utils.data.DataLoader([{"x": dual(3)}] * 2, batch_size=2)
        assert tangent(next(iter(loader))["x"]) is not None
    finally:
        wt.uninstall()


def test_graphs_keep_tangents():
    data = pytest.importorskip("torch_geometric.data")
    graphs = [data.Data(x=dual(2, 3), edge_index=torch.tensor([[0], [1]])) for _ in range(2)]
    assert tangent(wt.collate_fn()(graphs).x).shape == (4, 3)
    refusal(lambda: wr.collate(graphs), wr.LayoutError, 'sample 0 at "x"', CURE)


def test_what_has_no_tangent_is_taken():
    made = dual(2, 3)
    unpacked, kept = forward_ad.unpack_dual(made).primal, tangent(made)
    for sample in (torch.ones(3), torch.ones(2, 3)[1], torch.arange(3), unpacked[0], kept[0], made.detach()[1]):
        assert_tensor(wr.stack([sample] * 2), np.stack([sample.tolist()] * 2).astype(str(sample.dtype).partition(".")[2]))
    nested = torch.nested.nested_tensor([torch.ones(2)])
    refusal(lambda: wr.stack([torch.ones(2), nested]), wr.LayoutError, "nested tensor")
    refusal(lambda: wr.stack([torch.eye(2), torch.eye(2).to_sparse()]), wr.LayoutError, "to_dense")


def test_a_jvp():
    values, call = torch.arange(3.0), wt.collate_fn()
    with outside():
        _, got = torch.func.jvp(lambda x: call([x, x]), (values,), (torch.ones(3),))
        assert got.tolist() == [[1, 1, 1], [1, 1, 1]]
        with pytest.raises(wr.LayoutError, match="dual tensor"):
            torch.func.jvp(lambda x: wr.stack([x, x]).torch(), (values,), (torch.ones(3),))


def test_a_level_is_that_of_all_threads():
    sample, seen = dual(3), []
    thread = threading.Thread(target=lambda: seen.append(refusal(lambda: wr.stack([sample]), wr.LayoutError, CURE)))
    thread.start()
    thread.join()
    assert len(seen) == 1


def test_after_the_level():
    """A tensor that had a tangent has none."""
    samples = [dual(3), late()]
    with outside():
        assert_tensor(wr.stack(samples), np.stack([sample.numpy() for sample in samples]))
        assert wt.collate_fn()(samples).shape == (2, 3)
