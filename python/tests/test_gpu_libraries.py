"""CuPy, JAX, Triton and Numba on a GPU: their samples, streams and memory, and what they read. `-k cupy` runs those of one."""

import importlib.util

import numpy as np
import pytest

import windrow as wr
from cuda_harness import plain
from gpu_harness import (  # noqa: F401
    CYCLES,
    HAS_GPU,
    HERE,
    LIMIT,
    MS,
    assert_bits,
    assert_late,
    cuda,
    gpu,
    late,
    new_process,
    settled,
    torch,
    values,
    warm,
)

ROWS = [np.random.default_rng(n).standard_normal((37, 16)).astype(np.float32) for n in range(64)]
# JAX would take most of the GPU's memory at its first use.
BESIDE_OTHERS = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def installed(name):
    return pytest.importorskip(name, reason=f"SKIP: {name} is not installed")


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_samples_on_the_host_go_to_a_device(driver, library):
    """The driver is the simulated one, which these libraries do not see, or a real one."""
    installed(library)
    if library == "torch":
        rows = [torch.from_numpy(row) for row in ROWS]
    else:
        import jax

        rows = [jax.device_put(row, jax.devices("cpu")[0]) for row in ROWS]
    batch = wr.stack(rows, device="cuda")
    assert batch.device == "cuda:0"
    assert np.array_equal(plain(batch), np.stack(ROWS))


# CuPy


@pytest.mark.parametrize("non_blocking", [True, False])
def test_cupy_on_a_stream_of_its_own(gpu, non_blocking):  # noqa: F811
    cupy = installed("cupy")
    source = 'extern "C" __global__ void spin(long long n) { long long begin = clock64(); while (clock64() - begin < n); }'
    spin = cupy.RawKernel(source, "spin")
    spin((1,), (1,), (np.int64(1),))  # compiled, and loaded
    with cupy.cuda.Stream(non_blocking=non_blocking) as stream:
        samples = [cupy.zeros(1000, "f4") for _ in range(8)]
        for sample in samples:
            sample.fill(0)
        stream.synchronize()
        spin((1,), (1,), (np.int64(MS * CYCLES),))
        for n, sample in enumerate(samples):
            sample.fill(n + 1)
        batch = wr.stack(samples)
        assert not stream.done
        got = batch.cupy() * 2
        assert got[:, 999].tolist() == [2.0 * (n + 1) for n in range(8)]
        assert bool((cupy.from_dlpack(wr.stack(samples).data) == cupy.stack(samples)).all())


def test_cupy_does_not_give_out_samples_that_are_read(gpu):  # noqa: F811
    cupy = installed("cupy")
    for turn in range(20):
        samples = [cupy.full(1 << 14, n + turn, "f4") for n in range(16)]
        batch = wr.stack(samples, stream=cuda.Stream())
        del samples
        junk = [cupy.full(1 << 14, -1, "f4") for _ in range(16)]
        assert batch.cupy()[:, 5].get().tolist() == [float(n + turn) for n in range(16)]
        del junk


def test_cupy_and_torch_in_one_batch(gpu):  # noqa: F811
    cupy = installed("cupy")
    samples = [torch.full((9,), 1.0, device=HERE), cupy.full(9, 2.0, "f4"), torch.full((9,), 3.0, device=HERE)]
    assert wr.stack(samples).torch()[:, 0].tolist() == [1.0, 2.0, 3.0]


# JAX


@new_process(env=lambda: BESIDE_OTHERS, needs="jax", limit=LIMIT)
def test_jax_reads_and_is_read_while_it_computes():
    import jax
    import jax.numpy as jnp

    (device,) = jax.devices("gpu")[:1]
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 400, lambda _, y: jnp.tanh(y @ y), x)[0, 0])
    base = jax.device_put(np.eye(2048, dtype="f4") * 0.5, device)
    slow(base).block_until_ready()
    for turn in range(10):
        begin = slow(base) * 0 + turn  # dispatched, not done
        got = wr.stack([begin + jnp.full((1000,), n, "f4") for n in range(8)]).jax()
        assert device in got.devices()
        assert np.array_equal(np.asarray(got)[:, 7], np.arange(8, dtype="f4") + turn)
    # Arrays of windrow's memory that are dropped while JAX computes.
    step, results = jax.jit(lambda x: (x * 2).sum(1)), []
    for turn in range(150):
        view = wr.stack([np.full(4096, turn + n, "f4") for n in range(4)], device="cuda").jax()
        results.append(step(view))
        del view
    for turn, got in enumerate(results):
        assert np.array_equal(np.asarray(got), 8192.0 * (turn + np.arange(4))), turn


@new_process(env=lambda: BESIDE_OTHERS, needs="jax", limit=LIMIT)
def test_jax_arrays_that_were_given_away():
    import jax
    import jax.numpy as jnp

    take = jax.jit(lambda x: x + 1, donate_argnums=0)
    for turn in range(30):
        samples = [jnp.full((4096,), n + turn, "f4") for n in range(8)]
        batch = wr.stack(samples)
        moved = [take(sample) for sample in samples]  # their memory is another array's from here on
        assert np.array_equal(np.asarray(batch.jax())[:, 9], np.arange(8) + turn), turn
        if samples[0].is_deleted():
            with pytest.raises((BufferError, ValueError), match="deleted|donated"):
                wr.stack(samples)
        del moved


# Kernels of Triton, arrays of Numba


if HAS_GPU and importlib.util.find_spec("triton"):
    import triton
    import triton.language as tl

    @triton.jit
    def double(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def test_triton_reads_a_late_batch(gpu):  # noqa: F811
    installed("triton")

    def doubled(x):
        y = torch.empty_like(x)
        double[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y

    doubled(torch.zeros(16, 1000, device=HERE))  # compiled
    want = values(16, (1000,))
    out = doubled(wr.stack(late(want)).torch())
    assert_late()
    assert_bits(out, torch.stack(want) * 2)


def test_numba_arrays(gpu):  # noqa: F811
    numba = installed("numba.cuda")
    if not numba.is_available():
        pytest.skip("SKIP: numba finds no GPU")
    samples = [numba.to_device(np.full(100, n, "f4")) for n in range(4)]
    assert wr.stack(samples, device="cpu").numpy()[:, 0].tolist() == [0, 1, 2, 3]
