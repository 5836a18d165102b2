"""The parts that tests with torch itself on a GPU share: one side is late on purpose, so that a missing wait gives wrong bytes.

Without a GPU they run on the host what they can, where streams do nothing: it shows that the tests themselves work.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import importlib.util
import multiprocessing
import os
import traceback
import types

import numpy as np
import pytest

import isolated
import windrow as wr

torch = pytest.importorskip("torch")

# Windrow would not see torch's tensors on the simulated driver.
HAS_GPU = not os.environ.get("WINDROW_CUDA_DRIVER") and torch.cuda.is_available()
HERE = "cuda" if HAS_GPU else "cpu"
MS = 25  # of a delay: a call takes some 30 us, its kernel as much
CYCLES = 1_980_000  # of a millisecond, at the highest clock: at any other one a delay is longer
LIMIT = 110  # seconds of a slow test in a process of its own; pytest's limit is that of slots.sh, 120


class HostStream(contextlib.nullcontext):
    """A stream where there is none."""

    cuda_stream = 0

    def wait_stream(self, other):
        pass

    synchronize = query = lambda self: True


THE_HOST = HostStream()
cuda = torch.cuda if HAS_GPU else types.SimpleNamespace(
    Stream=HostStream, stream=lambda stream: stream, current_stream=lambda: THE_HOST, default_stream=lambda: THE_HOST,
    synchronize=lambda: None, _sleep=lambda cycles: None,
)  # fmt: skip


def need_gpu():
    """Skips a test without a GPU; where one is required, fails it."""
    if not HAS_GPU:
        if os.environ.get("WINDROW_REQUIRE_GPU") == "1":
            pytest.fail("WINDROW_REQUIRE_GPU=1: torch has no GPU here")
        pytest.skip("SKIP: torch has no GPU here")


@pytest.fixture
def gpu():
    """torch's GPU; skips where there is none."""
    need_gpu()


@pytest.fixture(scope="module", autouse=True)
def warm():
    """Memory, pages and all kernels are there before anything is late."""
    if not HAS_GPU and os.environ.get("WINDROW_REQUIRE_GPU") == "1":
        need_gpu()
    warm_up()


def warm_up():
    rows = on_device(values(2))
    wr.stack(rows).check()
    wr.stack([row.mT for row in rows], dtype="int8").check()
    wr.stack(on_device(values(1200, (3,)))).check()
    for size in (4, 1 << 20):
        wr.stack([np.zeros(size, np.uint8)] * 4, device=HERE).check()


@pytest.fixture(autouse=True)
def settled():
    """Nothing of a test is under way in the next one."""
    yield
    cuda.synchronize()
    gc.collect()


# Samples


def values(count=16, shape=(64, 32), dtype="float32", seed=0):
    """Tensors on the host."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.startswith(("float", "bfloat", "complex")):
        return [torch.randn(shape, generator=generator).to(getattr(torch, dtype)) for _ in range(count)]
    high = 2 if dtype == "bool" else 100
    return [torch.randint(0, high, shape, generator=generator).to(getattr(torch, dtype)) for _ in range(count)]


def numbered(count, size):
    """Tensors of which each holds its number."""
    return [torch.full((size,), float(n), device=HERE) for n in range(count)]


def on_device(tensors):
    made = [tensor.to(HERE, copy=True) for tensor in tensors]
    cuda.synchronize()
    return made


class Plain:
    """An array that is not torch's, so that windrow's batches of such arrays are in its own memory."""

    def __init__(self, tensor):
        self.tensor, self.__cuda_array_interface__ = tensor, tensor.__cuda_array_interface__


def assert_bits(got, want):
    """The same bits, NaNs too."""
    got, want = got.detach().cpu().contiguous(), want.detach().cpu().contiguous()
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if got.numel():
        a, b = (tensor.flatten().view(torch.uint8) for tensor in (got, want))
        assert torch.equal(a, b), f"{int((a != b).sum())} of {a.numel()} bytes differ"


# Delays


def sleep(ms=MS):
    """Keeps the current stream busy."""
    cuda._sleep(int(ms * CYCLES))


def late(tensors, ms=MS):
    """Tensors that hold junk until the current stream has slept."""
    made = [torch.full_like(tensor, 99, device=HERE) for tensor in tensors]
    # Before the delay: to lock pages may wait for the device, and then nothing would be late.
    tensors = [tensor.pin_memory() if HAS_GPU and tensor.numel() else tensor for tensor in tensors]
    cuda.synchronize()
    sleep(ms)
    for tensor, value in zip(made, tensors):
        tensor.copy_(value, non_blocking=True)
    return made


def assert_late(stream=None):
    """The delay is under way: else the test has shown nothing, or a call has waited for it."""
    if HAS_GPU:
        assert not (stream or cuda.current_stream()).query(), "the delay is over: a call has waited for it, or it was too short"


# Tests in other processes


def own_process(test):
    """Runs a test in a process without the ordinary ones, since it may end a capture or spoil the device: after a capture that was ended
    torch's current stream stays that of the capture, and its allocator believes that it goes on.

    Such tests follow each other in one process, whose start takes longer than they do. One that fails there is run again in a new
    process, so that it is judged alone.
    """

    @functools.wraps(test)
    def there(**arguments):
        need_gpu()
        failure = Other.run(test, arguments)
        if failure:
            pytest.fail(failure)

    return there


class Other:
    """The process for such tests."""

    process = pipe = None
    # Seconds for its start, for a test, and for its end: one test runs twice at most, with one start, within pytest's limit.
    START, TEST, END = 60, 20, 4

    @classmethod
    def run(cls, test, arguments):
        """The failure, if any."""
        is_new = cls.process is None
        try:
            verdict, text = cls.start() if is_new else ("ready", "")
            if verdict == "ready":
                verdict, text = cls.ask(test, arguments)
        except BaseException:  # pytest's limit, or an interrupt: what the process says later is nobody's verdict
            cls.end()
            raise
        if verdict == "skipped":
            pytest.skip(text)
        if verdict == "failed":
            cls.end()
            return text if is_new else cls.run(test, arguments)

    @classmethod
    def start(cls):
        context = multiprocessing.get_context("spawn")
        cls.pipe, theirs = context.Pipe()
        cls.process = context.Process(target=serve, args=(theirs,), daemon=True)
        cls.process.start()
        theirs.close()
        return cls.answer(cls.START)

    @classmethod
    def ask(cls, test, arguments):
        try:
            cls.pipe.send((test.__module__, test.__name__, arguments))
        except OSError:  # it ended after its last answer
            return cls.status()
        return cls.answer(cls.TEST)

    @classmethod
    def answer(cls, limit):
        try:
            return cls.pipe.recv() if cls.pipe.poll(limit) else ("failed", f"not done after {limit} s")
        except (EOFError, OSError):
            return cls.status()

    @classmethod
    def status(cls):
        cls.process.join(cls.END)
        return "failed", f"the process ended with status {cls.process.exitcode}"

    @classmethod
    def end(cls):
        """The next test has another process, also if this one waits for a device that has failed, and cannot be ended."""
        process, cls.process = cls.process, None
        if cls.pipe is not None:
            cls.pipe.close()
        if process is not None and process.pid is not None:  # else its start was interrupted
            process.kill()
            process.join(cls.END)


def serve(pipe):
    warm_up()
    pipe.send(("ready", ""))
    while True:
        module, name, arguments = pipe.recv()
        try:
            getattr(importlib.import_module(module), name).__wrapped__(**arguments)
            gc.collect()
            cuda.synchronize()
            assert cuda.current_stream() == cuda.default_stream(), "a capture was ended: torch still captures"
            pipe.send(("passed", ""))
        except pytest.skip.Exception as skipped:
            pipe.send(("skipped", str(skipped)))
        except BaseException:
            pipe.send(("failed", traceback.format_exc()))


def new_process(test=None, *, code=0, limit=60, **options):
    """Runs a test in a process of its own, which may end as it likes. `env` is a function of the test's arguments; without the library
    that it `needs` there is no process, in which a skip would be a failure."""
    if test is None:
        return functools.partial(new_process, code=code, limit=limit, **options)

    @functools.wraps(test)
    def there(**arguments):
        need_gpu()
        if (needs := options.get("needs")) and importlib.util.find_spec(needs) is None:
            pytest.skip(f"SKIP: {needs} is not installed")
        env = options["env"](**arguments) if "env" in options else None
        isolated.run(f"from {test.__module__} import {test.__name__} as test\ntest.__wrapped__(**{arguments!r})", timeout=limit, env=env, code=code)

    return there
