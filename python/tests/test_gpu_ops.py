"""windrow.torch.ops where tensors are on a GPU: values and gradients beside those of the host, late inputs, captures, compiled graphs."""

import pytest

from gpu_harness import HERE, assert_bits, assert_late, gpu, late, on_device, own_process, settled, torch, warm  # noqa: F401

if not hasattr(torch.library, "custom_op"):
    pytest.skip("SKIP: operators need PyTorch 2.4", allow_module_level=True)
import windrow.torch.ops as ops  # noqa: E402

LENGTHS = (3, 0, 7, 1)


def rows(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 5, generator=generator).to(dtype) for n in LENGTHS]


def everything(tensors, width=8):
    """All operators, without a wait: every size is said."""
    total, num = sum(LENGTHS), len(LENGTHS)
    data, lengths = ops.pad(tensors, 0.5, "left", width)
    values, offsets = ops.unpad(data, lengths, size=total)
    again, _ = ops.repad(values, offsets, 0.25, width)
    joined, _ = ops.concat(tensors)
    ragged, _ = ops.ragged(tensors)
    ids = torch.arange(num, device=data.device).flip(0)
    stacked = ops.stack([row.sum(0) for row in tensors])
    return data, values, again, joined * ragged, ops.take(again, ids), stacked, lengths, offsets


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_values_and_gradients_are_those_of_the_everything(dtype):
    ours, theirs = ([row.requires_grad_() for row in made] for made in (on_device(rows(dtype)), rows(dtype)))
    got, want = everything(ours), everything(theirs)
    # Sums over rows are torch's own, and have other bits on a device.
    for index, (a, b) in enumerate(zip(got, want)):
        torch.testing.assert_close(a.cpu(), b) if index == 5 else assert_bits(a, b)
    for a, b in zip(*(torch.autograd.grad(sum(out.sum() for out in outs[:6]), tensors) for outs, tensors in ((got, ours), (want, theirs)))):
        torch.testing.assert_close(a.cpu(), b)


def test_sums_of_take_have_the_same_bits_each_time():
    table, ids = torch.randn(50, 8, device=HERE, requires_grad=True), torch.randint(0, 50, (20_000,), device=HERE)
    weight = torch.randn(20_000, 8, device=HERE)
    grads = [torch.autograd.grad(ops.take(table, ids), table, weight)[0] for _ in range(5)]
    assert all(torch.equal(grad, grads[0]) for grad in grads)


def test_sizes_in_the_data_are_waited_for():
    data, lengths = ops.pad(on_device(rows()))
    values, offsets = ops.unpad(data, lengths)
    assert_bits(values, torch.cat(rows()))
    assert_bits(ops.repad(values, offsets)[0], ops.pad(rows())[0])


@pytest.mark.usefixtures("gpu")
def test_nothing_waits_for_late_tensors():
    everything(on_device(rows()))
    made = late(rows())
    got = everything(made)
    assert_late()
    for a, b in zip(got, everything(rows())):
        torch.testing.assert_close(a.cpu(), b)


@pytest.mark.usefixtures("gpu")
def test_positions_out_of_range_are_rows_of_zeros():
    """The context goes on: nothing is read outside of the table."""
    table = torch.randn(4, 3, device=HERE, requires_grad=True)
    ids = torch.tensor([0, 4, -4, -5, 1 << 40], device=HERE)
    for out in (ops.take(table, ids), ops.take(list(table), ids)):
        assert_bits(out, torch.stack([table[0], table[0] * 0, table[0], table[0] * 0, table[0] * 0]).detach().cpu())
        assert torch.autograd.grad(out.sum(), table)[0][:, 0].tolist() == [2, 0, 0, 0]


@own_process
def test_operators_in_a_graph():
    tensors = [row.cuda().requires_grad_() for row in rows()]

    def step():
        out = everything(tensors)
        return out[:3], torch.autograd.grad(sum(o.sum() for o in out[:3]), tensors)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs, grads = step()
    for turn in range(3):
        with torch.no_grad():
            for n, tensor in enumerate(tensors):
                tensor.fill_(n + turn)
        graph.replay()
        want = everything([torch.full((n, 5), float(i + turn)) for i, n in enumerate(LENGTHS)])
        for a, b in zip(outs, want):
            assert_bits(a, b)
        for grad in grads:
            assert_bits(grad, torch.full(grad.shape, 3.0))


@pytest.mark.slow
@own_process
def test_operators_in_graphs_of_inductor():
    values, offsets = torch.randn(11, 5, device="cuda", requires_grad=True), torch.tensor([0, 3, 3, 10, 11], device="cuda")

    def step(values, offsets):
        padded, lengths = ops.repad(values.sin(), offsets, size=8)
        return ops.unpad(padded * 2, lengths, size=values.shape[0])[0].sum(1)

    compiled = torch.compile(step, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        got = compiled(values, offsets)
        torch.testing.assert_close(got, step(values, offsets))
        torch.testing.assert_close(*(torch.autograd.grad(out.sum(), values)[0] for out in (got, step(values, offsets))))
