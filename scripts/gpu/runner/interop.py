#!/usr/bin/env python3
"""Compares batches of another library's samples on a GPU with what that library makes of them.

With --simulate the library's samples are on the host and the batches on the simulated driver, which torch and JAX do not see:
it shows that the library and the wheel work together.
"""

import argparse

# Before the imports, none of which --help needs.
PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
PARSER.add_argument("library", choices=["torch", "cupy", "jax"])
PARSER.add_argument("--simulate", action="store_true")
OPTIONS = PARSER.parse_args()

import numpy as np  # noqa: E402

import windrow as wr  # noqa: E402

ROWS = [np.random.default_rng(i).standard_normal((37 + i % 5, 16)).astype(np.float32) for i in range(64)]
EQUAL = [row[:37] for row in ROWS]


def with_torch():
    import torch

    to = lambda rows: [torch.from_numpy(row).cuda() for row in rows]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        equal, rows = to(EQUAL), to(ROWS)
        batch, padded = wr.stack(equal), wr.pad(rows, value=0, mask="real")
        # Used at once, on the stream that the samples were made on.
        got = (batch.torch() * 2, padded.torch() + 1)
        want = (torch.stack(equal) * 2, torch.nn.utils.rnn.pad_sequence(rows, batch_first=True) + 1)
    stream.synchronize()
    assert got[0].is_cuda and all(torch.equal(a, b) for a, b in zip(got, want))
    memory_of_torch(torch)
    captured_by_torch(torch)


def memory_of_torch(torch):
    """Batches are in torch's memory, and torch gives it out again while their readers still run."""
    samples = [torch.full((1 << 16,), i, device="cuda", dtype=torch.float32) for i in range(64)]
    before = torch.cuda.memory_allocated()
    batch = wr.stack(samples)
    assert torch.cuda.memory_allocated() - before == batch.nbytes
    assert batch.torch() is batch.torch() and batch.torch().data_ptr() == batch.data_ptr()
    del batch
    side, sums = torch.cuda.Stream(), []
    for turn in range(50):
        batch = wr.stack(samples[turn % 7 :], stream=side if turn % 3 == 0 else None)
        other = torch.from_dlpack(batch) if turn % 2 else batch.torch()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            other.record_stream(side)
            sums.append(other.sum(1))
        del batch, other
    torch.cuda.synchronize()
    for turn, got in enumerate(sums):
        assert got.tolist() == [i * 65536.0 for i in range(turn % 7, 64)], turn


def captured_by_torch(torch):
    """A call in torch's own capture, without `out`: its allocator keeps the memory for the graph."""
    samples = [torch.zeros(257, device="cuda") for _ in range(33)]
    wr.pad(samples, mask="real")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch = wr.pad(samples, mask="real", size=300)
    for i, sample in enumerate(samples):
        sample.fill_(i + 1)
    graph.replay()
    want = torch.arange(1, 34, device="cuda", dtype=torch.float32)
    assert torch.equal(batch.torch().sum(1), want * 257) and int(batch.mask.torch().sum()) == 33 * 257


def with_cupy():
    import cupy

    rows = [cupy.asarray(row) for row in EQUAL]
    got = cupy.from_dlpack(wr.stack(rows).data)
    assert bool((got == cupy.stack(rows)).all())


def with_jax():
    import jax
    import jax.numpy as jnp

    device = jax.devices("gpu")[0]
    rows = [jax.device_put(row, device) for row in EQUAL]
    got = wr.stack(rows).jax()
    assert device in got.devices() and bool((got == jnp.stack(rows)).all())


def simulated(library):
    if library == "torch":
        import torch

        rows, stack = [torch.from_numpy(row) for row in EQUAL], torch.stack
    else:
        import jax.numpy as jnp

        rows, stack = [jnp.asarray(row) for row in EQUAL], jnp.stack
    batch = wr.stack(rows, device="cuda")
    assert batch.device == "cuda:0"
    assert np.array_equal(np.from_dlpack(batch.data, device="cpu"), np.asarray(stack(rows)))


if OPTIONS.simulate:
    simulated(OPTIONS.library)
else:
    {"torch": with_torch, "cupy": with_cupy, "jax": with_jax}[OPTIONS.library]()
print(f"{OPTIONS.library}: 1 passed")
