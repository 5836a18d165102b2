"""windrow.torch.ops on a device, by the driver calls of the engine's part of each operator and of its gradient: torch's dispatcher does
not run here. With torch itself: test_gpu_ops.py."""

import sys

import numpy as np
import pytest

import windrow as wr
from helpers import assert_same, refusal
from test_cuda_torch import read
from torch_standin import Torch

torch = pytest.importorskip("torch")
if not hasattr(torch.library, "custom_op"):
    pytest.skip("SKIP: operators need PyTorch 2.4", allow_module_level=True)
from windrow.torch import _op_kernels as kernels  # noqa: E402

pytestmark = pytest.mark.simulated("lists driver calls")

LENGTHS = (3, 0, 7, 1)
ROWS = [np.arange(5 * n, dtype=np.float32).reshape(n, 5) + 100 * n for n in LENGTHS]
VALUES, OFFSETS = np.concatenate(ROWS), torch.tensor([0, 3, 3, 10, 11])


def padded(side="right", width=8, value=0.0):
    data = np.full((len(ROWS), width, 5), value, np.float32)
    for row, sample in zip(data, ROWS):
        start = {"right": 0, "left": width - len(sample), "center": (width - len(sample)) // 2}[side]
        row[start : start + len(sample)] = sample
    return data


@pytest.fixture
def standin(sim, monkeypatch):
    """torch in miniature, whose tensors are in the memory of the simulated driver."""
    module = Torch(sim, sim.stream())
    monkeypatch.setitem(sys.modules, "torch", module)
    yield module
    wr.empty_cache()
    module.empty_cache()


def counted(sim, work, launches=1):
    """The results of `work`, which launches so often, and neither waits, allocates nor copies from the device."""
    calls = sim.steady_calls(work)
    assert calls["cuLaunchKernel"] == launches, calls
    assert not any(word in call for call in calls for word in ("Synchronize", "DtoH", "Alloc", "Free")), calls
    return work()


@pytest.mark.parametrize("side", ["right", "left", "center"])
def test_lists_are_one_launch(sim, standin, side):
    tensors = [standin.Tensor(row) for row in ROWS]
    equal = [standin.Tensor(row) for row in padded()]
    data, lengths = counted(sim, lambda: kernels.pad(tensors, 0.5, side, 8))
    assert_same(read(standin, data)(), padded(side, value=0.5))
    assert_same(read(standin, lengths)(), np.array(LENGTHS))
    for values, numbers, want in (
        (*counted(sim, lambda: kernels.ragged(tensors)), OFFSETS.numpy()),
        (*counted(sim, lambda: kernels.concat(tensors)), np.array(LENGTHS)),
    ):
        assert_same(read(standin, values)(), VALUES)
        assert_same(read(standin, numbers)(), want)
    assert_same(read(standin, counted(sim, lambda: kernels.stack(equal)))(), padded())


def test_long_lists_are_one_launch_too(sim, standin):
    tensors = [standin.Tensor(row) for row in ROWS] * 200
    values, _ = counted(sim, lambda: kernels.ragged(tensors))
    assert_same(read(standin, values)(), np.tile(VALUES, (200, 1)))
    rows = standin.Tensor(np.tile(padded(), (200, 1, 1)).reshape(-1, 5))
    values, _ = counted(sim, lambda: kernels.joined(rows, torch.tensor(LENGTHS * 200), 8, "right"))
    assert_same(read(standin, values)(), np.tile(VALUES, (200, 1)))


@pytest.mark.parametrize("side", ["right", "left", "center"])
def test_gradients_of_pad_and_repad_are_one_launch(sim, standin, side):
    """The gradients of stack, concat and ragged are views."""
    rows = standin.Tensor(padded(side).reshape(-1, 5))
    values, offsets = counted(sim, lambda: kernels.joined(rows, torch.tensor(LENGTHS), 8, side))
    assert_same(read(standin, values)(), VALUES)
    assert_same(read(standin, offsets)(), OFFSETS.numpy())
    given = standin.Tensor(VALUES)
    data, lengths = counted(sim, lambda: kernels.spread(given, OFFSETS, 0.25, 8, side))
    assert_same(read(standin, data)(), padded(side, value=0.25))
    assert_same(read(standin, lengths)(), np.array(LENGTHS))


def test_lengths_that_do_not_fit_are_found_before_a_launch(sim, standin):
    rows = standin.Tensor(padded().reshape(-1, 5))
    for lengths, text in (((3, 0, 9, 1), r"lengths\[2\]: expected 0 to 8, got 9"), ((3, -1, 7, 1), r"lengths\[1\]: expected 0 to 8, got -1")):
        call = lambda: refusal(lambda: kernels.joined(rows, torch.tensor(lengths), 8, "right"), RuntimeError, text)  # noqa: B023, E731
        assert not [call for call in sim.traced(call)[1] if "Launch" in call]


def test_operators_follow_the_current_stream(sim, standin):
    tensors = [standin.Tensor(row) for row in ROWS]
    with standin.on(sim.stream()):
        with sim.paused(standin.current[0]):
            data, lengths = kernels.pad(tensors)
            made = [read(standin, data), read(standin, lengths)]
        assert_same(made[0](), padded(width=7))
        assert_same(made[1](), np.array(LENGTHS))
        # Memory of torch's own, which its allocator made in the order of that stream.
        assert [address for address, stream in standin.made if stream == standin.current[0]] == [data.address, lengths.address]
