"""windrow.torch.ops inside a model, forward and backward: beside torch.stack, pad_sequence, jagged nested tensors and FBGEMM, if it is
there, beside the eager call, and beside an operator that does nothing, which shows what torch's dispatcher costs.

A backward is timed alone, for one gradient of the result; the contenders take turns. Results and gradients are compared before anything
is timed.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence

import torch
import windrow as wr
import windrow.torch.ops as ops
from loader import line
from torch.nn.utils.rnn import pad_sequence
from windrow._measure import interleave

try:
    import fbgemm_gpu  # noqa: F401

    FBGEMM: Any = torch.ops.fbgemm
except (ImportError, OSError) as error:
    print(f"SKIP FBGEMM: {error}")
    FBGEMM = None

Tensors = Sequence[torch.Tensor]
SECONDS = 2.0


@torch.library.custom_op("windrow_bench::identity", mutates_args=())
def identity(tensors: List[torch.Tensor]) -> torch.Tensor:
    """As little as an operator of a list can do."""
    return tensors[0].clone()


identity.register_autograd(
    lambda ctx, grad: [grad, *[None] * (ctx.count - 1)],
    setup_context=lambda ctx, inputs, output: setattr(ctx, "count", len(inputs[0])),
)


def leaves(count: int, longest: int, width: int) -> List[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randn(length, width, generator=generator).requires_grad_() for length in lengths]


def forward(title: str, calls: Dict[str, Callable[[], torch.Tensor]], others: Dict[str, Callable[[], Any]], count: int) -> Dict[str, Any]:
    """Calls that give one result, and others beside them."""
    want = next(iter(calls.values()))()
    for name, call in calls.items():
        assert torch.equal(call(), want), f"{title}: the result of {name} differs"
    return line(title, count, interleave({**calls, **others}, SECONDS))


def backward(title: str, calls: Dict[str, Callable[[], torch.Tensor]], inputs: Tensors, count: int) -> Dict[str, Any]:
    """The gradients of the inputs, for one of the result."""
    results = {name: call() for name, call in calls.items()}
    weight = torch.randn(next(iter(results.values())).shape)

    def grads(result: torch.Tensor) -> Any:
        return torch.autograd.grad(result, inputs, weight, retain_graph=True)

    want = grads(next(iter(results.values())))
    for name, result in results.items():
        for got, expected in zip(grads(result), want):
            torch.testing.assert_close(got, expected, msg=lambda text, name=name: f"{title}: gradients of {name} differ: {text}")
    timed = {name: (lambda result=result: grads(result)) for name, result in results.items()}
    return line(title, count, interleave(timed, SECONDS))


def both(title: str, calls: Dict[str, Callable[[], torch.Tensor]], inputs: Tensors, count: int) -> Dict[str, Any]:
    """The result and the gradients of the inputs, as in a step of training. What is compared is compared by the other two."""
    weight = torch.randn(next(iter(calls.values()))().shape)
    timed = {name: (lambda call=call: torch.autograd.grad(call(), inputs, weight)) for name, call in calls.items()}
    return line(title, count, interleave(timed, SECONDS))


def nested(tensors: Tensors, size: int) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(tensors), layout=torch.jagged).to_padded_tensor(0.0, (len(tensors), size, tensors[0].shape[1]))


def ragged_and_repad(tensors: Tensors, size: int) -> torch.Tensor:
    return ops.repad(*ops.ragged(tensors), size=size)[0]


def jagged_to_padded(values: torch.Tensor, offsets: torch.Tensor, size: int) -> torch.Tensor:
    return FBGEMM.jagged_to_padded_dense(values, [offsets], [size], 0.0)


def measure(say: Callable[[Dict[str, Any]], None]) -> None:
    """Every comparison in turn; `say` gets each as it is done."""
    for count, longest, width in ((512, 64, 64), (64, 512, 256), (2048, 16, 16)):
        what = f"{count} rows of 1 to {longest} x {width} floats"
        rows = leaves(count, longest, width)
        plain = [row.detach() for row in rows]
        alike = [row.detach()[:1].clone().requires_grad_() for row in rows]
        offsets = ops.ragged(plain)[1]
        longest = max(map(len, rows))
        dispatcher = {"an identity operator": lambda: identity(plain)}
        eager = {"windrow.pad, eager": lambda: wr.pad(plain, dims=0).torch()}
        pads = lambda rows: {"pad_sequence": lambda: pad_sequence(rows, True), "ops.pad": lambda: ops.pad(rows)[0]}  # noqa: E731
        say(forward(f"pad without gradients, {what}", {**pads(plain), **eager}, dispatcher, count))
        say(forward(f"pad, recorded, {what}", pads(rows), {"an identity operator": lambda: identity(rows)}, count))
        say(backward(f"backward of pad, {what}", pads(rows), rows, count))
        stacks = {"torch.stack": lambda: torch.stack(alike), "ops.stack": lambda: ops.stack(alike)}
        say(forward(f"stack, recorded, of their first rows, {what}", stacks, {}, count))
        say(backward(f"backward of that stack, {what}", stacks, alike, count))
        joins = {"torch.nested": lambda: nested(rows, longest), "ops.ragged, ops.repad": lambda: ragged_and_repad(rows, longest)}
        if FBGEMM:
            joins["torch.cat, FBGEMM"] = lambda: jagged_to_padded(torch.cat(rows), offsets, longest)
        say(forward(f"ragged and repad, recorded, {what}", joins, {}, count))
        say(backward(f"backward of ragged and repad, {what}", joins, rows, count))
        say(both(f"ragged and repad with gradients, {what}", joins, rows, count))
        values = torch.cat(plain).requires_grad_()
        of_values = {
            "torch.nested": lambda: torch.nested.nested_tensor_from_jagged(values, offsets).to_padded_tensor(0.0, (count, longest, width)),
            "ops.repad": lambda: ops.repad(values, offsets, size=longest)[0],
        }
        if FBGEMM:
            of_values["FBGEMM"] = lambda: jagged_to_padded(values, offsets, longest)
        say(forward(f"repad of values, recorded, {what}", of_values, {}, count))
        say(backward(f"backward of repad of values, {what}", of_values, [values], count))
    table = torch.randn(10_000, 64).requires_grad_()
    ids = torch.randint(0, 10_000, (16_384,))
    takes = {"torch.embedding": lambda: torch.embedding(table, ids), "ops.take": lambda: ops.take(table, ids)}
    say(forward("take of 16384 of 10000 rows of 64 floats, recorded", takes, {}, len(ids)))
    say(backward("backward of that take", takes, [table], len(ids)))
