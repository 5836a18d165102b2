"""Gradients and lazy signs: nothing that torch keeps besides the memory is lost silently."""

import sys
import threading

import numpy as np
import pytest

import isolated
import windrow as wr
from helpers import assert_tensor, memory, reads_private_layouts, refusal

torch = pytest.importorskip("torch")
import windrow.torch as wt  # noqa: E402

# Each tensor is asked without them, and its storage is held once more.
with_private_layouts = pytest.mark.skipif(not reads_private_layouts("torch"), reason="SKIP: torch's private layouts are not read here")


def leaf():
    return torch.arange(3.0).requires_grad_()


def with_late_base():
    """A view that requires grad because its base has come to."""
    base = torch.arange(4.0)
    view = base[1:]
    base.requires_grad_()
    return view


class Mine(torch.Tensor):
    pass


class Asking(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


class WithoutApi(torch.Tensor):
    """A tensor as torch's were before 2.10; its `__dlpack__` refuses what requires grad in every grad mode."""

    __dlpack_c_exchange_api__ = None


WITH_GRAD = {
    "leaf": leaf,
    "result": lambda: leaf() * 2,
    "view of a leaf": lambda: torch.ones(2, 3, requires_grad=True)[1],
    "view of a result": lambda: (torch.ones(2, 3, requires_grad=True) * 2)[1],
    "view whose base has come to": with_late_base,
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "row of a parameter": lambda: torch.nn.Parameter(torch.ones(2, 3))[1],
    "kept": lambda: (lambda t: (t.retain_grad(), t)[1])(leaf() * 2),
    "in place": lambda: torch.zeros(3).mul_(leaf()),
    "subclass": lambda: torch.ones(3).as_subclass(Mine).requires_grad_(),
    "row of a subclass": lambda: torch.ones(2, 3, requires_grad=True).as_subclass(Mine)[1],
    "subclass with a function": lambda: torch.ones(3).as_subclass(Asking).requires_grad_(),
    "of a class without the exchange API": lambda: leaf().as_subclass(WithoutApi),
}
WITHOUT_GRAD = {
    "plain": lambda: torch.arange(3.0),
    "row": lambda: torch.arange(6.0).view(2, 3)[1],
    "row of a row": lambda: torch.arange(12.0).view(2, 2, 3)[1][0],
    "detached": lambda: leaf().detach(),
    "row of what was detached": lambda: torch.nn.Parameter(torch.ones(2, 3)).detach()[1],
    "data": lambda: leaf().data,
    "no longer": lambda: leaf().requires_grad_(False),
    "row of what does no longer": lambda: torch.ones(2, 3).requires_grad_().requires_grad_(False)[1],
    "frozen parameter": lambda: torch.nn.Parameter(torch.ones(3), requires_grad=False),
    "with a grad of its own": lambda: (lambda t: (setattr(t, "grad", torch.ones(3)), t)[1])(torch.ones(3)),
    "under inference": lambda: torch.inference_mode()(lambda: torch.arange(3.0))(),
    "subclass": lambda: torch.arange(3.0).as_subclass(Mine),
    "row of a subclass": lambda: torch.arange(6.0).view(2, 3).as_subclass(Mine)[1],
    "subclass with a function": lambda: torch.arange(3.0).as_subclass(Asking)[:],
}
CALLS = {
    "stack": wr.stack,
    "pad": wr.pad,
    "concat": wr.concat,
    "ragged": wr.ragged,
    "collate": lambda samples: wr.collate([{"x": sample} for sample in samples])["x"],
    "SampleList": wr.SampleList,
    "extend": lambda samples: wr.SampleList().extend(samples),
    "append": lambda samples: [wr.SampleList(samples[:1]).append(sample) for sample in samples[1:]],
    "view": lambda samples: wr.stack(samples, copy=None),
    "explain": wr.explain,
}


@pytest.mark.parametrize("kind", WITH_GRAD)
@pytest.mark.parametrize("call", CALLS)
def test_what_requires_grad_is_refused(call, kind):
    sample = WITH_GRAD[kind]()
    assert sample.requires_grad
    error = refusal(lambda: CALLS[call]([torch.zeros(3), sample]), wr.LayoutError)
    assert isinstance(error, BufferError) and error.index == 1 and "detach() it" in str(error)
    with torch.no_grad():
        CALLS[call]([torch.zeros(3), sample])
    CALLS[call]([torch.zeros(3), sample.detach()])


@pytest.mark.parametrize("kind", WITH_GRAD)
def test_single_tensors_and_tables_that_require_grad(kind):
    sample = WITH_GRAD[kind]()
    for call in (wr.asarray, lambda x: wr.SampleList(x[None]), lambda x: wr.stack(x[None])):
        assert "detach() it" in str(refusal(lambda: call(sample), wr.LayoutError))
    with torch.no_grad():
        assert (memory(wr.asarray(sample)) == sample.numpy()).all()
    with torch.inference_mode():
        wr.asarray(sample)


@pytest.mark.parametrize("kind", WITHOUT_GRAD)
@pytest.mark.parametrize("call", CALLS)
def test_what_does_not_require_grad_is_taken(call, kind):
    sample = WITHOUT_GRAD[kind]()
    assert not sample.requires_grad
    CALLS[call]([sample, sample])
    assert_tensor(wr.stack([sample] * 2), np.stack([sample.detach().numpy()] * 2))


def test_integers_beside_a_leaf():
    error = refusal(lambda: wr.stack([*torch.zeros(9, 3).unbind(), leaf()]), wr.LayoutError)
    assert error.index == 9
    wr.stack(torch.zeros(9, 3, dtype=torch.int64).unbind())


def test_grad_mode_is_that_of_the_thread():
    sample, seen = leaf(), []

    def work():
        seen.append(refusal(lambda: wr.stack([sample]), wr.LayoutError))

    with torch.no_grad():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        wr.stack([sample])
    assert len(seen) == 1


def test_grad_mode_that_a_sample_turns_on():
    """Torch's earlier answer on the mode does not hold for the samples behind it."""

    class Switch:
        array = np.ones(3, np.float32)

        @property
        def __array_interface__(self):
            torch.set_grad_enabled(True)
            return self.array.__array_interface__

    with torch.no_grad():
        assert_tensor(wr.stack([torch.zeros(3), leaf(), leaf() * 2, leaf()[:]]), np.outer([0, 1, 2, 1], np.arange(3)).astype("f4"))
        for call in (wr.stack, wr.SampleList):
            torch.set_grad_enabled(False)
            refusal(lambda: call([leaf(), leaf(), Switch(), leaf()]), wr.LayoutError, index=3)
    assert torch.is_grad_enabled()


def test_an_error_leaves_the_list_as_it_was():
    samples = wr.SampleList([torch.zeros(3)])
    refusal(lambda: samples.extend([torch.zeros(3), leaf()]), wr.LayoutError)
    assert len(samples) == 1


# out=


def test_numbers_that_require_grad_are_refused():
    """Options are numbers, which have no gradient."""
    samples, learned = [torch.ones(3)] * 2, torch.tensor(2.0, requires_grad=True)
    three = torch.ones(3, requires_grad=True)
    for call in (
        lambda: wr.Transform(learned),
        lambda: wr.Transform(mean=learned),
        lambda: wr.Transform(std=three),
        lambda: wr.Transform(mean=[learned, 1, 2]),
        lambda: wr.Quantize("int8", eps=learned),
        lambda: wr.pad(samples, value=learned),
    ):
        refusal(call, wr.LayoutError, "requires grad", "detach")
        with torch.no_grad():
            call()
    wr.pad(samples, value=learned.detach())
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        dual = forward.make_dual(torch.tensor(2.0), torch.tensor(1.0))
        refusal(lambda: wr.Transform(dual), wr.LayoutError, "dual tensor", "unpack_dual")


def test_out_that_requires_grad_is_refused():
    out = torch.zeros(2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="automatic differentiation"):
        torch.stack([torch.ones(3)] * 2, out=out)
    refusal(lambda: wr.stack([torch.ones(3)] * 2, out=out), wr.LayoutError)
    assert (out == 0).all()
    with torch.no_grad():
        wr.stack([torch.ones(3)] * 2, out=out)
    assert (out == 1).all()


@pytest.mark.parametrize("form", ["stack", "concat", "pad", "ragged"])
def test_out_that_was_saved_for_backward(form):
    call = getattr(wr, form)
    rows = [np.full((1, 3), i, np.float32) for i in range(2)]
    weight = torch.from_numpy(call(rows).numpy().copy())
    loss = (torch.ones(weight.shape, requires_grad=True) * weight).sum()
    version = weight._version
    refusal(lambda: call([*rows, rows[0]], out=weight), wr.ShapeError)
    assert weight._version == version
    call(rows, out=weight)
    assert weight._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


VIEWS = {
    "asarray": wr.asarray,
    "asarray of asarray": lambda t: wr.asarray(wr.asarray(t)),
    "an earlier result": lambda t: wr.stack([np.ones(3, np.float32)] * 2, out=t),
    "one of an earlier result": lambda t: wr.stack([np.ones(3, np.float32)] * 2, out=wr.asarray(t)),
    "a view of its rows": lambda t: wr.stack(wr.SampleList(t), copy=False),
    "a row of a table": lambda t: wr.SampleList(t.view(1, 2, 3))[0],
    "a leaf of an earlier result": lambda t: wr.collate([{"x": np.ones(3, np.float32)}] * 2, out={"x": t})["x"],
}


@pytest.mark.parametrize("view", VIEWS)
def test_out_that_is_a_view_of_what_was_saved_for_backward(view):
    weight = torch.ones(2, 3)
    out = VIEWS[view](weight)
    loss = (torch.ones(2, 3, requires_grad=True) * weight).sum()
    wr.stack([np.zeros(3, np.float32)] * 2, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_out_of_inference_is_written_to_within_inference_mode_alone():
    """The output behaves as torch's own `out=`; it has no version."""
    with torch.inference_mode():
        out = torch.zeros(2, 3)
        wr.stack([torch.ones(3)] * 2, out=out)
        wr.collate([{"x": torch.ones(3)}] * 2, out={"x": out})
        wr.stack([torch.ones(3)] * 2, out=wr.asarray(out))
        plain = torch.zeros(2, 3)
    assert (out == 1).all()
    samples, table = [torch.zeros(3)] * 2, wr.SampleList(torch.zeros(3, 3))
    with pytest.raises(RuntimeError, match="[Ii]nference"):
        torch.stack(samples, out=out)
    with torch.inference_mode():
        # Torch wrote before it refused.
        out.fill_(1)
    for call in (
        lambda: wr.stack(samples, out=out),
        lambda: wr.stack(samples, out=wr.asarray(out)),
        lambda: wr.stack(samples, out=out[:]),
        lambda: table.stack([0, 1], out=out),
        lambda: wr.pad(samples, out=out),
        lambda: wr.collate([{"x": torch.zeros(3)}] * 2, out={"x": out}),
    ):
        refusal(call, RuntimeError, r"inference tensor outside of inference mode; clone\(\) it")
        assert (out == 1).all()
    refusal(lambda: wr.collate([{"x": torch.zeros(3)}] * 2, out={"x": plain}), RuntimeError, 'out at "x"', path="x")
    normal = torch.ones(2, 3)
    with torch.inference_mode():
        wr.stack(samples, out=normal)
    assert (normal == 0).all()


# windrow.torch.collate_fn


def test_collate_fn_without_a_spec_keeps_gradients():
    samples = [{"x": torch.full((3,), float(i), requires_grad=True), "y": torch.ones(2)} for i in range(3)]
    batch = wt.collate_fn()(samples)
    (batch["x"] * torch.arange(9.0).view(3, 3)).sum().backward()
    assert samples[1]["x"].grad.tolist() == [3, 4, 5] and not batch["y"].requires_grad
    with torch.no_grad():
        assert not wt.collate_fn()(samples)["x"].requires_grad
    error = refusal(lambda: wt.collate_fn({"x": wr.Stack()})(samples), wr.LayoutError)
    assert error.path == "x" and error.index == 0


# conjugation and negation


IMAG = torch.complex(torch.zeros(4), torch.arange(4.0)).conj().imag
LAZY = {
    "conj": (lambda: torch.complex(torch.zeros(3), torch.ones(3)).conj()),
    "imag of a conj": lambda: IMAG[:3],
    "negated": lambda: torch._neg_view(torch.ones(3)),
    "negated float64": lambda: torch._neg_view(torch.ones(3, dtype=torch.float64)),
    "negated int": lambda: torch._neg_view(torch.arange(3)),
    "odd steps over imag": lambda: torch.as_strided(IMAG, (2,), (3,)),
    "contiguous over imag": lambda: torch.as_strided(IMAG, (3,), (1,)),
    "row of what is negated": lambda: torch._neg_view(torch.ones(2, 3))[1],
    "negated subclass": lambda: torch._neg_view(torch.ones(3)).as_subclass(Mine),
}


@pytest.mark.parametrize("kind", LAZY)
def test_lazy_conjugation_and_negation_are_refused(kind):
    sample = LAZY[kind]()
    assert sample.is_conj() or sample.is_neg()
    plain = torch.zeros_like(sample, memory_format=torch.contiguous_format)
    for call in CALLS.values():
        error = refusal(lambda: call([plain, sample]), wr.LayoutError)
        assert error.index == 1 and "resolve_neg()" in str(error)
    refusal(lambda: wr.asarray(sample), wr.LayoutError)
    known = sample.resolve_conj().resolve_neg()
    assert_tensor(wr.stack([known]), known.numpy()[None])


# torch's words, and torch itself


def test_transforms_of_functions_are_refused_or_right():
    def inner(x):
        refusal(lambda: wr.stack([x]), (ValueError, TypeError, BufferError, RuntimeError))
        return x.sum()

    torch.func.vmap(inner)(torch.ones(2, 3))
    torch.func.grad(inner)(torch.ones(3))


ASKED = """
import torch
import windrow as wr, windrow.torch as wt
asked = []

class Grad:
    def __get__(self, tensor, owner):
        asked.append(1)
        return Grad.known.__get__(tensor, owner)

Grad.known = torch._C.TensorBase.requires_grad
import windrow._torch_probe as probe
probed, cases = [], probe.cases
probe.cases = lambda: probed.append(threading.current_thread()) or cases()
with {mode}:
    wr.stack([torch.zeros(3)])
assert len(probed) == 1 and probed != [threading.main_thread()]
torch.Tensor.requires_grad = Grad()
collate = wt.collate_fn()
for dtype in (torch.uint8, torch.int64, torch.float32, torch.uint8):
    for samples in ([torch.ones(3, dtype=dtype) for _ in range(5)], list(torch.ones(5, 3, dtype=dtype))):
        assert collate(samples).sum() == 15
        wr.stack(samples), wr.SampleList(samples)
# The first of each batch, by `collate_fn`.
assert len(asked) == 8
asked.clear()
class Mine(torch.Tensor):
    pass
wr.stack([torch.ones(3).as_subclass(Mine)] * 5), wr.stack([torch.nn.Parameter(torch.ones(3), requires_grad=False)])
assert not asked and len(probed) == 1
with torch.no_grad():
    leaves = [torch.ones(3, requires_grad=True) for _ in range(5)]
    wr.stack(leaves), wr.SampleList(leaves), wr.pad([leaves[0], leaves[1][:2] * 2, torch.nn.Parameter(torch.ones(2))])
assert not asked
"""


@pytest.mark.slow
@with_private_layouts
@pytest.mark.parametrize("mode", ["torch.no_grad()", "torch.inference_mode()", "torch.device('meta')"])
def test_samples_are_not_asked_for_gradients_one_by_one(mode):
    # The script has a process to itself, as the first tensors of a process are looked at closer.
    isolated.fork(ASKED.replace("wr.stack([torch.zeros(3)])", "wr.stack([torch.zeros(3, device='cpu')])").format(mode=mode))


@with_private_layouts
def test_the_object_of_a_storage_is_held_once_for_each_sample():
    tensor = torch.ones(3)
    lists = [wr.SampleList([tensor])]  # torch makes the object now, and has it ready from then on.
    storage = tensor.untyped_storage()
    before = sys.getrefcount(storage)
    for _ in range(3):
        lists.append(wr.SampleList([tensor, tensor[1:], tensor]))
        assert sys.getrefcount(storage) == before + 3 * (len(lists) - 1)
    lists.clear()
    assert sys.getrefcount(storage) == before - 1
    del storage
    assert_tensor(wr.stack(wr.SampleList([tensor])), np.ones((1, 3), "f4"))


# Memory shared copy-on-write

ROWS = [torch.full((3,), float(i)) for i in range(1, 5)]
WRITES = {
    "stack": lambda out: wr.stack(ROWS, out=out),
    "pad": lambda out: wr.pad(ROWS, out=out),
    "concat": lambda out: wr.concat([row[None] for row in ROWS], out=out),
    "ragged": lambda out: wr.ragged([row[None] for row in ROWS], out=out),
    "collate": lambda out: wr.collate([{"x": row} for row in ROWS], out={"x": out}),
    "stack of a list": lambda out: wr.SampleList(ROWS).stack([0, 1, 2, 3], out=out),
    "stack of rows": lambda out: wr.SampleList(torch.stack(ROWS)).stack([0, 1, 2, 3], out=out),
    "view": lambda out: wr.stack(ROWS, out=out[:]),
    "asarray": lambda out: wr.stack(ROWS, out=wr.asarray(out)),
    "batch": lambda out: wr.stack(ROWS, out=wr.stack(list(out), copy=False)),
    "many dims": lambda out: wr.stack([row[:, None, None, None, None] for row in ROWS], out=out[:, :, None, None, None, None]),
    "array": lambda out: np.copyto(wr.asarray(out).numpy(), np.stack(ROWS)),
    "memoryview": lambda out: np.copyto(np.asarray(memoryview(wr.asarray(out))), np.stack(ROWS)),
    "sample": lambda out: [np.copyto(wr.SampleList(out)[i].numpy(), row) for i, row in enumerate(ROWS)],
    "sample of a tree": lambda out: np.copyto(wr.SampleList([{"x": out}])[0]["x"].numpy(), np.stack(ROWS)),
    "window": lambda out: np.copyto(wr.windows(out, [0], 4)[0].numpy(), np.stack(ROWS)),
    "copy_many": lambda out: wr.copy_many(list(out), ROWS),
    "copy_many of rows": lambda out: wr.copy_many(out, torch.stack(ROWS)),
    "copy_many of a list": lambda out: wr.copy_many(wr.SampleList(out).take([3, 2, 1, 0]), ROWS[::-1]),
    "copy_many of a tree": lambda out: wr.copy_many({"x": out}, {"x": torch.stack(ROWS)}),
    "unpack": lambda out: wr.unpack(PACKED.buffer, PACKED.layout, into={"x": out}),
    "pack": lambda out: wr.pack({"x": torch.stack(ROWS)}, out=out.view(-1).view(torch.uint8)),
    "scales": lambda out: wr.stack(TIMES_127, transform=QUANTIZE, out=(np.empty((4, 3, 1), np.int8), out)),
    "scales of copy_many": lambda out: wr.copy_many(np.empty((4, 3, 1), np.int8), torch.stack(TIMES_127), transform=QUANTIZE, scales_out=out),
}
PACKED = wr.pack({"x": torch.stack(ROWS)})
# The largest number of int8 times their scales.
TIMES_127, QUANTIZE = [row[:, None] * 127 for row in ROWS], wr.Quantize("int8", scale="row")


@pytest.mark.parametrize("write", [
    lambda data, scales: wr.stack(TIMES_127, transform=QUANTIZE, out=(data, scales)),
    lambda data, scales: wr.copy_many(data, torch.stack(TIMES_127), transform=QUANTIZE, scales_out=scales),
    lambda data, scales: wr.copy_many(list(data), TIMES_127, transform=QUANTIZE, scales_out=list(scales)),
])  # fmt: skip
def test_lazy_clones_of_data_and_scales_are_written_to_alone(write):
    bases = torch.zeros((4, 3, 1), dtype=torch.int8), torch.zeros((4, 3))
    clones = [torch._lazy_clone(base) for base in bases]
    write(*clones)
    assert not any(base.any() for base in bases), "an original was written to"
    assert clones[0].eq(127).all() and clones[1].equal(torch.stack(ROWS))


@pytest.mark.parametrize("kind", [torch.Tensor, Mine, Asking])
@pytest.mark.parametrize("how", WRITES)
def test_lazy_clones_are_written_to_alone(how, kind):
    base = torch.zeros((4, 3))
    clone = torch._lazy_clone(base)
    WRITES[how](clone if kind is torch.Tensor else clone.as_subclass(kind))
    assert not base.any(), "the original was written to"
    assert clone.equal(torch.stack(ROWS))


def test_a_lazy_clone_is_read_without_memory_of_its_own():
    base = torch.arange(12.0).reshape(4, 3)
    clone = torch._lazy_clone(base)
    assert wr.stack(list(clone)).torch().equal(base) and wr.pad([clone]).torch().equal(base[None])
    assert torch._C._is_cow_tensor(clone)


OUTPUTS = {
    "asarray": wr.asarray,
    "batch": lambda base: wr.stack(ROWS, out=base),
    "sample": lambda base: wr.SampleList([base])[0],
    "sample of a tree": lambda base: wr.SampleList([{"x": base}])[0]["x"],
    "sample that was added": lambda base: joined(wr.SampleList([torch.zeros(1)]), base)[1],
    "row": lambda base: wr.SampleList(base[None])[0],
    "piece": lambda base: wr.SampleList.split(base, [0, 4])[0],
    "window": lambda base: wr.windows(base, [0], 4)[0],
    "view": lambda base: wr.stack(list(base), copy=False),
    "view of one sample": lambda base: wr.concat([base], copy=False),
    "view of a table": lambda base: wr.stack(base, copy=False),
    "view of a list": lambda base: wr.stack(wr.SampleList(list(base)), copy=False).data,
    "view of samples": lambda base: wr.stack([wr.SampleList(list(base))[i] for i in range(4)], copy=False),
    "asarray of a sample": lambda base: wr.asarray(wr.SampleList([base])[0]),
    "sample of asarray": lambda base: wr.SampleList([wr.asarray(base)])[0],
}


def joined(samples, sample):
    samples.append(sample)
    return samples


@pytest.mark.parametrize("how", OUTPUTS)
def test_an_output_of_which_a_clone_was_made_since(how):
    base = torch.zeros((4, 3))
    out = OUTPUTS[how](base)
    before, clone = base.clone(), torch._lazy_clone(base)
    refusal(lambda: wr.stack([-row for row in ROWS], out=out), wr.LayoutError, "moved", "import it again")
    assert clone.equal(before) and base.equal(before)
    wr.stack([-row for row in ROWS], out=base)
    assert clone.equal(before) and base.equal(-torch.stack(ROWS))


EXPORTS = {
    "numpy": lambda out: out.numpy(),
    "torch": lambda out: out.torch(),
    "memoryview": memoryview,
    "asarray": np.asarray,
    "DLPack": np.from_dlpack,
    "torch.from_dlpack": torch.from_dlpack,
    "array interface": lambda out: out.__array_interface__,
}


@pytest.mark.parametrize("export", EXPORTS)
@pytest.mark.parametrize("how", OUTPUTS)
def test_an_export_of_memory_of_which_a_clone_was_made_since(how, export):
    base = torch.zeros((4, 3))
    out = OUTPUTS[how](base)
    before, clone = base.clone(), torch._lazy_clone(base)
    error = (wr.LayoutError, BufferError)
    with pytest.raises(error, match="import it again"):
        EXPORTS[export](out)
    assert not torch._C._is_cow_tensor(base) and clone.equal(before)
    EXPORTS[export](OUTPUTS[how](base))


RAGGED = {
    "view": lambda base: wr.ragged([base], copy=False),
    "out": lambda base: wr.ragged([torch.zeros((4, 3))], out=base),
}


@pytest.mark.parametrize("how", RAGGED)
def test_a_nested_tensor_of_memory_of_which_a_clone_was_made_since(how):
    base = torch.zeros((4, 3))
    batch = RAGGED[how](base)
    before, clone = base.clone(), torch._lazy_clone(base)
    refusal(batch.nested, wr.LayoutError, "import it again")
    RAGGED[how](base).nested().values().fill_(7)
    assert base.eq(7).all() and clone.equal(before)


def test_bytes_leave_memory_shared():
    base = torch.arange(6.0)
    tensor = wr.asarray(base)
    clone = torch._lazy_clone(base)
    assert bytes(tensor) == np.arange(6, dtype=np.float32).tobytes()
    assert torch._C._is_cow_tensor(base) and torch._C._is_cow_tensor(clone)


READS = {
    "list": (lambda base: wr.SampleList([base]), wr.stack),
    "rows": (wr.SampleList, lambda samples: wr.stack(samples.take([0, 1, 2, 3]))),
    "asarray": (wr.asarray, lambda tensor: wr.stack([tensor])),
    "list of asarray": (wr.asarray, lambda tensor: wr.stack(wr.SampleList(tensor))),
    "tree": (lambda base: wr.SampleList([{"x": base}]), lambda samples: wr.collate(samples)["x"]),
    "view": (lambda base: wr.stack(list(base), copy=False), lambda batch: wr.pad([batch])),
    "tensor": (lambda base: (base, wr.SampleList([base])), lambda pair: (wr.stack([pair[0]]), wr.stack(pair[1]))[1]),
    "tensor of a tree": (lambda base: (base, wr.asarray(base)), lambda pair: (wr.collate([{"x": pair[0]}]), wr.stack([pair[1]]))[1]),
    "scales": (lambda base: wr.Dequantize([base]), lambda by: wr.stack([torch.ones((4, 3, 1), dtype=torch.int8)], dtype="float32", transform=by)),
}


@pytest.mark.parametrize("kind", [torch.Tensor, Mine, Asking])
@pytest.mark.parametrize("how", READS)
def test_memory_is_read_of_which_a_clone_was_made_since(how, kind):
    """A read leaves it shared, where it is."""
    make, read = READS[how]
    base = torch.arange(12.0).reshape(4, 3)
    given = make(base if kind is torch.Tensor else base.as_subclass(kind))
    before, clone = base.clone(), torch._lazy_clone(base)
    for _ in range(2):
        assert read(given).torch().flatten().equal(before.flatten())
        assert torch._C._is_cow_tensor(base) and torch._C._is_cow_tensor(clone)
    base.add_(1)
    refusal(lambda: read(given), wr.LayoutError, "moved", "import it again")
    assert clone.equal(before)


def broken(change, which="True"):
    """Cases some of which say something else than torch does."""
    return f"probe.cases = lambda: [c._replace({change}) if {which} else c for i, c in enumerate(cases())]"


BROKEN = {
    "no cases": "probe.cases = lambda: []",
    "an error": "probe.cases = lambda: 1 / 0",
    "other keys": broken("keys=c.keys ^ 1"),
    "another tensor": broken("addresses=[c.addresses[0] + 16, *c.addresses[1:]]"),
    "another storage": broken("addresses=[c.addresses[0], c.addresses[1] + 16, c.addresses[2]]"),
    "other memory": broken("addresses=[*c.addresses[:2], c.addresses[2] + 16]"),
    "another object of the storage": broken("storage=c.tensor"),
    "lazy the other way": broken("is_lazy=not c.is_lazy"),
    "one that requires grad": broken("is_plain=False", "i == 4"),
    "tangents elsewhere": "duals = probe._duals; probe._duals = lambda keys: [c._replace(is_plain=True) for c in duals(keys)]",
    "another dtype": broken("dense=('int64', *c.dense[1:])", "i == 0"),
    "another shape": broken("dense=(c.dense[0], (4, 3), *c.dense[2:])", "i == 0"),
    "other strides": broken("dense=(*c.dense[:2], (1, 3), c.dense[3])", "i == 0"),
    "another address": broken("dense=(*c.dense[:3], c.dense[3] + 4)", "i == 0"),
    "one that is not dense": broken("dense=None", "i == 0"),
    "no lazy clones": "probe.lazy_clones = lambda: [torch.zeros(2)]",
    "an object that nothing asked for": "probe.unasked = lambda: cases()[0].tensor",
    "another release": "torch.__version__ = '2.99.0'",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", BROKEN)
def test_torch_of_another_layout(how):
    """A property that the trial does not confirm is read by attribute, from each tensor."""
    isolated.fork(
        f"""
import torch
import windrow as wr
import windrow._torch_probe as probe
from helpers import reads_private_layouts, refusal
cases = probe.cases
{BROKEN[how]}
asked = []

class Neg:
    def __get__(self, tensor, owner):
        asked.append(1)
        return known.__get__(tensor, owner)

known = torch._C.TensorBase.is_neg
torch.Tensor.is_neg = Neg()
wr.stack([torch.zeros(3), *torch.zeros(2, 3)])
assert len(asked) >= 3 and not reads_private_layouts("torch")
for bad in (torch.ones(3, requires_grad=True), torch.ones(2, 3, requires_grad=True)[1], torch._neg_view(torch.ones(3))):
    error = refusal(lambda: wr.stack([torch.zeros(3), bad]), wr.LayoutError)
    assert error.index == 1
with torch.no_grad():
    assert_tensor(wr.stack([torch.ones(3, requires_grad=True)]), np.ones((1, 3), "f4"))
"""
    )


@pytest.mark.slow
def test_the_trial_imports_next_to_nothing():
    """torch's own dual_level() and make_dual() import some 900 modules, for a second."""
    code = """
import sys, torch, windrow as wr
before = set(sys.modules)
wr.stack([torch.ones(3)] * 2)
assert len(set(sys.modules) - before) < 20, sorted(set(sys.modules) - before)[:40]
"""
    done = isolated.python("-W", "error", "-c", code)
    assert done.returncode == 0 and not done.stderr, done.stderr[-2000:]
