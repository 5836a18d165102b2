"""windrow.torch.ops inside a model, forward and backward: beside torch.stack, pad_sequence, jagged nested tensors and FBGEMM, if it is
there, and beside the eager call with an operator that does nothing, which is what torch's dispatcher costs an operator of Python's.

A backward is timed alone, for one gradient of the result; the contenders take turns. Results and gradients are compared before anything
is timed.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Sequence

import torch
import windrow as wr
import windrow.torch.ops as ops
from loader import line
from torch.nn.utils.rnn import pad_sequence
from windrow._measure import interleave, seconds_of

try:
    import fbgemm_gpu  # noqa: F401

    FBGEMM: Any = torch.ops.fbgemm
except (ImportError, OSError) as error:
    print(f"SKIP FBGEMM: {error}")
    FBGEMM = None

# Jagged tensors are padded from 2.6 on; FBGEMM's wheel loads beside the release that it was built with alone.
HAS_NESTED = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6)

Tensors = Sequence[torch.Tensor]
# The number of rows, the longest and their width; and the seconds of a comparison.
SIZES, SECONDS = ((512, 64, 64), (64, 512, 256), (2048, 16, 16)), 2.0
QUICK_SIZES, QUICK_SECONDS = ((12, 5, 4),), 0.0


@torch.library.custom_op("windrow_bench::identity", mutates_args=())
def identity(tensors: List[torch.Tensor]) -> torch.Tensor:
    """The least that an operator of a list can do."""
    return tensors[0].clone()


identity.register_autograd(
    lambda ctx, grad: [grad, *[None] * (ctx.count - 1)],
    setup_context=lambda ctx, inputs, output: setattr(ctx, "count", len(inputs[0])),
)


def leaves(count: int, longest: int, width: int) -> List[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [torch.randn(length, width, generator=generator).requires_grad_() for length in lengths]


class Comparisons:
    """Compares and times contenders; `say` gets each comparison as it is done."""

    def __init__(self, say: Callable[[Dict[str, Any]], None], seconds: float, clock: Callable[[Callable[[], Any]], float]) -> None:
        self.say, self.seconds, self.clock = say, seconds, clock

    def time(self, title: str, calls: Dict[str, Callable[[], Any]], count: int) -> None:
        # The gradient of pad_sequence takes seconds.
        self.say(line(title, count, interleave(calls, self.seconds, (3, 101), clock=self.clock)))

    def forward(self, title: str, calls: Dict[str, Callable[[], torch.Tensor]], count: int, others: Dict[str, Callable[[], Any]] = {}) -> None:
        """Calls that give one result, and others beside them."""
        want = next(iter(calls.values()))()
        for name, call in calls.items():
            assert torch.equal(call(), want), f"{title}: the result of {name} differs"
        self.time(title, {**calls, **others}, count)

    def backward(self, title: str, calls: Dict[str, Callable[[], torch.Tensor]], inputs: Tensors, count: int) -> None:
        """The gradients of the inputs, for one of the result."""
        results = {name: call() for name, call in calls.items()}
        weight = torch.randn(next(iter(results.values())).shape)

        def grads(result: torch.Tensor) -> Any:
            return torch.autograd.grad(result, inputs, weight, retain_graph=True)

        want = grads(next(iter(results.values())))
        for name, result in results.items():
            for got, expected in zip(grads(result), want):
                torch.testing.assert_close(got, expected, msg=lambda text, name=name: f"{title}: gradients of {name} differ: {text}")
        self.time(title, {name: (lambda result=result: grads(result)) for name, result in results.items()}, count)

    def both(self, title: str, calls: Dict[str, Callable[[], torch.Tensor]], inputs: Tensors, count: int) -> None:
        """The result and the gradients of the inputs, as in a step of training. What is compared is compared by the other two."""
        weight = torch.randn(next(iter(calls.values()))().shape)
        self.time(title, {name: (lambda call=call: torch.autograd.grad(call(), inputs, weight)) for name, call in calls.items()}, count)


def eager(call: Callable[[Tensors], Any], tensors: List[torch.Tensor]) -> Dict[str, Callable[[], Any]]:
    """The eager call, and what an operator of it may take at most: the call and an operator that does nothing."""
    name = f"windrow.{call.__name__}"

    def within() -> Any:
        with torch.no_grad():
            return call(tensors).torch()

    return {f"{name}, eager": within, f"{name}, eager, and an identity operator": lambda: (within(), identity(tensors))}


def nested(tensors: Tensors, size: int) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(tensors), layout=torch.jagged).to_padded_tensor(0.0, (len(tensors), size, tensors[0].shape[1]))


def ragged_and_repad(tensors: Tensors, size: int) -> torch.Tensor:
    return ops.repad(*ops.ragged(tensors), size=size)[0]


def jagged_to_padded(values: torch.Tensor, offsets: torch.Tensor, size: int) -> torch.Tensor:
    return FBGEMM.jagged_to_padded_dense(values, [offsets], [size], 0.0)


def cpu_seconds_of(call: Callable[[], Any]) -> float:
    """The seconds that all threads of the process spend."""
    begin = time.process_time()
    result = call()
    spent = time.process_time() - begin
    del result
    return spent


def measure(say: Callable[[Dict[str, Any]], None], quick: bool = False, cpu: bool = False) -> None:
    """Every comparison in turn; `say` gets each as it is done."""
    if cpu:
        torch.set_num_threads(1)
    of = Comparisons(say, QUICK_SECONDS if quick else SECONDS, cpu_seconds_of if cpu else seconds_of)
    for count, longest, width in QUICK_SIZES if quick else SIZES:
        lists(of, count, longest, width)
    rows, positions, width = (20, 32, 4) if quick else (10_000, 16_384, 64)
    table, ids = torch.randn(rows, width).requires_grad_(), torch.randint(0, rows, (positions,))
    takes = {"torch.embedding": lambda: torch.embedding(table, ids), "ops.take": lambda: ops.take(table, ids)}
    of.forward(f"take of {positions} of {rows} rows of {width} floats, recorded", takes, positions)
    of.backward("backward of that take", takes, [table], positions)
    items, chosen = [torch.randn(width).requires_grad_() for _ in range(min(rows, 512))], ids % min(rows, 512)
    takes = {"torch.stack, indexed": lambda: torch.stack(items)[chosen], "ops.take": lambda: ops.take(items, chosen)}
    of.forward(f"take of {positions} of a list of {len(items)} rows of {width} floats, recorded", takes, positions)
    of.backward("backward of that take of a list", takes, items, positions)


def lists(of: Comparisons, count: int, longest: int, width: int) -> None:
    """Lists of so many rows."""
    what = f"{count} rows of 1 to {longest} x {width} floats"
    rows = leaves(count, longest, width)
    plain = [row.detach() for row in rows]
    alike = [row.detach()[:1].clone().requires_grad_() for row in rows]
    offsets = ops.ragged(plain)[1]
    longest = max(map(len, rows))
    pads = lambda rows: {"pad_sequence": lambda: pad_sequence(rows, True), "ops.pad": lambda: ops.pad(rows)[0]}  # noqa: E731
    pad = lambda rows: wr.pad(rows, dims=0)  # noqa: E731
    pad.__name__ = "pad"
    of.forward(f"pad without gradients, {what}", pads(plain), count, eager(pad, plain))
    of.forward(f"pad, recorded, {what}", pads(rows), count, eager(pad, rows))
    of.backward(f"backward of pad, {what}", pads(rows), rows, count)
    stacks = {"torch.stack": lambda: torch.stack(alike), "ops.stack": lambda: ops.stack(alike)}
    of.forward(f"stack, recorded, of their first rows, {what}", stacks, count, eager(wr.stack, alike))
    of.backward(f"backward of that stack, {what}", stacks, alike, count)
    cats = {"torch.cat": lambda: torch.cat(rows), "ops.ragged": lambda: ops.ragged(rows)[0]}
    of.forward(f"ragged, recorded, {what}", cats, count, eager(wr.ragged, rows))
    joins: Dict[str, Callable[[], torch.Tensor]] = {"torch.nested": lambda: nested(rows, longest)} if HAS_NESTED else {}
    joins["ops.ragged, ops.repad"] = lambda: ragged_and_repad(rows, longest)
    if FBGEMM:
        joins["torch.cat, FBGEMM"] = lambda: jagged_to_padded(torch.cat(rows), offsets, longest)
    of.forward(f"ragged and repad, recorded, {what}", joins, count)
    of.backward(f"backward of ragged and repad, {what}", joins, rows, count)
    of.both(f"ragged and repad with gradients, {what}", joins, rows, count)
    values = torch.cat(plain).requires_grad_()
    of_values: Dict[str, Callable[[], torch.Tensor]] = {"ops.repad": lambda: ops.repad(values, offsets, size=longest)[0]}
    if HAS_NESTED:
        from_jagged = torch.nested.nested_tensor_from_jagged
        padded = {"torch.nested": lambda: from_jagged(values, offsets).to_padded_tensor(0.0, (count, longest, width))}
        of_values = {**padded, **of_values}
    if FBGEMM:
        of_values["FBGEMM"] = lambda: jagged_to_padded(values, offsets, longest)
    of.forward(f"repad of values, recorded, {what}", of_values, count)
    of.backward(f"backward of repad of values, {what}", of_values, [values], count)
