"""Batches of another library's samples on a GPU, compared with what that library makes of them.

Takes the name of the library: torch, cupy or jax.
"""

import sys

import numpy as np

import windrow as wr

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


{"torch": with_torch, "cupy": with_cupy, "jax": with_jax}[sys.argv[1]]()
print(f"{sys.argv[1]}: 1 passed")
