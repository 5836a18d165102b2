"""``__arrow_c_device_array__``: arrays in CUDA memory, read there behind their event; what cannot be read there is refused."""

import ctypes
import gc
from ctypes import Structure, addressof, byref, c_int32, c_int64, c_void_p

import numpy as np
import pytest

import windrow as wr
from cuda_harness import Memory, fetch, plain
from helpers import assert_same, refusal
from test_arrow import FIXED, LENGTHS, fixed, lists, pa, tensors, variable
from test_arrow_hostile import _POINTER, Array


class DeviceArray(Structure):
    _fields_ = [("array", Array), ("device_id", c_int64), ("device_type", c_int32), ("sync_event", c_void_p), ("reserved", c_int64 * 3)]


class OnDevice:
    """An array of pyarrow whose numbers are copied to the device, on a stream and with an event behind that if there is one."""

    def __init__(self, driver, array, *, stream=None, **fields):
        self.driver, self.stream, self.kept, self.event = driver, stream, [], None
        self.schema, self.capsule = array.__arrow_c_device_array__()
        struct = DeviceArray.from_address(_POINTER(self.capsule, b"arrow_device_array"))
        if driver is not None:
            self.place(struct.array, array)
            struct.device_type = 2
        struct.device_id = 0
        if stream is not None:
            self.event = c_void_p()
            driver.cuEventCreate(byref(self.event), 2)
            driver.cuEventRecord(self.event, stream)
            struct.sync_event = addressof(self.event)
        for name, value in fields.items():
            setattr(struct.array if hasattr(struct.array, name) else struct, name, value)

    def place(self, struct, array):
        array = getattr(array, "storage", array)
        kind = array.type
        if pa.types.is_struct(kind):
            parts = [array.field(i) for i in range(kind.num_fields)]
        else:
            parts = [array.values] if struct.n_children else []
        children = (c_void_p * struct.n_children).from_address(struct.children) if parts else []
        for child, part in zip(children, parts):
            self.place(Array.from_address(child), part)
        if not parts and not pa.types.is_string(kind):
            buffer = array.buffers()[-1]
            self.kept.append(Memory(self.driver, np.frombuffer(buffer, np.uint8), stream=self.stream))
            (c_void_p * 2).from_address(struct.buffers)[1] = self.kept[-1].address

    def __arrow_c_device_array__(self, requested_schema=None, **kwargs):
        return self.schema, self.capsule


NUMBERS = np.arange(7, dtype="int32") * 3
CASES = {
    "numbers": (lambda: pa.array(NUMBERS), NUMBERS),
    "slice": (lambda: pa.array(NUMBERS).slice(2, 4), NUMBERS[2:6]),
    "fixed-size lists": (fixed, FIXED),
    "slice of fixed-size lists": (lambda: fixed().slice(1, 3), FIXED[1:4]),
    "tensors": (tensors, FIXED),
    "tensors in another order": (lambda: tensors([1, 0]), FIXED.transpose(0, 2, 1)),
}


@pytest.mark.parametrize("case", CASES)
def test_arrays_on_a_device_are_samples_there(driver, case):
    make, want = CASES[case]
    batch = wr.stack(OnDevice(driver, make()))
    assert batch.device == "cuda:0"
    assert_same(fetch(driver, batch), want)
    samples = wr.SampleList(OnDevice(driver, make()))
    gc.collect()
    assert_same(fetch(driver, wr.stack(samples.take([2, 0]), dtype="float64")), want[[2, 0]].astype("float64"))
    assert samples[1].device == "cuda:0"
    assert_same(wr.stack(OnDevice(driver, make()), device="cpu").numpy(), want)


def test_tables_on_a_device(driver):
    table = pa.table({"image": fixed(), "y": pa.array(NUMBERS)}).to_batches()[0].to_struct_array()
    batch = wr.collate(OnDevice(driver, table), {"image": wr.Stack(dtype="float16")})
    with np.errstate(over="ignore"):
        assert_same(fetch(driver, batch["image"]), FIXED.astype("float16"))
    assert_same(fetch(driver, batch["y"]), NUMBERS)


@pytest.mark.parametrize("case", CASES)
def test_arrays_on_a_device_are_read_behind_their_event(streams, case):
    make, want = CASES[case]
    stream = streams.stream()
    with streams.paused(stream):
        source = OnDevice(streams, make(), stream=stream)
        batch, samples = wr.stack(source), wr.SampleList(OnDevice(streams, make(), stream=stream))
        later = wr.stack(samples.take([0, 1]))
    assert_same(fetch(streams, batch), want)
    assert_same(fetch(streams, later), want[:2])
    streams.cuEventDestroy_v2(source.event)


def test_nulls_that_are_counted_or_not_there(driver):
    assert_same(fetch(driver, wr.stack(OnDevice(driver, pa.array(NUMBERS), null_count=-1))), NUMBERS)
    refusal(lambda: wr.stack(OnDevice(driver, pa.array(NUMBERS), null_count=1)), wr.LayoutError, "NULL for 1 nulls")
    holes = pa.array([1, None, 3], pa.int32())
    for count in (1, -1):
        refusal(lambda: wr.stack(OnDevice(driver, holes, null_count=count)), wr.DeviceError, "a bitmap of nulls on cuda:0", index=0)
    # Declared to have none: the bitmap is not looked at, as for arrays on the host.
    assert wr.stack(OnDevice(driver, holes, null_count=0)).shape == (3,)


@pytest.mark.parametrize("make, what", [
    (lists, "lists of several lengths"),
    (lambda: pa.array([[1]], pa.list_view(pa.int32())), "lists of several lengths"),
    (variable, "tensors of several shapes"),
    (lambda: pa.array([True, False]), "bits"),
    (lambda: fixed(np.ones((2, 3), bool)), "bits"),
    (lambda: pa.array(["a"]), "strings or bytes"),
])  # fmt: skip
def test_columns_that_are_read_on_the_host(make, what):
    """Refused before anything is read, in every build and without a driver."""
    for call in (wr.SampleList, wr.ragged, wr.collate):
        for device_type in (2, 13):
            source = OnDevice(None, make(), device_type=device_type)
            refusal(lambda: call(source), wr.DeviceError, "an Arrow array in host memory", f"got {what} on cuda:0", "copy it to the host", index=0)


def test_memory_is_where_it_is_said_to_be(driver):
    refusal(lambda: wr.stack(OnDevice(None, pa.array(NUMBERS), device_type=2)), wr.DeviceError, "memory of cuda:0, as the array says, got memory of cpu")
    refusal(lambda: wr.stack(OnDevice(driver, pa.array(NUMBERS), device_id=5)), wr.DeviceError, "memory of cuda:5, as the array says, got memory of cuda:0")
    # Managed memory is that of its device.
    assert_same(fetch(driver, wr.stack(OnDevice(driver, pa.array(NUMBERS), device_type=13))), NUMBERS)


@pytest.mark.parametrize("fields, got", [
    ({"device_type": 99}, "one on device type 99"),
    ({"device_type": 2, "device_id": -1}, "one on device -1"),
    ({"device_type": 2, "device_id": 2**40}, "one on device 1099511627776"),
    ({"sync_event": 1}, "still being written (sync_event)"),
    ({"device_type": 3, "sync_event": 1}, "still being written (sync_event)"),
])  # fmt: skip
def test_devices_that_are_not_read(fields, got):
    for call in (wr.SampleList, wr.ragged, wr.collate):
        refusal(lambda: call(OnDevice(None, lists(), **fields)), wr.DeviceError, "sample 0: expected an Arrow array in host memory", got.replace("(", r"\(").replace(")", r"\)"), index=0)
    assert len(wr.SampleList(OnDevice(None, lists(), device_type=3))) == len(LENGTHS)


def test_numbers_on_a_device_without_a_driver():
    if wr.cuda_available():
        pytest.skip("SKIP: there is a driver")
    refusal(lambda: wr.stack(OnDevice(None, pa.array(NUMBERS), device_type=2)), wr.CudaUnavailable, "")


def test_samples_keep_the_array(driver):
    source = OnDevice(driver, pa.array(NUMBERS))
    sample = wr.SampleList(source)[3]
    struct = DeviceArray.from_address(_POINTER(source.capsule, b"arrow_device_array"))
    assert struct.array.release is None, "moved out"
    gc.collect()
    assert plain(sample).tolist() == 9
