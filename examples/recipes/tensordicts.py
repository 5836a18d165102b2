"""TensorDicts and tensorclasses to one of the same class, into a memory-mapped file too."""

import tempfile

import torch
from tensordict import TensorDict, tensorclass

import windrow as wr


@tensorclass
class Transition:
    observation: torch.Tensor
    action: torch.Tensor
    task: str


generator = torch.Generator().manual_seed(0)


def step(t: int) -> TensorDict:
    pixels = torch.rand(3, 8, 8, generator=generator)
    return TensorDict({"obs": {"pixels": pixels, "t": torch.tensor(t)}, "reward": torch.tensor(t / 2)}, batch_size=[])


steps = [step(t) for t in range(256)]
batch = wr.collate(steps)
assert (batch == torch.stack(steps)).all()
print(batch.batch_size, batch["obs", "pixels"].shape, batch["reward"][:3])

# Leaves by their path: here the frames as float16.
half = wr.collate(steps, {"obs.pixels": wr.Stack(dtype="float16")})
print(half["obs", "pixels"].dtype, half["obs", "t"].dtype)

# Into a TensorDict that is there already, in files here.
with tempfile.TemporaryDirectory() as folder:
    stored = TensorDict.stack(steps).apply(torch.zeros_like).memmap_(folder)
    wr.collate(steps, out=stored)
    assert (TensorDict.load_memmap(folder) == batch).all()

transitions = [Transition(torch.ones(4) * t, torch.zeros(2), f"task {t}", batch_size=[]) for t in range(3)]  # type: ignore[call-arg]
joined = wr.collate(transitions)
print(type(joined).__name__, joined.observation.shape, joined.task)
