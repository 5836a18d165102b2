"""A device library in miniature: memory and streams by the driver itself, offered by each interface there is.

Works with the simulated driver (`WINDROW_CUDA_DRIVER`) and with a real one, and stops streams of both.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import gc
import os
import threading
import time
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_size_t, c_uint, c_uint32, c_uint64, c_void_p

import numpy as np

import oracle
from dlpack_harness import DLPackExchangeAPI, DLPackVersion, DLTensor, Handle, exchange_capsule, managed, shape_of

CUDA, CUDA_HOST, CUDA_MANAGED = 2, 3, 13
LEGACY, PER_THREAD = 1, 2
JUNK = 0xEE
NOT_READY = 600
RESERVE = 16 << 20

# A stream that stands still blocks its channel to the device: there have to be more channels than streams. Read when the driver starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

_SIGNATURES = {
    "cuInit": [c_uint],
    "cuDeviceGetCount": [POINTER(c_int)],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
    "cuCtxSetCurrent": [c_void_p],
    "cuCtxSynchronize": [],
    "cuMemAlloc_v2": [POINTER(c_uint64), c_size_t],
    "cuMemFree_v2": [c_uint64],
    "cuMemAllocManaged": [POINTER(c_uint64), c_size_t, c_uint],
    "cuMemHostAlloc": [POINTER(c_void_p), c_size_t, c_uint],
    "cuMemFreeHost": [c_void_p],
    "cuMemcpyHtoD_v2": [c_uint64, c_void_p, c_size_t],
    "cuMemcpyHtoDAsync_v2": [c_uint64, c_void_p, c_size_t, c_void_p],
    "cuMemcpyDtoHAsync_v2": [c_void_p, c_uint64, c_size_t, c_void_p],
    "cuMemsetD8Async": [c_uint64, ctypes.c_ubyte, c_size_t, c_void_p],
    "cuStreamCreate": [POINTER(c_void_p), c_uint],
    "cuStreamDestroy_v2": [c_void_p],
    "cuStreamSynchronize": [c_void_p],
    "cuStreamWaitEvent": [c_void_p, c_void_p, c_uint],
    "cuStreamWaitValue32_v2": [c_void_p, c_uint64, c_uint32, c_uint],
    "cuStreamQuery": [c_void_p],
    "cuEventCreate": [POINTER(c_void_p), c_uint],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuEventDestroy_v2": [c_void_p],
    "cuStreamBeginCapture_v2": [c_void_p, c_int],
    "cuThreadExchangeStreamCaptureMode": [POINTER(c_int)],
    "cuStreamEndCapture": [c_void_p, POINTER(c_void_p)],
    "cuGraphInstantiateWithFlags": [POINTER(c_void_p), c_void_p, c_uint64],
    "cuGraphLaunch": [c_void_p, c_void_p],
    "cuGraphExecDestroy": [c_void_p],
    "cuGraphDestroy": [c_void_p],
}


class Live(ctypes.Structure):
    """The objects that exist in the simulated driver."""

    _fields_ = [
        (name, c_uint64)
        for name in "device_allocations device_bytes pooled_bytes pinned_allocations pinned_bytes registered pools "
        "streams events graphs graph_execs modules contexts".split()
    ]


class Driver:
    """Calls by name; a code other than 0 fails the test. A subclass can stop streams: `pause`, `resume`."""

    def __init__(self, library):
        self.library = library
        self._call("cuInit", 0)
        count, context = c_int(), c_void_p()
        self._call("cuDeviceGetCount", byref(count))
        self.num_devices = count.value
        self._call("cuDevicePrimaryCtxRetain", byref(context), 0)
        self.context = context
        self.unused, self.streams = [], []

    def allocate(self, kind, size):
        """The address of so many bytes."""
        if kind == "pinned":
            place = c_void_p()
            self.cuMemHostAlloc(byref(place), size, 0)
        else:
            place = c_uint64()
            self.cuMemAllocManaged(byref(place), size, 1) if kind == "managed" else self.cuMemAlloc_v2(byref(place), size)
        return place.value

    def free(self):
        """Frees the memory of objects that are gone."""
        while self.unused:
            self.give_back(*self.unused.pop())

    def give_back(self, kind, address):
        (self.cuMemFreeHost if kind == "pinned" else self.cuMemFree_v2)(address)

    def _call(self, name, *arguments):
        code = self._code(name, *arguments)
        assert code == 0, f"{name} returned {code}"

    def _code(self, name, *arguments):
        function = getattr(self.library, name)
        function.argtypes = _SIGNATURES[name]
        return function(*arguments)

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments):
            self._call("cuCtxSetCurrent", self.context)
            self._call(name, *arguments)

        return call

    def stream(self):
        """A new stream without order against the default one. It is gone after the test, or by `destroy`."""
        handle = c_void_p()
        self.cuStreamCreate(byref(handle), 1)
        self.streams.append(handle.value)
        return handle.value

    def destroy(self, stream):
        self.streams.remove(stream)
        self.cuStreamDestroy_v2(stream)

    def is_done(self, stream):
        """Whether a stream has done all that was asked of it."""
        self._call("cuCtxSetCurrent", self.context)
        code = self._code("cuStreamQuery", stream)
        assert code in (0, NOT_READY), f"cuStreamQuery returned {code}"
        return code == 0

    def after(self, producer, consumer):
        """Later work on `consumer` waits for the work on `producer`."""
        event = c_void_p()
        self.cuEventCreate(byref(event), 2)
        self.cuEventRecord(event, producer)
        self.cuStreamWaitEvent(consumer, event, 0)
        self.cuEventDestroy_v2(event)

    @contextlib.contextmanager
    def captured(self, stream):
        """Work on `stream` goes into a graph; the block gets a function that replays it, and one that frees it."""
        graph, runnable, call = c_void_p(), c_void_p(), {}
        self.cuStreamBeginCapture_v2(stream, 1)
        yield call
        self.cuStreamEndCapture(stream, byref(graph))
        self.cuGraphInstantiateWithFlags(byref(runnable), graph, 0)
        self.cuGraphDestroy(graph)
        call["replay"] = lambda: self.cuGraphLaunch(runnable, stream)
        call["free"] = lambda: self.cuGraphExecDestroy(runnable)

    @contextlib.contextmanager
    def paused(self, *streams):
        """The streams begin nothing until the end of the block, when others have had time to go ahead."""
        # A collection meanwhile could free an engine of an earlier test, which waits for the device.
        gc.disable()
        for stream in streams:
            self.pause(stream)
        try:
            yield
            time.sleep(0.005)
        finally:
            for stream in streams:
                self.resume(stream)
            gc.enable()

    @contextlib.contextmanager
    def paused_briefly(self, *streams, seconds=0.05):
        """Stops streams as `paused` does, for calls that wait: another thread resumes them after `seconds`."""
        for stream in streams:
            self.pause(stream)
        timer = threading.Timer(seconds, lambda: [self.resume(stream) for stream in streams])
        timer.start()
        try:
            yield
        finally:
            timer.join()


class SimulatedDriver(Driver):
    """The simulated driver, with its controls."""

    is_simulated = True

    def pause(self, stream):
        self._set_paused(stream, True)

    def resume(self, stream):
        self._set_paused(stream, False)

    def _set_paused(self, stream, paused):
        function = self.library.cudasim_pause
        function.argtypes = [c_void_p, c_int]
        assert function(stream, paused)

    def resume_all(self):
        self.release()
        for stream in self.streams:
            self.resume(stream)

    def hold(self):
        self.library.cudasim_hold()

    def release(self):
        self.library.cudasim_release()

    def fail(self, name, code, nth=1):
        function = self.library.cudasim_fail
        function.argtypes = [c_char_p, c_uint64, c_uint]
        function.restype = None
        function(name.encode(), nth, code)

    def reset(self):
        self.library.cudasim_reset()

    def traced(self, work):
        """The result of `work`, and the driver calls that it makes."""
        self.library.cudasim_trace(1)
        result = work()
        calls = self._lines("cudasim_take_trace")
        self.library.cudasim_trace(0)
        return result, calls

    def most_blocks(self, work):
        """How many blocks the largest launch of `work` has."""
        self.library.cudasim_trace(1)
        work()
        self.library.cudasim_most_blocks.restype = c_uint64
        blocks = self.library.cudasim_most_blocks()
        self.library.cudasim_trace(0)
        return blocks

    def steady_calls(self, work):
        """How often `work` makes each driver call, once what it keeps for later is there and nothing is under way."""
        for _ in range(6):
            work()
        self.cuCtxSynchronize()
        return collections.Counter(call.split(" ")[0] for call in self.traced(work)[1])

    def misuse(self):
        """Wrong calls, and writes outside of allocations."""
        self.library.cudasim_check_memory()
        return self._lines("cudasim_take_errors")

    def _lines(self, name):
        function = getattr(self.library, name)
        function.restype = c_void_p
        text = function()
        lines = ctypes.string_at(text).decode().splitlines()
        self.library.cudasim_free(c_void_p(text))
        return lines

    def live(self):
        live = Live()
        self.library.cudasim_live(byref(live))
        return {name: getattr(live, name) for name, _ in Live._fields_}


class RealDriver(Driver):
    """A driver without controls: a stream stops at a wait for a word of page-locked memory, which the host writes later.

    A stream that has stood still for `limit` seconds goes on by itself, and its test fails at its end: some call has waited for it.
    """

    is_simulated = False
    limit = 6.0
    num_words = 1 << 14

    def __init__(self, library):
        super().__init__(library)
        # A stream has long read its word when the word's turn comes again.
        self.words, self.turn = self.allocate("pinned", 4 * self.num_words), 0
        self.reserves = {kind: [self.allocate(kind, RESERVE), 0] for kind in ("device", "pinned")}
        self.stopped, self.overdue, self.lock = {}, [], threading.Lock()

    def pause(self, stream):
        with self.lock:
            address = self.words + 4 * (self.turn % self.num_words)
            self.turn += 1
            timer = threading.Timer(self.limit, self._too_late, (stream, address))
            timer.daemon = True
            self.stopped.setdefault(stream, []).append((address, timer))
        c_uint32.from_address(address).value = 0
        self.cuStreamWaitValue32_v2(stream, address, 1, 0)
        timer.start()

    def resume(self, stream):
        with self.lock:
            waits = self.stopped.pop(stream, [])
        for address, timer in waits:
            timer.cancel()
            c_uint32.from_address(address).value = 1

    def resume_all(self):
        for stream in list(self.stopped):
            self.resume(stream)

    def _too_late(self, stream, address):
        self.overdue.append(f"stream {stream:#x}, or one that shares its channel, was waited for while it stood still")
        c_uint32.from_address(address).value = 1

    def reset(self):
        self.resume_all()

    def misuse(self):
        """The streams that were waited for."""
        overdue, self.overdue = self.overdue, []
        return overdue

    # An allocation may wait for the device: while a stream stands still, memory is what was allocated before.

    def allocate(self, kind, size):
        if kind == "managed" or not getattr(self, "stopped", None):
            return super().allocate(kind, size)
        reserve = self.reserves[kind]
        assert size <= RESERVE
        begin = reserve[1] if reserve[1] + size <= RESERVE else 0
        reserve[1] = begin + -(-size // 256) * 256
        return reserve[0] + begin

    def give_back(self, kind, address):
        begin, _ = self.reserves.get(kind, (0, 0))
        if not begin <= address < begin + RESERVE:
            super().give_back(kind, address)


def load():
    """The driver that windrow uses. With `WINDROW_TEST_DRIVER=real` the simulated one's controls are left alone."""
    library = ctypes.CDLL(os.environ.get("WINDROW_CUDA_DRIVER") or "libcuda.so.1")
    has_controls = hasattr(library, "cudasim_hold") and os.environ.get("WINDROW_TEST_DRIVER") != "real"
    return (SimulatedDriver if has_controls else RealDriver)(library)


class Memory:
    """`array`'s bytes on the device. With `stream` they arrive in the order of that stream.

    A free waits for the device, whose streams a test may have stopped: it is left to `Driver.free`.
    """

    freed = 0

    def __init__(self, driver, array, *, kind="device", stream=None):
        array = np.array(array, order="C")
        self.driver, self.array, self.kind, self.stream = driver, array, kind, stream
        self.address = driver.allocate(kind, max(1, array.nbytes))
        if kind == "pinned":
            ctypes.memmove(self.address, array.ctypes.data, array.nbytes)
        elif array.nbytes:
            if stream is None:
                driver.cuMemcpyHtoD_v2(self.address, array.ctypes.data, array.nbytes)
            else:
                self.late = Memory(driver, array, kind="pinned")
                driver.cuMemsetD8Async(self.address, JUNK, array.nbytes, stream)
                driver.cuMemcpyHtoDAsync_v2(self.address, self.late.address, array.nbytes, stream)

    def __del__(self):
        self.driver.unused.append((self.kind, self.address))
        Memory.freed += 1


class Cai(Memory):
    """The CUDA array interface. `says` goes over what it tells; None leaves a key out."""

    def __init__(self, driver, array, *, says=None, version=3, **memory):
        super().__init__(driver, array, **memory)
        self.interface = {
            "version": version,
            "shape": self.array.shape,
            "typestr": self.array.dtype.str,
            "data": (self.address, False),
            "strides": None,
        }
        if self.stream is not None and version == 3:
            self.interface["stream"] = self.stream
        self.interface.update(says or {})

    @property
    def __cuda_array_interface__(self):
        return dict(self.interface)


class Dlpack(Memory):
    """`__dlpack__` as the standard has it: the consumer's stream waits for ours."""

    device_types = {"device": CUDA, "managed": CUDA_MANAGED, "pinned": CUDA_HOST}

    def __init__(self, driver, array, *, capsule_device=None, **memory):
        super().__init__(driver, array, **memory)
        self.device = (self.device_types[self.kind], 0)
        self.capsule_device = capsule_device or self.device
        self.asked, self.handles = [], []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None):
        self.asked.append(stream)
        if self.device[0] == CUDA:
            assert stream not in (None, 0)
        if self.stream is not None and stream is not None and stream != -1:
            self.driver.after(self.stream, stream)
        handle = Handle(self.array, device=self.capsule_device, data=self.address)
        self.handles.append(handle)
        handle.kept = handle.capsule()
        return handle.kept


_FROM = ctypes.PYFUNCTYPE(c_int, ctypes.py_object, c_void_p)
_STREAM = ctypes.PYFUNCTYPE(c_int, c_int32, c_int32, c_void_p)


@_FROM
def _borrow(thing, out):
    ctypes.memmove(out, ctypes.addressof(thing.borrowed.struct.dl_tensor), ctypes.sizeof(DLTensor))
    return 0


def table_type(current, *, borrow=True, code=0):
    """A type with an exchange table whose current stream is `current[0]`, as torch's is that of the thread; `code` is its answer."""

    @_FROM
    def own(thing, out):
        handle = Handle(thing.array, device=thing.device, data=thing.address)
        thing.handles.append(handle)
        c_void_p.from_address(out).value = handle.address
        return 0

    @_STREAM
    def work_stream(kind, index, out):
        assert (kind, index) == (CUDA, 0)
        c_void_p.from_address(out).value = current[0]
        return code

    table = DLPackExchangeAPI(version=DLPackVersion(1, 3))
    table.managed_tensor_from_py_object_no_sync = ctypes.cast(own, c_void_p).value
    table.dltensor_from_py_object_no_sync = ctypes.cast(_borrow, c_void_p).value if borrow else None
    table.current_work_stream = ctypes.cast(work_stream, c_void_p).value

    class Tabled(Memory):
        __dlpack_c_exchange_api__ = exchange_capsule(table, own, work_stream)

        def __init__(self, driver, array, **memory):
            super().__init__(driver, array, **memory)
            self.device, self.handles = (Dlpack.device_types[self.kind], 0), []
            self.borrowed = Handle(self.array, device=self.device, data=self.address)

    return Tabled


def copy_out(driver, address, nbytes, stream):
    """Bytes of the device as they are when `stream` has come to this point, and nothing else is waited for."""
    place = Memory(driver, np.zeros(max(1, nbytes), np.uint8), kind="pinned")
    if nbytes:
        driver.cuMemcpyDtoHAsync_v2(place.address, address, nbytes, stream)
    return place


def later(driver, tensor, stream=LEGACY):
    """Reads a compact device tensor or batch on a stream; the array comes when it is called for."""
    capsule = tensor.__dlpack__(stream=stream, max_version=(1, 0))
    struct = managed(capsule).dl_tensor
    assert (struct.device.device_type, struct.device.device_id) == (CUDA, 0)
    storage = oracle.STORAGE[tensor.dtype]
    shape = shape_of(struct)
    nbytes = int(np.prod(shape, dtype=np.int64)) * storage.itemsize
    place = copy_out(driver, struct.data, nbytes, stream)

    def array():
        driver.cuStreamSynchronize(stream)
        return np.frombuffer(ctypes.string_at(place.address, nbytes), storage).reshape(shape)

    array.capsule = capsule
    return array


def fetch(driver, tensor, stream=LEGACY):
    """The array of a compact device tensor or batch, read on a stream."""
    return later(driver, tensor, stream)()


def plain(tensor):
    """The array of any tensor through a plain copy to the host."""
    return np.from_dlpack(tensor, device="cpu") if tensor.device.startswith("cuda") else tensor.numpy()
