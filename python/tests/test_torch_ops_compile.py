"""windrow.torch.ops in graphs: torch.compile without a break or a recompilation, torch.export, AOTInductor."""

import shutil

import pytest

from helpers import refusal

torch = pytest.importorskip("torch")
if not hasattr(torch.library, "custom_op"):
    pytest.skip("SKIP: operators need PyTorch 2.4", allow_module_level=True)
import windrow.torch.ops as ops  # noqa: E402
from test_torch_ops_refusals import BAD, VALUES  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch.fx.experimental import sym_node  # noqa: E402

# Releases in which the largest of several sizes is a guard: which tensor is the longest belongs to the graph unless `size` is given.
HAS_GUARDS = hasattr(sym_node, "alternate_impl_if_hinted_methods")
with_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="SKIP: inductor needs a C++ compiler")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def from_values(values, offsets, width):
    """Calls the operators on one tensor of values, as a model does with a ragged batch."""
    padded, lengths = ops.repad(values * 2, offsets, 0.5, width)
    joined, again = ops.unpad(padded.sin(), lengths, size=values.shape[0])
    left, _ = ops.repad(joined, again, size=width, side="left")
    return left.sum(1) + ops.take(values, offsets[:-1]), lengths


def from_lists(tensors, ids):
    """Calls the operators on a list of tensors that differ in dim 0."""
    data, lengths = ops.pad([tensor.exp() for tensor in tensors], -1.0, size=9 if HAS_GUARDS else None)
    values, offsets = ops.ragged(tensors)
    joined, _ = ops.concat([values, tensors[0]])
    rows = ops.stack([tensor[-1] for tensor in tensors])
    return data.square().sum() + joined.sum(0) + ops.take([rows[0], rows[1]], ids).sum(0), lengths, offsets


def values_of(*lengths):
    values = torch.randn(sum(lengths), 3, generator=torch.Generator().manual_seed(len(lengths))).requires_grad_()
    return values, torch.tensor([0, *lengths]).cumsum(0), max(lengths)


def list_of(*lengths):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 3, generator=generator).requires_grad_() for n in lengths], torch.tensor([1, 0, 1])


def same(ours, theirs, inputs):
    """Results and gradients."""
    ours, theirs = (out if isinstance(out, tuple) else (out,) for out in (ours, theirs))
    for got, want in zip(ours, theirs):
        torch.testing.assert_close(got, want)
    for got, want in zip(*(torch.autograd.grad(out[0].square().sum(), inputs) for out in (ours, theirs))):
        torch.testing.assert_close(got, want)


def run(backend):
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(from_values, fullgraph=True, dynamic=True, backend=counter)
    for lengths in ((2, 3, 4), (1, 5, 3), (7, 2, 9), (4, 4, 4)):
        given = values_of(*lengths)
        same(compiled(*given), from_values(*given), [given[0]])
    assert counter.frame_count == 1
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(from_lists, fullgraph=True, dynamic=True, backend=counter)
    # The first ones differ from each other and from the 3 columns: torch takes equal sizes for the same one.
    for lengths in ((5, 7, 4), (3, 5, 2), (7, 2, 9), (3, 3, 3)):
        tensors, ids = list_of(*lengths)
        same(compiled(tensors, ids), from_lists(tensors, ids), tensors)
    assert counter.frame_count == 1


def test_compiled_by_aot_eager():
    run("aot_eager")


@pytest.mark.slow
@with_compiler
def test_compiled_by_inductor():
    run("inductor")


def counts(count, turn):
    """Returns `count` lengths of turn 0, 1 or 2. Those of turn 0 differ from each other and from all other sizes."""
    return {0: [3, 17, 5, 7, 11, 13, 19, 23], 1: [4, 4, 9, 12, 6, 30, 2, 8], 2: [8, 2, 2, 5, 31, 3, 7, 6]}[turn][:count]


def many(count, turn):
    return [torch.randn(n, 29).requires_grad_() for n in counts(count, turn)]


def values_and_offsets(count, turn):
    lengths = counts(count, turn)
    return torch.randn(sum(lengths) + 100, 29).requires_grad_(), torch.tensor([0, *lengths, 100]).cumsum(0), 100 + turn


# Each op: a function, and its inputs by the number of samples and the turn.
OF_LISTS = {
    "stack": (ops.stack, lambda count, turn: ([torch.randn(37 + turn, 29).requires_grad_() for _ in range(count)],)),
    "concat": (lambda t: ops.concat(t)[0], lambda *of: (many(*of),)),
    "pad": (lambda t: ops.pad(t, 1.0, "left", None if not HAS_GUARDS else 31)[0], lambda *of: (many(*of),)),
    "ragged": (lambda t: ops.ragged(t)[0], lambda *of: (many(*of),)),
    "take of a list": (ops.take, lambda count, turn: ([torch.randn(37 + turn).requires_grad_() for _ in range(count)], torch.arange(53 + turn) % count)),
    "stack of rows": (ops.stack, lambda count, turn: (torch.randn(count + turn * (count > 1), 29).requires_grad_(),)),
    "pad of rows": (lambda t: ops.pad(t)[0], lambda count, turn: (torch.randn(count + turn * (count > 1), 37 + turn, 29).requires_grad_(),)),
    "take": (ops.take, lambda count, turn: (torch.randn(count + turn * (count > 1), 29).requires_grad_(), torch.arange(53 + turn) % count)),
    "repad": (lambda v, o, size: ops.repad(v, o, size=size)[0], values_and_offsets),
    "repad and unpad": (lambda v, o, size: ops.unpad(*ops.repad(v, o, size=size), size=v.shape[0])[0], values_and_offsets),
}


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("name", OF_LISTS)
def test_other_lengths_need_no_other_graph(name, count):
    call, make = OF_LISTS[name]
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=counter)
    for turn in (0, 1, 2):
        given = make(count, turn)
        inputs = given[0] if isinstance(given[0], list) else [given[0]]
        same(compiled(*given), call(*given), inputs)
    assert counter.frame_count == 1


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=[pytest.mark.slow, with_compiler])])
def test_sizes_that_are_in_the_data(backend):
    def both(padded, lengths):
        values, offsets = ops.unpad(padded, lengths)
        return ops.repad(values * 2, offsets)[0]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        counter = CompileCounterWithBackend(backend)
        compiled = torch.compile(both, fullgraph=True, dynamic=True, backend=counter)
        for lengths in ((2, 3, 4), (1, 1, 3)):
            padded = torch.randn(3, 6, 2).requires_grad_()
            same(compiled(padded, torch.tensor(lengths)), both(padded, torch.tensor(lengths)), [padded])
    assert counter.frame_count == 1


PADDED = {
    "a list": lambda a, b, value: ops.pad([a, b], value)[0],
    "a table": lambda a, b, value: ops.pad(torch.stack([a[:1], b[:1]]), value, size=3)[0],
    "a ragged batch": lambda a, b, value: ops.repad(torch.cat([a, b]), torch.tensor([0, 1, 3]), value, 3)[0],
    "a value of the data": lambda a, b, value: ops.pad([a, b], (a.sum() * value).item())[0],
}


@pytest.mark.parametrize("values", [(1.5, 2.5, 3.5), (-100, -1, 7)], ids=["floats", "ints"])
@pytest.mark.parametrize("of", PADDED)
def test_padding_values_that_differ_from_call_to_call(of, values):
    """Dynamo makes a symbol of the number once it has changed."""
    call, a, b = PADDED[of], torch.ones(1), torch.ones(2)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        for value in values:
            assert torch.equal(compiled(a, b, value), call(a, b, value))


def test_autocast_in_a_graph():
    compiled = torch.compile(lambda a, b: ops.stack([a, b]), fullgraph=True, backend="aot_eager")
    half, single = torch.ones(2, dtype=torch.bfloat16).requires_grad_(), torch.ones(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = compiled(half, single)
    assert out.dtype == torch.float32
    out.sum().backward()
    assert half.grad.dtype == torch.bfloat16 and half.grad.tolist() == [1, 1]


def test_nested_tensors_in_a_graph():
    def step(values, offsets):
        nested = torch.nested.nested_tensor_from_jagged(values * 2, offsets)
        return ops.pad(nested, size=8)[0].sum(1)

    given = values_of(2, 3, 4)[:2]
    same(torch.compile(step, fullgraph=True, backend="aot_eager")(*given), step(*given), [given[0]])


@pytest.mark.parametrize("case", [*BAD, *VALUES], ids=", ".join)
def test_bad_input_of_a_graph(case):
    """The words are those of eager calls, when the graph is traced or, for what values alone show, when it runs."""
    call, tensors, _, text = {**BAD, **VALUES}[case]
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    refusal(lambda: compiled(*tensors), (RuntimeError, IndexError), text)


def test_input_that_does_not_fit_a_graph_that_is_there():
    compiled = torch.compile(lambda a: ops.pad([a], size=3)[0], fullgraph=True, dynamic=True, backend="aot_eager")
    assert compiled(torch.ones(2)).shape == (1, 3)
    refusal(lambda: compiled(torch.ones(4)), RuntimeError, "at most size=3 rows")
    compiled = torch.compile(lambda v, o: ops.repad(v, o, size=2)[0], fullgraph=True, dynamic=True, backend="aot_eager")
    assert compiled(torch.ones(4), torch.tensor([0, 2, 4])).shape == (2, 2)
    refusal(lambda: compiled(torch.ones(4), torch.tensor([0, 1, 4])), RuntimeError, "sample 1: expected at most size=2 rows, got 3")


class Model(torch.nn.Module):
    """A ragged batch through a layer, padded for its last step."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.table = torch.nn.Parameter(torch.randn(10, 3))
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, ids, offsets):
        padded, lengths = ops.repad(self.layer(ops.take(self.table, ids)), offsets, 0.5, self.size)
        values, _ = ops.unpad(padded, lengths, size=ids.shape[0])
        return padded.sum(1), values


class Lists(torch.nn.Module):
    """Tensors of unequal lengths."""

    def forward(self, tensors):
        data, lengths = ops.pad(tensors, 1.0, "left")
        return data, lengths, *ops.ragged(tensors), ops.stack([t[0] for t in tensors]), *ops.concat(tensors, 1 - 1)


def exported(model):
    total = torch.export.Dim("total", min=2, max=1000)
    return torch.export.export(model, (torch.tensor([1, 2, 3, 9, 5]), torch.tensor([0, 2, 5])), dynamic_shapes=({0: total}, None))


GIVEN = [(torch.tensor([0, 1, 2, 3, 4, 5, 6]), torch.tensor([0, 3, 7])), (torch.tensor([9, 9]), torch.tensor([0, 0, 2]))]


def test_exported_saved_and_loaded(tmp_path):
    model = Model(4)
    torch.export.save(exported(model), tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2")
    names = [node.target.name() for node in loaded.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    assert {"windrow::take", "windrow::repad", "windrow::unpad"} <= set(names)
    for given in GIVEN:
        for got, want in zip(loaded.module()(*given), model(*given)):
            torch.testing.assert_close(got, want)


def test_lists_exported():
    tensors = [torch.randn(2, 3), torch.randn(4, 3)]
    dynamic = ([{0: torch.export.Dim("first", min=1, max=99)}, {0: torch.export.Dim("second", min=1, max=99)}],)
    module = torch.export.export(Lists(), (tensors,), dynamic_shapes=dynamic).module()
    for lengths in ((2, 4), (5, 3)):
        tensors = [torch.randn(n, 3) for n in lengths]
        assert all(map(torch.equal, module(tensors), Lists()(tensors)))


@pytest.mark.slow
@with_compiler
@pytest.mark.skipif(not hasattr(torch._inductor, "aoti_compile_and_package"), reason="SKIP: packages need PyTorch 2.6")
def test_aot_inductor_saved_and_loaded(tmp_path):
    # The package is loaded in a Python program, which registers the operators: they have no kernels in C++.
    model = Model(4).requires_grad_(False)
    path = torch._inductor.aoti_compile_and_package(exported(model), package_path=str(tmp_path / "model.pt2"))
    loaded = torch._inductor.aoti_load_package(path)
    for given in GIVEN:
        for got, want in zip(loaded(*given), model(*given)):
            torch.testing.assert_close(got, want)
