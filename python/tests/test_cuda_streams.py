"""Order on devices: which stream waits for which, and how long memory is kept.

Streams are stopped while a batch is assembled, so that a wait that is missing gives wrong bytes.
"""

import ctypes

import numpy as np
import pytest

import windrow as wr
from cuda_harness import CUDA, LEGACY, PER_THREAD, Cai, Dlpack, copy_out, fetch, later, plain, table_type
from dlpack_harness import IS_COPIED, DLTensor, Producer, exchange_table, managed, name_of
from helpers import assert_same, paint_values, refusal

ROWS = [paint_values((4, 6), "float32", seed) for seed in range(5)]
WANT = np.stack(ROWS)


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
def test_the_producer_is_waited_for(streams, offer, target):
    stream = streams.stream()
    make = OFFERS[offer](stream)
    if target == "cuda":
        with streams.paused(stream):
            samples = [make(streams, row, stream) for row in ROWS]
            batch = wr.stack(samples)
            read = later(streams, batch)
        assert_same(read(), WANT)
    else:
        streams.pause(stream)
        samples = [make(streams, row, stream) for row in ROWS]
        with streams.paused_briefly(stream):
            batch = wr.stack(samples, device=target)
        assert_same(batch.numpy(), WANT)


@pytest.mark.parametrize("offer", ["cai", "dlpack"])
@pytest.mark.parametrize("late", range(3))
@pytest.mark.parametrize("asked", [None, "own", LEGACY, PER_THREAD])
def test_every_distinct_producer_is_waited_for(streams, offer, asked, late):
    producers = [streams.stream() for _ in range(3)]
    consumer = streams.stream() if asked == "own" else asked
    make = OFFERS[offer](None)
    with streams.paused(producers[late]):
        samples = [make(streams, row, producers[i % 3]) for i, row in enumerate(ROWS)]
        batch = wr.stack(samples, stream=consumer)
        read = later(streams, batch, consumer or LEGACY)
    assert_same(read(), WANT)


@pytest.mark.parametrize("kept", ["list", "asarray", "table", "collate"])
def test_samples_imported_before_their_producer_is_done(streams, kept):
    stream = streams.stream()
    with streams.paused(stream):
        if kept == "table":
            batch = wr.stack(wr.SampleList(Cai(streams, WANT, stream=stream)))
        else:
            samples = [Cai(streams, row, stream=stream) for row in ROWS]
            if kept == "list":
                listed = wr.SampleList(samples[:2])
                listed.extend(samples[2:])
                batch = wr.stack(listed)
            elif kept == "collate":
                batch = wr.collate([(sample,) for sample in samples])[0]
            else:
                batch = wr.stack([wr.asarray(sample) for sample in samples])
        read = later(streams, batch)
    assert_same(read(), WANT)


def test_a_view_is_ordered_like_its_source(streams):
    stream, consumer = streams.stream(), streams.stream()
    with streams.paused(stream):
        table = Cai(streams, WANT, stream=stream)
        reads = [later(streams, view, consumer) for view in (wr.asarray(table), wr.stack(table, copy=False))]
        reads.append(later(streams, wr.SampleList(table)[0], consumer))
    for read, want in zip(reads, (WANT, WANT, ROWS[0])):
        assert_same(read(), want)


def test_our_own_tensors_are_waited_for(streams):
    producer, consumer, engine = streams.stream(), streams.stream(), wr.Engine()
    with streams.paused(producer):
        samples = [Cai(streams, row, stream=producer) for row in ROWS]
        first = wr.stack(samples)
        read = later(streams, wr.stack(list(first)[::-1], stream=consumer), consumer)
        other = later(streams, wr.stack(first, engine=engine), LEGACY)
    assert_same(read(), WANT[::-1])
    assert_same(other(), WANT)


def test_indices_on_a_device_are_waited_for(streams):
    stream = streams.stream()
    streams.pause(stream)
    index = Cai(streams, np.array([4, 1]), stream=stream)
    with streams.paused_briefly(stream):
        taken = wr.SampleList(ROWS).take(index)
    assert_same(wr.stack(taken).numpy(), WANT[[4, 1]])


def test_the_stream_of_the_array_interface(streams):
    def stack(**says):
        return wr.stack([Cai(streams, row, says=says) for row in ROWS])

    for says in ({}, {"stream": None}, {"stream": LEGACY}, {"stream": PER_THREAD}, {"stream": streams.stream()}):
        assert_same(fetch(streams, stack(**says)), WANT)
    refusal(lambda: stack(stream=0), ValueError, "sample 0", "stream 0")
    refusal(lambda: stack(stream=-3), ValueError)
    assert_same(fetch(streams, wr.stack([Cai(streams, row, version=2) for row in ROWS])), WANT)


def test_the_array_interface_is_checked(driver):
    def read(array=ROWS[0], **says):
        return wr.asarray(Cai(driver, array, says=says))

    strided = read(strides=(24 * 2, 4), shape=(2, 6))
    assert strided.strides == (12, 1) and strided.device == "cuda:0"
    assert_same(plain(strided), ROWS[0][::2])
    assert read(data=(0, False), shape=(0, 3)).shape == (0, 3)
    refusal(lambda: read(data=(0, False)), (wr.LayoutError, BufferError), "NULL")
    refusal(lambda: read(mask=ROWS[0]), wr.LayoutError, "mask")
    refusal(lambda: read(typestr=">f4"), wr.LayoutError, "typestr")
    refusal(lambda: read(strides=(24, 3)), wr.LayoutError, "strides")
    refusal(lambda: read(data=(ROWS[0].ctypes.data, False)), wr.DeviceError)
    assert read(np.zeros(3, "c8")).dtype == "complex64"


@pytest.mark.simulated("which forgets an address at once")
def test_memory_that_is_gone(sim):
    gone = Cai(sim, ROWS[0])
    address = gone.address
    del gone
    sim.free()
    refusal(lambda: wr.asarray(Cai(sim, ROWS[0], says={"data": (address, False)})), wr.DeviceError, "the driver does not know")


def test_dlpack_producers_are_told_the_stream(streams):
    stream = streams.stream()
    for asked, told in ((None, LEGACY), (0, LEGACY), (LEGACY, LEGACY), (PER_THREAD, PER_THREAD), (stream, stream)):
        samples = [Dlpack(streams, row) for row in ROWS]
        wr.stack(samples, stream=asked)
        assert [sample.asked for sample in samples] == [[told]] * len(ROWS)


@pytest.mark.parametrize("borrow", [True, False])
def test_a_table_without_a_current_stream_is_refused(driver, borrow):
    kind = table_type([None], borrow=borrow, code=-1)
    refusal(lambda: wr.stack([kind(driver, row) for row in ROWS]), wr.LayoutError, "refusal without a reason", index=0)


def test_a_device_producer_without_streams_is_refused(driver):
    class Old(Dlpack):
        def __dlpack__(self):
            raise AssertionError("asked without a stream")

    refused = refusal(lambda: wr.stack([Old(driver, ROWS[0])]), wr.LayoutError, "sample 0", "'stream'", index=0)
    # The call raises no TypeError: memory that its owner does not lend cannot be expressed, whichever class the owner's library
    # takes for that (pyarrow takes TypeError for nulls). It is the cause.
    assert isinstance(refused.__cause__, TypeError)

    class OnlyStream(Dlpack):
        def __dlpack__(self, stream):
            return super().__dlpack__(stream=stream)

    assert_same(fetch(driver, wr.stack([OnlyStream(driver, row) for row in ROWS])), WANT)

    class OldWithInterface(Old, Cai):
        pass

    sample = OldWithInterface(driver, ROWS[0])
    sample.interface = Cai(driver, ROWS[0]).interface
    sample.interface["data"] = (sample.address, False)
    assert_same(fetch(driver, wr.stack([sample])), WANT[:1])


def test_a_capsule_that_is_elsewhere_than_announced(driver):
    refusal(lambda: wr.asarray(Dlpack(driver, ROWS[0], capsule_device=(1, 0))), wr.DeviceError)
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
def test_work_goes_on_the_stream_asked_for(streams, source, wrap):
    stream = streams.stream()
    samples = ROWS if source == "cpu" else [Cai(streams, row) for row in ROWS]
    wr.stack(samples, device="cuda")
    with streams.paused(stream):
        batch = wr.stack(samples, device="cuda", stream=wrap(stream))
        # The reader needs no wait of any kind: it is on the very stream.
        read = later(streams, Unordered(batch), stream)
    assert_same(read(), WANT)


class Unordered:
    """A batch whose consumer does its own waiting."""

    def __init__(self, batch):
        self.batch, self.dtype = batch, batch.dtype

    def __dlpack__(self, *, stream, max_version):
        return self.batch.__dlpack__(stream=-1, max_version=max_version)


def test_page_locked_memory_that_is_offered_as_host_memory(streams):
    """The result of torch's `pin_memory()` is such memory: its owner may write to it after the call, however late the device."""
    for rows in (ROWS, [np.arange(16384, dtype="float32") + n for n in range(3)]):
        memory = wr.stack(rows, device="pinned").numpy()
        samples = [row for row in memory]
        assert wr.explain(samples, device="cuda").path == "upload"
        stream = streams.stream()
        with streams.paused(stream):
            batch = wr.stack(samples, device="cuda", stream=stream)
            memory[:] = 0
        assert_same(fetch(streams, batch), np.stack(rows))


def test_streams_that_are_none(driver):
    samples = [Cai(driver, row) for row in ROWS]
    for wrong in (-1, -5):
        refusal(lambda: wr.stack(samples, stream=wrong), ValueError)
    for wrong in (True, "1", 2.5, object(), Named(cuda_stream="1")):
        refusal(lambda: wr.stack(samples, stream=wrong), TypeError)
    refusal(lambda: wr.stack(samples, stream=Named(__cuda_stream__=(7, 1))), ValueError, "version 7")
    refusal(lambda: wr.collate([{"x": s} for s in samples], {"x": wr.Stack(stream=LEGACY)}), TypeError, "Stack: stream= is an argument of the call")


def test_collate_takes_a_stream(streams):
    stream = streams.stream()
    samples = [{"x": Cai(streams, row), "y": row} for row in ROWS]
    wr.stack(ROWS, device="cuda")
    with streams.paused(stream):
        tree = wr.collate(samples, stream=stream)
        read = later(streams, Unordered(tree["x"]), stream)
    assert_same(read(), WANT)


def test_a_library_with_a_current_stream_is_followed(streams):
    current = [streams.stream()]
    kind = table_type(current)
    samples = [kind(streams, row) for row in ROWS]
    with streams.paused(current[0]):
        read = later(streams, Unordered(wr.stack(samples)), current[0])
    assert_same(read(), WANT)
    # Its output goes before its samples, and what is asked for before both.
    current[0] = streams.stream()
    out = table_type([streams.stream()])(streams, np.zeros_like(WANT))
    first, second = current[0], streams.stream()
    with streams.paused(second):
        wr.stack(samples, out=out, stream=second)
        streams.cuStreamSynchronize(first)
    assert_same(later(streams, wr.asarray(out), second)(), WANT)


@pytest.mark.parametrize("offered", [Cai, Dlpack])
def test_an_output_that_is_still_in_use(streams, offered):
    """Work queued on the output's stream comes before ours: its memory may have had another user."""
    stream, samples = streams.stream(), [Cai(streams, row) for row in ROWS]
    with streams.paused(stream):
        out = offered(streams, np.zeros_like(WANT), stream=stream)
        batch = wr.stack(samples, out=out)
        read = later(streams, batch)
    assert_same(read(), WANT)


@pytest.mark.parametrize("ours", [True, False])
def test_an_output_is_ready_when_its_new_bytes_are(streams, ours):
    stream, consumer = streams.stream(), streams.stream()
    zeros = np.zeros_like(WANT)
    out = wr.stack(list(zeros), device="cuda") if ours else Cai(streams, zeros)
    samples = [Cai(streams, row) for row in ROWS]
    streams.cuCtxSynchronize()
    with streams.paused(stream):
        batch = wr.stack(samples, out=out, stream=stream)
        reads = [later(streams, batch, consumer)]
        if ours:
            reads.append(later(streams, out, consumer))
    for read in reads:
        assert_same(read(), WANT)


def test_scales_that_are_still_in_use(streams):
    """Scales are ordered as an output is: the zeros of their stream are written first."""
    stream, samples, quantize = streams.stream(), [Cai(streams, row) for row in ROWS], wr.Quantize("int8")
    want = wr.stack(ROWS, transform=quantize)
    data = Cai(streams, np.zeros(WANT.shape, "int8"))
    with streams.paused(stream):
        scales = Cai(streams, np.zeros(want.scales.shape, "float32"), stream=stream)
        batch = wr.stack(samples, out=(data, scales), transform=quantize)
        read = later(streams, batch.scales)
    assert_same(read(), want.scales.numpy())


def test_scales_of_ours_are_ready_when_their_new_bytes_are(streams):
    stream, consumer, quantize = streams.stream(), streams.stream(), wr.Quantize("int8")
    want, samples = wr.stack(ROWS, transform=quantize), [Cai(streams, row) for row in ROWS]
    # The scales are memory of another batch, so that no block has them beside the data.
    data, scales = (wr.stack(samples, transform=quantize) for _ in range(2))
    streams.cuCtxSynchronize()
    with streams.paused(stream):
        wr.stack(samples[::-1], out=(data.data, scales.scales), transform=quantize, stream=stream)
        wr.stack(samples, out=(data.data, scales.scales), transform=quantize, stream=stream)
        read = later(streams, scales.scales, consumer)
    assert_same(read(), want.scales.numpy())


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("use", ["dlpack", "sample", "output", "host"])
def test_the_stream_of_a_call_is_named_within_it_alone(streams, ours, use):
    """Its owner destroys it, and the driver gives its handle to a stream that stands still."""
    stream, consumer, gate = streams.stream(), streams.stream(), streams.stream()
    zeros = np.zeros_like(WANT)
    out = wr.stack(list(zeros), device="cuda") if ours else Cai(streams, zeros)
    samples = [Cai(streams, row) for row in ROWS]
    streams.cuCtxSynchronize()
    with streams.paused(gate):
        streams.after(gate, stream)
        batch = wr.stack(samples, out=out, stream=stream)
        streams.destroy(stream)
        if use == "dlpack":
            read = later(streams, batch, consumer)
        elif use == "sample":
            read = later(streams, wr.stack([batch[index] for index in range(len(ROWS))], stream=consumer), consumer)
        elif use == "output":
            again = wr.stack(samples[::-1], out=batch, stream=consumer)
            read = later(streams, again, consumer)
        else:
            streams.resume(gate)
            assert_same(plain(batch), WANT)
            return
    assert_same(read(), WANT[::-1] if use == "output" else WANT)


# Consumers


def slow_batch(streams, stream):
    """A batch that is not written before `stream` goes on."""
    return wr.stack([Cai(streams, row, stream=stream) for row in ROWS])


@pytest.mark.parametrize("consumer", [None, LEGACY, PER_THREAD, "own"])
def test_the_consumers_stream_waits(streams, consumer):
    stream = streams.stream()
    consumer = streams.stream() if consumer == "own" else consumer
    with streams.paused(stream):
        batch = slow_batch(streams, stream)
        capsule = batch.__dlpack__(stream=consumer, max_version=(1, 0))
        address = managed(capsule).dl_tensor.data
        place = copy_out(streams, address, batch.nbytes, consumer or LEGACY)
    streams.cuStreamSynchronize(consumer or LEGACY)
    assert ctypes.string_at(place.address, batch.nbytes) == WANT.tobytes()


def test_no_order_for_those_who_wait_themselves(streams):
    stream, consumer = streams.stream(), streams.stream()
    with streams.paused(stream):
        batch = slow_batch(streams, stream)
        batch.__dlpack__(stream=-1, max_version=(1, 0))
        assert streams.is_done(consumer)
        batch.__dlpack__(stream=consumer, max_version=(1, 0))
        assert not streams.is_done(consumer)


def test_streams_that_a_consumer_cannot_name(driver):
    batch = wr.stack(ROWS, device="cuda")
    for wrong in (0, -2, -7):
        refusal(lambda: batch.__dlpack__(stream=wrong), ValueError)
    for wrong in (object(), "1", 1.5):
        refusal(lambda: batch.__dlpack__(stream=wrong), TypeError)


def test_capsules_of_both_kinds(driver):
    batch = wr.stack(ROWS, device="cuda")
    assert batch.__dlpack_device__() == (CUDA, 0) == batch.data.__dlpack_device__()
    legacy, versioned = batch.__dlpack__(stream=1), batch.__dlpack__(stream=1, max_version=(1, 3))
    assert (name_of(legacy), name_of(versioned)) == (b"dltensor", b"dltensor_versioned")
    for capsule in (legacy, versioned):
        device = managed(capsule).dl_tensor.device
        assert (device.device_type, device.device_id) == (CUDA, 0)
    assert batch.__dlpack__(stream=1, dl_device=(CUDA, 0), copy=False)


def test_copies_for_a_consumer(streams):
    stream, consumer = streams.stream(), streams.stream()
    with streams.paused(stream):
        batch = slow_batch(streams, stream)
        capsule = batch.__dlpack__(stream=consumer, max_version=(1, 3), copy=True)
        struct = managed(capsule)
        assert struct.flags & IS_COPIED and struct.dl_tensor.data != batch.data_ptr()
        copy = later(streams, Copied(capsule, batch.dtype), consumer)
    assert_same(copy(), WANT)


class Copied:
    def __init__(self, capsule, dtype):
        self.capsule, self.dtype = capsule, dtype

    def __dlpack__(self, **_):
        return self.capsule


def test_copies_to_the_host(streams):
    stream = streams.stream()
    streams.pause(stream)
    batch = slow_batch(streams, stream)
    with streams.paused_briefly(stream):
        array = np.from_dlpack(batch, device="cpu")
    assert_same(array, WANT)
    struct = managed(batch.__dlpack__(max_version=(1, 3), dl_device=(1, 0)))
    assert struct.flags & IS_COPIED and struct.dl_tensor.device.device_type == 1
    refusal(lambda: batch.__dlpack__(dl_device=(1, 0), copy=False), BufferError)
    for wrong in ((10, 0), (9, 0), (2, 2**30), (2, 1)):
        refusal(lambda: batch.__dlpack__(dl_device=wrong), BufferError)


def test_the_array_interface_out(streams):
    stream = streams.stream()
    with streams.paused(stream):
        batch = slow_batch(streams, stream)
        interface = batch.__cuda_array_interface__
        assert (interface["version"], interface["shape"], interface["typestr"]) == (3, WANT.shape, "<f4")
        assert interface["data"] == (batch.data_ptr(), False) and interface["stream"] == LEGACY
        read = later(streams, Unordered(batch), interface["stream"])
    assert_same(read(), WANT)
    assert wr.stack([np.zeros((0, 3), "f4")], device="cuda").__cuda_array_interface__["data"][0] == 0
    bf16 = wr.stack(ROWS, dtype="bfloat16", device="cuda")
    assert not hasattr(bf16, "__cuda_array_interface__") and not hasattr(wr.stack(ROWS), "__cuda_array_interface__")


def test_our_exchange_table_orders_its_stream(streams):
    table = exchange_table(wr.Batch)
    handle = ctypes.c_void_p(77)
    current = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)(table.current_work_stream)
    assert current(CUDA, 0, ctypes.addressof(handle)) == 0 and handle.value is None
    borrow = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(table.dltensor_from_py_object_no_sync)
    stream, tensor = streams.stream(), DLTensor()
    with streams.paused(stream):
        batch = slow_batch(streams, stream)
        assert borrow(batch, ctypes.addressof(tensor)) == 0 and tensor.device.device_type == CUDA
        read = later(streams, Unordered(batch), LEGACY)
    assert_same(read(), WANT)
