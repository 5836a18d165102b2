"""windrow.torch.ops: values, gradients and refusals beside torch's own functions."""

import importlib
import sys

import numpy as np
import pytest

import windrow as wr
from helpers import refusal, release

torch = pytest.importorskip("torch")
import windrow.torch  # noqa: E402

if not hasattr(torch.library, "custom_op"):
    pytest.skip("SKIP: operators need PyTorch 2.4", allow_module_level=True)
import windrow.torch.ops as ops  # noqa: E402

OPS = torch.ops.windrow
SIDES = ("right", "left", "center")


def leaf(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(0, 2 if dtype == torch.bool else 9, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()


def start(side, width, length):
    return {"right": 0, "left": width - length, "center": (width - length) // 2}[side]


def padded(tensors, value=0.0, side="right", size=None):
    """The result of `pad`, made by assignments that keep gradients."""
    width = max(map(len, tensors)) if size is None else size
    data = tensors[0].new_full((len(tensors), width, *tensors[0].shape[1:]), value)
    for i, tensor in enumerate(tensors):
        begin = start(side, width, len(tensor))
        data[i, begin : begin + len(tensor)] = tensor
    return data


def kinds():
    """Lists of tensors that differ in dim 0, of every layout."""
    rows = lambda dtype, lengths=(2, 0, 3), *rest: [leaf(n, *rest, dtype=dtype, seed=n) for n in lengths]  # noqa: E731
    wide = leaf(4, 6)
    return {
        "numbers": rows(torch.float64),
        "rows": rows(torch.float64, (2, 3, 1), 4),
        "strided": [wide[:2, ::2], wide.t()[1:4, 1:], wide[1:, 3:]],
        "expanded": [leaf(1, 3).expand(2, 3), leaf(3, 3)],
        "no rows": rows(torch.float64, (0, 0), 2),
        "no columns": rows(torch.float64, (2, 1), 0),
        "one": rows(torch.float64, (3,), 2),
        "bfloat16": rows(torch.bfloat16, (2, 3), 2),
        "float16": rows(torch.float16, (2, 3)),
        "complex": rows(torch.complex128, (2, 3)),
        "int64": rows(torch.int64, (2, 3), 2),
        "uint8": rows(torch.uint8, (1, 3)),
        "bool": rows(torch.bool, (1, 3)),
    }


KINDS = kinds()
NUMBERS = [name for name, tensors in KINDS.items() if tensors[0].requires_grad]
DOUBLES = [name for name in NUMBERS if KINDS[name][0].dtype == torch.float64]


def offsets_of(tensors):
    return torch.tensor([0, *map(len, tensors)]).cumsum(0)


def equal_shapes(tensors):
    least = min(map(len, tensors))
    return [tensor[:least] for tensor in tensors]


def same_gradients(ours, theirs, inputs):
    """The gradients of both for one random gradient of the result."""
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(ours.dtype)
    got, want = (torch.autograd.grad(out, inputs, weight, retain_graph=True, allow_unused=True) for out in (ours, theirs))
    for a, b in zip(got, want):
        assert (a is None) == (b is None)
        assert a is None or torch.equal(a, b)


# values and gradients


@pytest.mark.parametrize("kind", KINDS)
def test_each_op_is_as_torch(kind):
    tensors = KINDS[kind]
    lengths, offsets = torch.tensor([len(t) for t in tensors]), offsets_of(tensors)
    pairs = [(ops.stack(equal_shapes(tensors)), torch.stack(equal_shapes(tensors)))]
    data, found = ops.concat(tensors)
    assert torch.equal(found, lengths) and not found.requires_grad
    pairs.append((data, torch.cat(tensors)))
    values, found = ops.ragged(tensors)
    assert torch.equal(found, offsets) and not found.requires_grad
    pairs.append((values, torch.cat(tensors)))
    for side, one in zip(SIDES, (1, np.int64(1), torch.tensor(1.0))):
        for size in (None, 5):
            data, found = ops.pad(tensors, one, side, size)
            want = padded(tensors, 1, side, size)
            assert torch.equal(found, lengths) and not found.requires_grad
            pairs.append((data, want))
            joined, again = ops.unpad(data, found, side=side)
            assert torch.equal(joined, values) and torch.equal(again, offsets)
            assert torch.equal(ops.unpad(data, found, side=side, size=len(values))[0], values)
            data, found = ops.repad(values, offsets.int(), one, size, side=side)
            assert torch.equal(found, lengths)
            pairs.append((data, want))
    for ours, theirs in pairs:
        assert ours.dtype == theirs.dtype and ours.stride() == theirs.contiguous().stride()
        assert torch.equal(ours, theirs)
        assert ours.requires_grad == theirs.requires_grad
        if ours.requires_grad:
            same_gradients(ours, theirs, tensors)


@pytest.mark.parametrize("dim", [1, -1, 2])
def test_concat_along_other_dims(dim):
    tensors = [leaf(2, 3, 4), leaf(2, 3, 4, seed=1)]
    data, lengths = ops.concat(tensors, dim)
    assert torch.equal(data, torch.cat(tensors, dim)) and lengths.tolist() == [tensors[0].shape[dim]] * 2
    same_gradients(data, torch.cat(tensors, dim), tensors)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex128, torch.int64])
@pytest.mark.parametrize("rest", [(), (3,), (2, 2), (0,)])
def test_take_is_as_indexing(rest, dtype):
    table, tensors = leaf(4, *rest, dtype=dtype), [leaf(*rest, dtype=dtype, seed=i) for i in range(4)]
    for ids in (torch.tensor([3, 0, 0, -1, 3]), torch.tensor([[1, 1], [-4, 2]], dtype=torch.int32), torch.zeros(0, 2, dtype=torch.int64), torch.tensor(2)):
        ours, theirs = ops.take(table, ids), table[ids.long()]
        assert ours.shape == theirs.shape and torch.equal(ours, theirs)
        listed = ops.take(tensors, ids)
        assert torch.equal(listed, torch.stack(tensors)[ids.long()])
        if table.requires_grad:
            weight = torch.ones_like(theirs)
            assert torch.equal(*(torch.autograd.grad(out, table, weight)[0] for out in (ours, theirs)))
            for got, want in zip(*(torch.autograd.grad(out, tensors, weight) for out in (listed, torch.stack(tensors)[ids.long()]))):
                assert torch.equal(got, want)


def test_sums_of_take_have_the_same_bits_each_time():
    table, ids = leaf(50, 8, dtype=torch.float32), torch.randint(0, 50, (20_000,), generator=torch.Generator().manual_seed(1))
    weight = torch.randn(20_000, 8, generator=torch.Generator().manual_seed(2))
    grads = [torch.autograd.grad(ops.take(table, ids), table, weight)[0] for _ in range(3)]
    assert all(torch.equal(grad, grads[0]) for grad in grads)
    exact = torch.zeros(50, 8, dtype=torch.float64).index_add_(0, ids, weight.double())
    torch.testing.assert_close(grads[0].double(), exact, rtol=1e-4, atol=1e-4)


LAYOUTS = {
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "every other column": lambda t: torch.stack((t, t + 1), -1).flatten(-2)[..., ::2],
    "backwards and forwards": lambda t: t.flip(0).flip(0)[..., :],
    "expanded": lambda t: t[:1].expand_as(t),
    "no columns": lambda t: t[..., :0],
    "conjugated": lambda t: torch.complex(t, t + 1).conj(),
    "negated": lambda t: torch._neg_view(t),
}
OF_ONE = {
    "take": lambda t: ops.take(t, torch.tensor([[2, 0], [0, -1]])),
    "unpad": lambda t: ops.unpad(t, torch.tensor([2, 0, 3, 1]), side="left")[0],
    "unpad_list": lambda t: OPS.unpad_list(t, [2, 0, 3, 1], "center"),
    "repad": lambda t: ops.repad(t, torch.tensor([0, 1, 1, 4]), 2.0)[0],
    "stack": lambda t: ops.stack(list(t)),
    "ragged": lambda t: ops.ragged([t[0], t[1], t[3][:2]])[0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OF_ONE)
def test_every_layout(name, layout):
    call, base = OF_ONE[name], leaf(4, 3, 2).detach()
    given = LAYOUTS[layout](base)
    want = call(given.resolve_conj().resolve_neg().contiguous())
    assert torch.equal(call(given), want)
    inputs = [base.clone().requires_grad_()]
    if want.numel():
        assert torch.autograd.gradcheck(lambda t: call(LAYOUTS[layout](t)), inputs)
        assert torch.autograd.gradgradcheck(lambda t: call(LAYOUTS[layout](t)), inputs)


def test_a_default_device_is_that_of_no_lengths():
    """`torch.device(...)` as a mode says where new tensors of the caller are, not those that an operator needs on the way."""
    data, lengths = ops.pad([leaf(n, 2) for n in (2, 0, 3)])
    values, offsets = ops.unpad(data, lengths)
    table = leaf(3, 2)
    with torch.device("meta"):
        out = [*ops.unpad(data, lengths), *ops.repad(values, offsets), ops.take(table, lengths - 3), *ops.pad(table, size=4), *ops.ragged(table)]
        grad = torch.autograd.grad(ops.pad([table])[0].sum(), table)[0]
    assert {t.device.type for t in (*out, grad)} == {"cpu"} and torch.equal(out[0], values) and torch.equal(out[2], data)


def test_no_samples_are_batches_without_rows():
    values, offsets = ops.unpad(torch.zeros(0, 4, 2), torch.zeros(0, dtype=torch.int64))
    assert values.shape == (0, 2) and offsets.tolist() == [0]
    data, lengths = ops.repad(values, offsets, size=3)
    assert data.shape == (0, 3, 2) and lengths.shape == (0,)
    assert ops.unpad(torch.zeros(2, 0, 3), torch.zeros(2, dtype=torch.int64))[0].shape == (0, 3)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("width", [3, 5])
def test_the_formulas_of_devices_are_those_of_the_host(side, width):
    # The formulas that run where offsets are in the memory of a GPU run here on tensors of the host.
    from windrow.torch import _op_kernels as kernels

    tensors = [leaf(n, 2).detach() for n in (2, 0, 3)]
    data, lengths = ops.pad(tensors, 1, side, width)
    values, offsets = ops.ragged(tensors)
    for rest in ((), (0,), (2, 2)):
        table, ids = torch.randn(3, *rest), torch.tensor([[2, 0, -3], [3, -4, 1]], dtype=torch.int32)
        want = table[torch.tensor([[2, 0, 0], [0, 0, 1]])]
        want[1, :2] = 0
        assert torch.equal(kernels.take_unseen(table, ids), want)
        assert torch.equal(kernels.take_unseen(table[:0], ids), torch.zeros_like(want))
    for dtype in (torch.float32, torch.complex64):
        table, ids = torch.randn(5, 2, dtype=dtype), torch.tensor([3, 0, 3, -1, 7])
        got = kernels.sorted_sums(table, ids, 4)
        assert torch.equal(got, kernels.take_sums(table[:3], ids[:3], 4))
    for rest in ((), (0,), (2, 2)):
        table, ids = torch.randn(5, *rest), torch.tensor([2, 0, 2])
        got = kernels.sorted_sums(table[:3], ids, 4)
        assert torch.equal(got, kernels.take_sums(table[:3], ids, 4))
    got = kernels.unpad_unseen(data.flatten(0, 1), lengths, width, len(values), side)
    assert all(map(torch.equal, got, (values, offsets)))
    got = kernels.repad_unseen(values, offsets, 1, width, side)
    assert all(map(torch.equal, got, (data, lengths)))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint64, torch.bool])
def test_the_formulas_of_devices_move_every_dtype(dtype):
    from windrow.torch import _op_kernels as kernels

    bits = lambda tensor: tensor.contiguous().view(torch.uint8)  # noqa: E731
    rows = torch.arange(10).reshape(5, 2).remainder(2).to(dtype)
    values, offsets = rows, torch.tensor([0, 2, 2, 5])
    padded, lengths = ops.repad(values, offsets, 1, 4)
    got = kernels.repad_unseen(values, offsets, 1, 4, "right")
    assert got[0].dtype == dtype and torch.equal(bits(got[0]), bits(padded)) and torch.equal(got[1], lengths)
    got = kernels.unpad_unseen(padded.flatten(0, 1), lengths, 4, 5, "right")
    assert got[0].dtype == dtype and torch.equal(bits(got[0]), bits(values)) and torch.equal(got[1], offsets)
    taken = kernels.take_unseen(values, torch.tensor([[4, -5], [7, 1]]))
    assert taken.dtype == dtype and not bits(taken[1, 0]).any() and torch.equal(bits(taken[0, 0]), bits(values[4]))


def test_sizes_that_a_device_has_not_looked_at():
    from windrow.torch import _op_kernels as kernels

    for side in SIDES:
        for lengths in ([2, 0, 3], [9, 1, 1], [-4, 5, 2], [0, 0, 0]):
            for total in (0, 4, 20):
                places, _ = kernels._places(torch.tensor(lengths), 3, side, total)
                starts = kernels._starts(torch.tensor(lengths), 3, side).tolist()
                ends = torch.tensor(lengths).cumsum(0).tolist()
                for number, place in enumerate(places.tolist()):
                    assert 0 <= place <= 9
                    if min(lengths) >= 0 and place < 9:
                        sample = place // 3
                        assert place - starts[sample] == number - (ends[sample] - lengths[sample])
    got = kernels.repad_unseen(torch.tensor([1, 2, 3]), torch.tensor([0, 2, 3]), 0, 1, "right")[0]
    assert got.tolist() == [[1], [3]]
    for values in (torch.tensor([1, 2]), torch.empty(0, dtype=torch.int64)):
        offsets = torch.tensor([0, len(values)])
        for repad in (ops.repad, lambda *given: kernels.repad_unseen(*given, 2, "right")):
            with pytest.raises(ValueError, match="0.5"):
                repad(values, offsets, 0.5)
    with pytest.raises(ValueError, match="0.5"):
        ops.repad(torch.empty(0, dtype=torch.int64), torch.tensor([0]), 0.5)


# gradients of gradients


def calls(tensors):
    """Each op as a function of tensors that have gradients."""
    lengths, offsets = torch.tensor([len(t) for t in tensors]), offsets_of(tensors)
    ids, width = torch.tensor([[0, -1], [0, 0]]), max(map(len, tensors)) + 1
    given = {
        "stack": (lambda *t: ops.stack(t), equal_shapes(tensors)),
        "concat": (lambda *t: ops.concat(t)[0], tensors),
        "ragged": (lambda *t: ops.ragged(t)[0], tensors),
        "take list": (lambda *t: ops.take(list(t), ids), equal_shapes(tensors)),
        "take": (lambda t: ops.take(t, ids), [padded(tensors)]),
    }
    for side in SIDES:
        given[f"pad {side}"] = (lambda *t, side=side: ops.pad(t, 2.0, side, width)[0], tensors)
        given[f"unpad {side}"] = (lambda t, side=side: ops.unpad(t, lengths, side=side)[0], [padded(tensors, side=side, size=width)])
        given[f"repad {side}"] = (lambda t, side=side: ops.repad(t, offsets, 2.0, side=side)[0], [torch.cat(tensors)])
    return {name: (call, [t.detach().clone().requires_grad_() for t in inputs]) for name, (call, inputs) in given.items()}


@pytest.mark.parametrize("kind", [name for name in DOUBLES if name != "no columns"])
def test_gradcheck(kind):
    for name, (call, inputs) in calls(KINDS[kind]).items():
        if sum(t.numel() for t in inputs):
            assert torch.autograd.gradcheck(call, inputs), name
            assert torch.autograd.gradgradcheck(call, inputs), name


def test_only_some_tensors_require_grad():
    first, second = leaf(2, 3), leaf(1, 3).detach()
    for out in (ops.pad([first, second])[0], ops.ragged([second, first])[0], ops.stack([second[0], first[0]])):
        out.sum().backward()
        assert second.grad is None
    assert first.grad.tolist() == [[3.0] * 3, [2.0] * 3]
    with torch.no_grad():
        assert not ops.pad([first, second])[0].requires_grad
    with torch.inference_mode():
        assert ops.ragged([first, second])[0].is_inference()


def test_gradients_that_are_undefined():
    tensors = [leaf(2), leaf(3)]
    data, _ = ops.pad(tensors)

    class Drop(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return None

    (Drop.apply(data).sum() + tensors[0].sum()).backward()
    assert tensors[1].grad is None and tensors[0].grad.tolist() == [1, 1]


# functional transforms and autocast


def test_grad_of_torch_func():
    x = torch.arange(1.0, 4.0)
    cube = lambda x: ops.pad([x, x * 2])[0].pow(3).sum()  # noqa: E731
    assert torch.equal(torch.func.grad(cube)(x), 27 * x**2)
    assert torch.equal(torch.func.grad(lambda y: torch.func.grad(cube)(y).sum())(x), 54 * x)
    taken = lambda x: ops.take(x, torch.tensor([0, 0, 2])).pow(2).sum()  # noqa: E731
    assert torch.func.grad(lambda y: torch.func.grad(taken)(y).sum())(x).tolist() == [4, 0, 2]
    assert torch.equal(torch.func.functionalize(torch.func.grad(cube))(x), 27 * x**2)
    assert torch.equal(torch.func.jacrev(lambda x: ops.stack([x, x]))(x), torch.stack([torch.eye(3)] * 2))
    outer = leaf(3, dtype=torch.float32)
    inner = torch.func.grad(lambda x: ops.ragged([x * x, outer * x])[0].pow(2).sum())(x)
    assert torch.equal(inner, 4 * x**3 + 2 * outer**2 * x)
    assert torch.equal(torch.autograd.grad(inner.sum(), outer)[0], 4 * outer * x)


EACH = {
    "stack": lambda x: ops.stack([x, x]),
    "concat": lambda x: ops.concat([x, x]),
    "pad": lambda x: ops.pad([x, x]),
    "ragged": lambda x: ops.ragged([x, x]),
    "take": lambda x: ops.take(x, torch.tensor([0])),
    "take_list": lambda x: ops.take([x, x], torch.tensor([0])),
    "unpad": lambda x: ops.unpad(x[None], torch.tensor([1])),
    "repad": lambda x: ops.repad(x, torch.tensor([0, 2])),
}


@pytest.mark.parametrize("name", EACH)
def test_vmap_and_forward_mode_are_refused(name):
    error = refusal(lambda: torch.func.vmap(EACH[name])(torch.ones(3, 2)), RuntimeError, f"windrow::{name} ", "outside of vmap")
    assert not isinstance(error, NotImplementedError)
    refusal(lambda: torch.func.jvp(EACH[name], (torch.ones(2),), (torch.ones(2),)), RuntimeError, "forward-mode|tangent")
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(torch.ones(2), torch.ones(2))
        for x in (dual, dual.detach().requires_grad_(), torch.autograd.forward_ad.make_dual(torch.ones(2).requires_grad_(), torch.ones(2))):
            if torch.autograd.forward_ad.unpack_dual(x).tangent is not None:
                refusal(lambda: EACH[name](x), (RuntimeError, BufferError), "forward-mode|tangent")
    # A hessian is vmap of jvp of vjp.
    refusal(lambda: torch.func.hessian(lambda x: EACH["stack"](x).pow(2).sum())(torch.ones(2)), RuntimeError, "windrow::stack")


def test_autocast_takes_the_widest_as_torch_stack_does():
    single, half = leaf(2, dtype=torch.float32), leaf(2, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for name in ("stack", "concat", "pad", "ragged"):
            out = getattr(ops, name)([half, single])
            data = out if name == "stack" else out[0]
            assert data.dtype == torch.stack([half, single]).dtype == torch.float32
            assert getattr(ops, name)([half, half])[0].dtype == torch.bfloat16
        data.sum().backward()
        assert half.grad.dtype == torch.bfloat16 and ops.take([half, single], torch.tensor([0])).dtype == torch.float32
        refusal(lambda: ops.stack([single, single.double()]), RuntimeError, "float64")
    refusal(lambda: ops.stack([half, single]), RuntimeError, "tensor 1: expected torch.bfloat16", index=1)


# nested tensors


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_in_and_out(layout):
    tensors = [leaf(2, 3), leaf(4, 3)]
    nested = torch.nested.as_nested_tensor(tensors, layout=layout)
    data, lengths = ops.pad(nested, 0.5)
    # 2.5 has none of the jagged layout.
    has_own = layout == torch.strided or release(torch) >= (2, 6)
    want = nested.to_padded_tensor(0.5) if has_own else padded(tensors, 0.5)
    assert torch.equal(data, want) and lengths.tolist() == [2, 4]
    same_gradients(data, want, tensors)
    values, offsets = ops.ragged(nested)
    assert torch.equal(values, torch.cat(tensors)) and offsets.tolist() == [0, 2, 6]
    assert torch.equal(ops.pad(nested, size=5, side="left")[0], padded(tensors, 0, "left", 5))
    out = torch.nested.nested_tensor_from_jagged(*ops.ragged(tensors))
    assert torch.equal(ops.repad(out.values(), out.offsets())[0], data.where(data != 0.5, 0))
    same_gradients((out * 2).values(), torch.cat(tensors) * 2, tensors)


@pytest.mark.parametrize("value", [np.float64(1.5), np.float32(1.5), np.int64(2), np.complex64(2j), np.complex128(2j), torch.tensor(2j)])
def test_values_of_numpy_and_tensors(value):
    tensors = [torch.ones(1, dtype=torch.complex128), torch.ones(2, dtype=torch.complex128)]
    want = padded(tensors, complex(value))
    assert torch.equal(ops.pad(tensors, value)[0], want)
    assert torch.equal(ops.repad(torch.cat(tensors), offsets_of(tensors), value)[0], want)


@pytest.mark.parametrize("size", [np.int64(5), np.uint8(5), torch.tensor(5)])
def test_sizes_of_numpy_and_tensors(size):
    tensors = [torch.ones(2), torch.zeros(2)]
    values, offsets, table = torch.cat(tensors), offsets_of(tensors), torch.stack(tensors)
    want = padded(tensors, size=5)
    for given in (tensors, table, *(torch.nested.nested_tensor(tensors, layout=layout) for layout in (torch.jagged, torch.strided))):
        assert torch.equal(ops.pad(given, size=size)[0], want)
        refusal(lambda: ops.pad(given, size=size - 4), wr.ShapeError, "windrow::pad: tensor 0: expected at most size=1 rows, got 2")
    assert torch.equal(ops.repad(values, offsets, size=size)[0], want)
    assert torch.equal(ops.unpad(want, torch.tensor([2, 3]), size=size)[0], torch.tensor([1.0, 1, 0, 0, 0]))


def test_offsets_of_nested_tensors_are_int64():
    nested = torch.nested.nested_tensor_from_jagged(torch.ones(3), torch.tensor([0, 1, 3], dtype=torch.int32))
    assert torch.equal(ops.ragged(nested)[1], torch.tensor([0, 1, 3]))


def test_nested_tensors_with_gaps_are_their_components():
    base = leaf(2, 5, 3)
    nested = torch.nested.narrow(base, 1, torch.tensor([1, 0]), torch.tensor([2, 4]), layout=torch.jagged)
    data, lengths = ops.pad(nested)
    assert lengths.tolist() == [2, 4] and torch.equal(data[0, :2], base[0, 1:3]) and torch.equal(data[1], base[1, :4])


@pytest.mark.parametrize("shape", [(3, 2), (3, 2, 4), (1, 2, 4), (3, 1, 2), (3, 0, 2), (3, 2, 0), (1, 1)])
@pytest.mark.parametrize("layout", ["rows", "transposed", "expanded"])
def test_a_tensor_is_the_list_of_its_rows(shape, layout):
    made = {"rows": shape, "transposed": shape[::-1], "expanded": (*shape[:1], *[1] * (len(shape) - 1))}[layout]
    table = leaf(*made).permute(*reversed(range(len(shape)))) if layout == "transposed" else leaf(*made).expand(shape)
    rows = list(table)
    dims = range(1 - len(shape), len(shape) - 1)
    calls = [ops.stack, ops.ragged, *[lambda t, dim=dim: ops.concat(t, dim) for dim in dims]]
    calls += [lambda t, side=side, size=size: ops.pad(t, 1.5, side, size) for side in SIDES for size in (None, 5)]
    for call in calls:
        ours, theirs = (out if isinstance(out, tuple) else (out,) for out in (call(table), call(rows)))
        for got, want in zip(ours, theirs):
            assert got.dtype == want.dtype and torch.equal(got, want) and got.stride() == want.stride()
        same_gradients(ours[0], theirs[0], [table])
        assert not table.numel() or ours[0].data_ptr() != table.data_ptr()
    assert torch.equal(ops.stack(table[:, 0]), table[:, 0]) if shape[1] else True


# registration


def test_ops_are_imported_when_they_are_asked_for():
    assert windrow.torch.ops is ops and sorted(ops.__all__) == sorted(n for n in dir(ops) if n in ops.__all__)
    assert all(callable(getattr(ops, name)) for name in ops.__all__)


def test_older_torch_is_named(monkeypatch):
    monkeypatch.delattr(torch.library, "custom_op")
    monkeypatch.delitem(sys.modules, "windrow.torch.ops")
    with pytest.raises(ImportError, match=f"needs PyTorch 2.4 or newer.*{torch.__version__.split('+')[0]}"):
        importlib.import_module("windrow.torch.ops")
    monkeypatch.undo()
    assert windrow.torch.ops is ops


def arguments(kind):
    """Arguments of each registered operator."""
    tensors = KINDS[kind]
    lengths, offsets = torch.tensor([len(t) for t in tensors]), offsets_of(tensors)
    joined, ids = torch.cat(tensors), torch.tensor([[0, -1]])
    data = ops.pad([t.detach() for t in tensors])[0].requires_grad_(tensors[0].requires_grad)
    joined = joined.detach().requires_grad_(tensors[0].requires_grad)
    given = {
        "stack": (equal_shapes(tensors),),
        "concat": (tensors, 0),
        "pad": (tensors, 1, "left", 5),
        "ragged": (tensors,),
        "take": (data, ids),
        "take_list": (equal_shapes(tensors), ids),
        "unpad": (data, lengths),
        "unpad_list": (data, lengths.tolist(), "right"),
        "repad": (joined, offsets, 1),
    }
    if tensors[0].requires_grad:
        given["take_sums"] = (data, torch.arange(len(data)), 4)
    return given


@pytest.mark.parametrize("kind", KINDS)
def test_opcheck(kind):
    for name, given in arguments(kind).items():
        utils = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(getattr(OPS, name).default, given, test_utils=utils)


@pytest.mark.parametrize("name", arguments("rows"))
def test_opcheck_by_aot_autograd(name):
    torch.library.opcheck(getattr(OPS, name).default, arguments("rows")[name], test_utils="test_aot_dispatch_dynamic")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "rows"])
def test_opcheck_by_aot_autograd_on_every_layout(kind):
    for name, given in arguments(kind).items():
        torch.library.opcheck(getattr(OPS, name).default, given, test_utils="test_aot_dispatch_dynamic")
