"""Order on devices: which stream waits for which, and how long memory is kept.

Streams of the simulated driver are stopped while a batch is assembled, so that a wait that is missing gives wrong bytes.
"""

import ctypes
import gc

import numpy as np
import pytest

import windrow as wr
from cuda_harness import CUDA, LEGACY, PER_THREAD, Cai, Dlpack, copy_out, fetch, later, plain, table_type
from dlpack_harness import IS_COPIED, DLTensor, Producer, exchange_table, managed, name_of
from helpers import assert_same, paint_values, refusal

ROWS = [paint_values((4, 6), "float32", seed) for seed in range(5)]
WANT = np.stack(ROWS)


@pytest.fixture
def streams(sim):
    """A function that gives a new stream, gone after the test."""
    made = []

    def make():
        made.append(sim.stream())
        return made[-1]

    yield make
    gc.collect()
    sim.reset()
    wr.empty_cache()
    for stream in made:
        sim.cuStreamSynchronize(stream)
        sim.cuStreamDestroy_v2(stream)


def tables(stream, *, borrow=True):
    kind = table_type([stream], borrow=borrow)
    return lambda driver, array, stream: kind(driver, array, stream=stream)


OFFERS = {
    "cai": lambda stream: lambda driver, array, stream: Cai(driver, array, stream=stream),
    "dlpack": lambda stream: lambda driver, array, stream: Dlpack(driver, array, stream=stream),
    "table": tables,
    "owning table": lambda stream: tables(stream, borrow=False),
}


# Producers


@pytest.mark.parametrize("target", ["cuda", "cpu", "pinned"])
@pytest.mark.parametrize("offer", OFFERS)
def test_the_producer_is_waited_for(sim, streams, offer, target):
    stream = streams()
    make = OFFERS[offer](stream)
    if target == "cuda":
        with sim.paused(stream):
            samples = [make(sim, row, stream) for row in ROWS]
            batch = wr.stack(samples)
            read = later(sim, batch)
        assert_same(read(), WANT)
    else:
        sim.pause(stream)
        samples = [make(sim, row, stream) for row in ROWS]
        with sim.paused_briefly(stream):
            batch = wr.stack(samples, device=target)
        assert_same(batch.numpy(), WANT)


@pytest.mark.parametrize("offer", ["cai", "dlpack"])
@pytest.mark.parametrize("late", range(3))
@pytest.mark.parametrize("asked", [None, "own", LEGACY, PER_THREAD])
def test_every_distinct_producer_is_waited_for(sim, streams, offer, asked, late):
    producers = [streams() for _ in range(3)]
    consumer = streams() if asked == "own" else asked
    make = OFFERS[offer](None)
    with sim.paused(producers[late]):
        samples = [make(sim, row, producers[i % 3]) for i, row in enumerate(ROWS)]
        batch = wr.stack(samples, stream=consumer)
        read = later(sim, batch, consumer or LEGACY)
    assert_same(read(), WANT)


@pytest.mark.parametrize("kept", ["list", "asarray", "table", "collate"])
def test_samples_imported_before_their_producer_is_done(sim, streams, kept):
    stream = streams()
    with sim.paused(stream):
        if kept == "table":
            batch = wr.stack(wr.SampleList(Cai(sim, WANT, stream=stream)))
        else:
            samples = [Cai(sim, row, stream=stream) for row in ROWS]
            if kept == "list":
                listed = wr.SampleList(samples[:2])
                listed.extend(samples[2:])
                batch = wr.stack(listed)
            elif kept == "collate":
                batch = wr.collate([(sample,) for sample in samples])[0]
            else:
                batch = wr.stack([wr.asarray(sample) for sample in samples])
        read = later(sim, batch)
    assert_same(read(), WANT)


def test_a_view_is_ordered_like_its_source(sim, streams):
    stream, consumer = streams(), streams()
    with sim.paused(stream):
        table = Cai(sim, WANT, stream=stream)
        reads = [later(sim, view, consumer) for view in (wr.asarray(table), wr.stack(table, copy=False))]
        reads.append(later(sim, wr.SampleList(table)[0], consumer))
    for read, want in zip(reads, (WANT, WANT, ROWS[0])):
        assert_same(read(), want)


def test_our_own_tensors_are_waited_for(sim, streams):
    producer, consumer, engine = streams(), streams(), wr.Engine()
    with sim.paused(producer):
        samples = [Cai(sim, row, stream=producer) for row in ROWS]
        first = wr.stack(samples)
        read = later(sim, wr.stack(list(first)[::-1], stream=consumer), consumer)
        other = later(sim, wr.stack(first, engine=engine), LEGACY)
    assert_same(read(), WANT[::-1])
    assert_same(other(), WANT)


def test_indices_on_a_device_are_waited_for(sim, streams):
    stream = streams()
    sim.pause(stream)
    index = Cai(sim, np.array([4, 1]), stream=stream)
    with sim.paused_briefly(stream):
        taken = wr.SampleList(ROWS).take(index)
    assert_same(wr.stack(taken).numpy(), WANT[[4, 1]])


def test_the_stream_of_the_array_interface(sim, streams):
    def stack(**says):
        return wr.stack([Cai(sim, row, says=says) for row in ROWS])

    for says in ({}, {"stream": None}, {"stream": LEGACY}, {"stream": PER_THREAD}, {"stream": streams()}):
        assert_same(fetch(sim, stack(**says)), WANT)
    refusal(lambda: stack(stream=0), ValueError, "sample 0", "stream 0")
    refusal(lambda: stack(stream=-3), ValueError)
    assert_same(fetch(sim, wr.stack([Cai(sim, row, version=2) for row in ROWS])), WANT)


def test_the_array_interface_is_checked(sim):
    def read(array=ROWS[0], **says):
        return wr.asarray(Cai(sim, array, says=says))

    strided = read(strides=(24 * 2, 4), shape=(2, 6))
    assert strided.strides == (12, 1) and strided.device == "cuda:0"
    assert_same(plain(strided), ROWS[0][::2])
    assert read(data=(0, False), shape=(0, 3)).shape == (0, 3)
    refusal(lambda: read(data=(0, False)), (wr.LayoutError, BufferError), "NULL")
    refusal(lambda: read(mask=ROWS[0]), wr.LayoutError, "mask")
    refusal(lambda: read(typestr=">f4"), wr.LayoutError, "typestr")
    refusal(lambda: read(strides=(24, 3)), wr.LayoutError, "strides")
    refusal(lambda: read(data=(ROWS[0].ctypes.data, False)), wr.DeviceError)
    gone = Cai(sim, ROWS[0])
    address = gone.address
    del gone
    sim.free()
    refusal(lambda: read(data=(address, False)), wr.DeviceError, "the driver does not know")
    assert read(np.zeros(3, "c8")).dtype == "complex64"


def test_dlpack_producers_are_told_the_stream(sim, streams):
    stream = streams()
    for asked, told in ((None, LEGACY), (0, LEGACY), (LEGACY, LEGACY), (PER_THREAD, PER_THREAD), (stream, stream)):
        samples = [Dlpack(sim, row) for row in ROWS]
        wr.stack(samples, stream=asked)
        assert [sample.asked for sample in samples] == [[told]] * len(ROWS)


@pytest.mark.parametrize("borrow", [True, False])
def test_a_table_without_a_current_stream_is_refused(sim, borrow):
    kind = table_type([None], borrow=borrow, code=-1)
    refusal(lambda: wr.stack([kind(sim, row) for row in ROWS]), wr.LayoutError, "refusal without a reason", index=0)


def test_a_device_producer_without_streams_is_refused(sim):
    class Old(Dlpack):
        def __dlpack__(self):
            raise AssertionError("asked without a stream")

    refused = refusal(lambda: wr.stack([Old(sim, ROWS[0])]), wr.LayoutError, "sample 0", "'stream'", index=0)
    # Not the TypeError of the call: memory that its owner does not lend cannot be expressed, whichever class the owner's library
    # takes for that (pyarrow takes TypeError for nulls). It is the cause.
    assert isinstance(refused.__cause__, TypeError)

    class OnlyStream(Dlpack):
        def __dlpack__(self, stream):
            return super().__dlpack__(stream=stream)

    assert_same(fetch(sim, wr.stack([OnlyStream(sim, row) for row in ROWS])), WANT)

    class OldWithInterface(Old, Cai):
        pass

    sample = OldWithInterface(sim, ROWS[0])
    sample.interface = Cai(sim, ROWS[0]).interface
    sample.interface["data"] = (sample.address, False)
    assert_same(fetch(sim, wr.stack([sample])), WANT[:1])


def test_a_capsule_that_is_elsewhere_than_announced(sim):
    refusal(lambda: wr.asarray(Dlpack(sim, ROWS[0], capsule_device=(1, 0))), wr.DeviceError)
    refusal(lambda: wr.stack([Producer(ROWS[0], device=(10, 0))]), wr.DeviceError)


# The stream of the work


class Protocol:
    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return 0, self.handle


class Named:
    def __init__(self, **names):
        self.__dict__.update(names)


@pytest.mark.parametrize(
    "wrap", [int, Protocol, lambda h: Named(cuda_stream=h), lambda h: Named(ptr=h), lambda h: Named(__cuda_stream__=(0, h))]
)
@pytest.mark.parametrize("source", ["cpu", "cuda"])
def test_work_goes_on_the_stream_asked_for(sim, streams, source, wrap):
    stream = streams()
    samples = ROWS if source == "cpu" else [Cai(sim, row) for row in ROWS]
    wr.stack(samples, device="cuda")
    with sim.paused(stream):
        batch = wr.stack(samples, device="cuda", stream=wrap(stream))
        # Without a wait of any kind: it is on the very stream.
        read = later(sim, Unordered(batch), stream)
    assert_same(read(), WANT)


class Unordered:
    """A batch whose consumer does its own waiting."""

    def __init__(self, batch):
        self.batch, self.dtype = batch, batch.dtype

    def __dlpack__(self, *, stream, max_version):
        return self.batch.__dlpack__(stream=-1, max_version=max_version)


def test_page_locked_memory_that_is_offered_as_host_memory(sim, streams):
    """As torch's `pin_memory()` is: its owner may write to it after the call, however late the device is."""
    for rows in (ROWS, [np.arange(16384, dtype="float32") + n for n in range(3)]):
        memory = wr.stack(rows, device="pinned").numpy()
        samples = [row for row in memory]
        assert wr.explain(samples, device="cuda").path == "upload"
        stream = streams()
        with sim.paused(stream):
            batch = wr.stack(samples, device="cuda", stream=stream)
            memory[:] = 0
        assert_same(fetch(sim, batch), np.stack(rows))


def test_streams_that_are_none(sim):
    samples = [Cai(sim, row) for row in ROWS]
    for wrong in (-1, -5):
        refusal(lambda: wr.stack(samples, stream=wrong), ValueError)
    for wrong in (True, "1", 2.5, object(), Named(cuda_stream="1")):
        refusal(lambda: wr.stack(samples, stream=wrong), TypeError)
    refusal(lambda: wr.stack(samples, stream=Named(__cuda_stream__=(7, 1))), ValueError, "version 7")
    refusal(lambda: wr.collate([{"x": s} for s in samples], {"x": wr.Stack(stream=LEGACY)}), ValueError, "leaf")


def test_collate_takes_a_stream(sim, streams):
    stream = streams()
    samples = [{"x": Cai(sim, row), "y": row} for row in ROWS]
    wr.stack(ROWS, device="cuda")
    with sim.paused(stream):
        tree = wr.collate(samples, stream=stream)
        read = later(sim, Unordered(tree["x"]), stream)
    assert_same(read(), WANT)


def test_a_library_with_a_current_stream_is_followed(sim, streams):
    current = [streams()]
    kind = table_type(current)
    samples = [kind(sim, row) for row in ROWS]
    with sim.paused(current[0]):
        read = later(sim, Unordered(wr.stack(samples)), current[0])
    assert_same(read(), WANT)
    # Its output goes before its samples, and what is asked for before both.
    current[0] = streams()
    out = table_type([streams()])(sim, np.zeros_like(WANT))
    first, second = current[0], streams()
    with sim.paused(second):
        wr.stack(samples, out=out, stream=second)
        sim.cuStreamSynchronize(first)
    assert_same(later(sim, wr.asarray(out), second)(), WANT)


@pytest.mark.parametrize("offered", [Cai, Dlpack])
def test_an_output_that_is_still_in_use(sim, streams, offered):
    """Work queued on the output's stream comes before ours: its memory may have had another user."""
    stream, samples = streams(), [Cai(sim, row) for row in ROWS]
    with sim.paused(stream):
        out = offered(sim, np.zeros_like(WANT), stream=stream)
        batch = wr.stack(samples, out=out)
        read = later(sim, batch)
    assert_same(read(), WANT)


@pytest.mark.parametrize("ours", [True, False])
def test_an_output_is_ready_when_its_new_bytes_are(sim, streams, ours):
    stream, consumer = streams(), streams()
    zeros = np.zeros_like(WANT)
    out = wr.stack(list(zeros), device="cuda") if ours else Cai(sim, zeros)
    samples = [Cai(sim, row) for row in ROWS]
    sim.cuCtxSynchronize()
    with sim.paused(stream):
        batch = wr.stack(samples, out=out, stream=stream)
        reads = [later(sim, batch, consumer)]
        if ours:
            reads.append(later(sim, out, consumer))
    for read in reads:
        assert_same(read(), WANT)


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("use", ["dlpack", "sample", "output", "host"])
def test_the_stream_of_a_call_is_named_within_it_alone(sim, streams, ours, use):
    """Its owner destroys it, and the driver gives its handle to a stream that stands still."""
    stream, consumer, gate = sim.stream(), streams(), streams()
    zeros = np.zeros_like(WANT)
    out = wr.stack(list(zeros), device="cuda") if ours else Cai(sim, zeros)
    samples = [Cai(sim, row) for row in ROWS]
    sim.cuCtxSynchronize()
    with sim.paused(gate):
        sim.after(gate, stream)
        batch = wr.stack(samples, out=out, stream=stream)
        sim.cuStreamDestroy_v2(stream)
        if use == "dlpack":
            read = later(sim, batch, consumer)
        elif use == "sample":
            read = later(sim, wr.stack([batch[index] for index in range(len(ROWS))], stream=consumer), consumer)
        elif use == "output":
            again = wr.stack(samples[::-1], out=batch, stream=consumer)
            read = later(sim, again, consumer)
        else:
            sim.pause(gate, False)
            assert_same(plain(batch), WANT)
            return
    assert_same(read(), WANT[::-1] if use == "output" else WANT)


# Consumers


def slow_batch(sim, stream):
    """A batch that is not written before `stream` goes on."""
    return wr.stack([Cai(sim, row, stream=stream) for row in ROWS])


@pytest.mark.parametrize("consumer", [None, LEGACY, PER_THREAD, "own"])
def test_the_consumers_stream_waits(sim, streams, consumer):
    stream = streams()
    consumer = streams() if consumer == "own" else consumer
    with sim.paused(stream):
        batch = slow_batch(sim, stream)
        capsule = batch.__dlpack__(stream=consumer, max_version=(1, 0))
        address = managed(capsule).dl_tensor.data
        place = copy_out(sim, address, batch.nbytes, consumer or LEGACY)
    sim.cuStreamSynchronize(consumer or LEGACY)
    assert ctypes.string_at(place.address, batch.nbytes) == WANT.tobytes()


def test_no_order_for_those_who_wait_themselves(sim, streams):
    stream, consumer = streams(), streams()
    batch = slow_batch(sim, stream)
    waits = sim.library.cudasim_waits
    before = waits()
    batch.__dlpack__(stream=-1, max_version=(1, 0))
    assert waits() == before
    batch.__dlpack__(stream=consumer, max_version=(1, 0))
    assert waits() > before


def test_streams_that_a_consumer_cannot_name(sim):
    batch = wr.stack(ROWS, device="cuda")
    for wrong in (0, -2, -7):
        refusal(lambda: batch.__dlpack__(stream=wrong), ValueError)
    for wrong in (object(), "1", 1.5):
        refusal(lambda: batch.__dlpack__(stream=wrong), TypeError)


def test_capsules_of_both_kinds(sim):
    batch = wr.stack(ROWS, device="cuda")
    assert batch.__dlpack_device__() == (CUDA, 0) == batch.data.__dlpack_device__()
    legacy, versioned = batch.__dlpack__(stream=1), batch.__dlpack__(stream=1, max_version=(1, 3))
    assert (name_of(legacy), name_of(versioned)) == (b"dltensor", b"dltensor_versioned")
    for capsule in (legacy, versioned):
        device = managed(capsule).dl_tensor.device
        assert (device.device_type, device.device_id) == (CUDA, 0)
    assert batch.__dlpack__(stream=1, dl_device=(CUDA, 0), copy=False)


def test_copies_for_a_consumer(sim, streams):
    stream, consumer = streams(), streams()
    with sim.paused(stream):
        batch = slow_batch(sim, stream)
        capsule = batch.__dlpack__(stream=consumer, max_version=(1, 3), copy=True)
        struct = managed(capsule)
        assert struct.flags & IS_COPIED and struct.dl_tensor.data != batch.data_ptr()
        copy = later(sim, Copied(capsule, batch.dtype), consumer)
    assert_same(copy(), WANT)


class Copied:
    def __init__(self, capsule, dtype):
        self.capsule, self.dtype = capsule, dtype

    def __dlpack__(self, **_):
        return self.capsule


def test_copies_to_the_host(sim, streams):
    stream = streams()
    sim.pause(stream)
    batch = slow_batch(sim, stream)
    with sim.paused_briefly(stream):
        array = np.from_dlpack(batch, device="cpu")
    assert_same(array, WANT)
    struct = managed(batch.__dlpack__(max_version=(1, 3), dl_device=(1, 0)))
    assert struct.flags & IS_COPIED and struct.dl_tensor.device.device_type == 1
    refusal(lambda: batch.__dlpack__(dl_device=(1, 0), copy=False), BufferError)
    for wrong in ((10, 0), (9, 0), (2, 2**30), (2, 1)):
        refusal(lambda: batch.__dlpack__(dl_device=wrong), BufferError)


def test_the_array_interface_out(sim, streams):
    stream = streams()
    with sim.paused(stream):
        batch = slow_batch(sim, stream)
        interface = batch.__cuda_array_interface__
        assert (interface["version"], interface["shape"], interface["typestr"]) == (3, WANT.shape, "<f4")
        assert interface["data"] == (batch.data_ptr(), False) and interface["stream"] == LEGACY
        read = later(sim, Unordered(batch), interface["stream"])
    assert_same(read(), WANT)
    assert wr.stack([np.zeros((0, 3), "f4")], device="cuda").__cuda_array_interface__["data"][0] == 0
    bf16 = wr.stack(ROWS, dtype="bfloat16", device="cuda")
    assert not hasattr(bf16, "__cuda_array_interface__") and not hasattr(wr.stack(ROWS), "__cuda_array_interface__")


def test_our_exchange_table_orders_its_stream(sim, streams):
    table = exchange_table(wr.Batch)
    handle = ctypes.c_void_p(77)
    current = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)(table.current_work_stream)
    assert current(CUDA, 0, ctypes.addressof(handle)) == 0 and handle.value is None
    borrow = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(table.dltensor_from_py_object_no_sync)
    stream, tensor = streams(), DLTensor()
    with sim.paused(stream):
        batch = slow_batch(sim, stream)
        assert borrow(batch, ctypes.addressof(tensor)) == 0 and tensor.device.device_type == CUDA
        read = later(sim, Unordered(batch), LEGACY)
    assert_same(read(), WANT)
