"""torch in miniature: tensors with an exchange table, a current stream, a caching allocator
that gives a block out again as soon as its tensor is gone, in the order of the stream that it was made on."""

from __future__ import annotations

import contextlib
import types
from ctypes import byref, c_int, c_void_p

import numpy as np

import oracle
from cuda_harness import CUDA, JUNK, LEGACY, table_type
from dlpack_harness import Handle


class OutOfMemoryError(RuntimeError):
    """The exception that torch has under this name."""


class Torch(types.ModuleType):
    """The parts of torch that windrow needs. `current` is the stream that it works on."""

    OutOfMemoryError = OutOfMemoryError
    #: A capture was ended by a call that it forbids. In this process torch then stays on the capture's stream, and its
    #: allocator waits for the capture's end.
    has_lost_a_capture = False

    def __init__(self, driver, stream):
        super().__init__("torch")
        self.driver, self.current = driver, [stream]
        self.made, self.unused, self.busy, self.owned, self.locked = [], {}, [], [], []
        self.available, self.initialized, self.refusals = True, True, 0
        self.cuda = types.SimpleNamespace(
            is_available=lambda: self.available,
            is_initialized=lambda: self.initialized,
            stream=self.on,
            default_stream=lambda ordinal: LEGACY,
            ExternalStream=lambda handle, ordinal: handle,
        )
        self.Tensor = tensor_type(self)
        for name in oracle.STORAGE:
            if name not in ("float8_e3m4", "uint16"):
                setattr(self, name, name)

    @contextlib.contextmanager
    def on(self, stream):
        before, self.current[0] = self.current[0], stream
        try:
            yield
        finally:
            self.current[0] = before

    @contextlib.contextmanager
    def graph(self, stream):
        """Captures as `torch.cuda.graph` does: what comes on `stream`, the current one meanwhile, goes into a graph."""
        with self.on(stream):
            self.driver.cuStreamBeginCapture_v2(stream, 0)
            graph, runnable, call = c_void_p(), c_void_p(), {}
            try:
                yield call
            finally:
                Torch.has_lost_a_capture = True
                self.driver.cuStreamEndCapture(stream, byref(graph))
                Torch.has_lost_a_capture = False
        self.driver.cuGraphInstantiateWithFlags(byref(runnable), graph, 0)
        self.driver.cuGraphDestroy(graph)
        call["replay"] = lambda: self.driver.cuGraphLaunch(runnable, stream)
        call["free"] = lambda: self.driver.cuGraphExecDestroy(runnable)

    def empty(self, shape, *, dtype, device="cpu", pin_memory=False):
        if pin_memory:
            return self.Tensor(np.zeros(shape, oracle.STORAGE[dtype]), dtype=dtype, place="pinned")
        assert device == "cuda:0" and not self.has_lost_a_capture
        if self.refusals:
            self.refusals -= 1
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate a lot")
        tensor = self.Tensor(np.zeros(shape, oracle.STORAGE[dtype]), dtype=dtype, place="cache")
        self.made.append((tensor.address, tensor.stream))
        return tensor

    def block(self, size):
        """Unused memory, or new; junk either way, in the order of the current stream."""
        same = self.unused.setdefault((size, self.current[0]), [])
        if not same:
            mode = c_int(2)
            # The mode is relaxed, so that a capture goes on.
            self.driver.cuThreadExchangeStreamCaptureMode(byref(mode))
            same.append(self.driver.allocate("device", size))
            self.driver.cuThreadExchangeStreamCaptureMode(byref(mode))
            self.owned.append(same[-1])
        address = same.pop()
        self.driver.cuMemsetD8Async(address, JUNK, size, self.current[0])
        return address

    def page_locked(self, size):
        """Page-locked memory, unused or new. What its stream copies is its own to wait for: nothing copies from it here."""
        same = self.unused.setdefault((size, "pinned"), [])
        if not same:
            same.append(self.driver.allocate("pinned", size))
            self.locked.append(same[-1])
        return same.pop()

    def empty_cache(self):
        self.driver.free()
        while self.locked:
            self.driver.give_back("pinned", self.locked.pop())
        while self.owned:
            self.driver.give_back("device", self.owned.pop())


def tensor_type(torch):
    base = table_type(torch.current)

    class Tensor(base):
        def __init__(self, array, *, dtype=None, place="device", stream=None):
            array = np.array(array, order="C")
            self.place, self.stream, self.streams, self.handles = place, stream, [], []
            self.shape, self.dtype = array.shape, dtype
            if place == "device":
                super().__init__(torch.driver, array, stream=stream)
                return
            self.array, self.device = array, (CUDA if place == "cache" else 1, 0)
            self.address = array.ctypes.data
            if place == "cache":
                self.stream, self.address = torch.current[0], torch.block(max(1, array.nbytes))
            elif place == "pinned":
                self.stream, self.address = "pinned", torch.page_locked(max(1, array.nbytes))
            self.borrowed = Handle(array, device=self.device, data=self.address)

        def data_ptr(self):
            return self.address

        def record_stream(self, stream):
            self.streams.append(stream)

        # Views of row-major tensors, which are told of as their base is.

        def as_strided(self, shape, strides, first=0):
            assert list(strides) == [int(np.prod(shape[n + 1 :])) for n in range(len(shape))], "the rest has no reader here"
            return self.part(self.dtype, first * self.array.itemsize, shape)

        def narrow(self, dim, first, length):
            assert (dim, self.dtype) == (0, "uint8")
            return self.part("uint8", first, [length])

        def view(self, dtype):
            return self.part(dtype, 0, [self.array.nbytes // oracle.STORAGE[dtype].itemsize])

        def part(self, dtype, begin, shape):
            part = Tensor(np.zeros(shape, oracle.STORAGE[dtype]), dtype=dtype, place="part")
            part.base, part.address, part.streams = self, self.address + begin, self.streams
            return part

        def __del__(self):
            if self.place == "device":
                super().__del__()
            elif self.place in ("cache", "pinned"):
                unused = torch.busy if self.streams else torch.unused[max(1, self.array.nbytes), self.stream]
                unused.append(self.address)

    Tensor.__module__, Tensor.__qualname__ = "torch", "Tensor"
    return Tensor
