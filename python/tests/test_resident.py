"""Lists whose table is on a device, and what is known of a batch only when the device has come so far."""

import ctypes

import numpy as np
import pytest

import windrow as wr
from cuda_harness import LEGACY, Cai, Dlpack, copy_out, fetch, later, table_type
from helpers import assert_same, paint_values, refusal, settle
from windrow import CudaError

ROWS = [paint_values((4, 6), "float32", seed) for seed in range(5)]


# Batch.check


def test_a_batch_on_the_host_is_complete():
    assert wr.stack(ROWS).check() is None
    assert wr.stack(np.stack(ROWS), copy=False).check() is None
    assert wr.ragged(ROWS).check() is None


@pytest.mark.parametrize("target", ["cpu", "pinned", "cuda"])
def test_a_batch_is_waited_for(streams, target):
    stream = streams.stream()
    samples = [Cai(streams, row, stream=stream) for row in ROWS]
    streams.pause(stream)
    with streams.paused_briefly(stream):
        batch = wr.stack(samples, device=target)
        before = wr.stats()["waits"]
        assert batch.check() is None
        assert wr.stats()["waits"] == before + (target == "cuda")
    assert_same(fetch(streams, batch) if target == "cuda" else batch.numpy(), np.stack(ROWS))


@pytest.mark.simulated("which fails when told to")
def test_a_failure_of_the_device_is_raised(sim):
    batch = wr.stack([Cai(sim, row) for row in ROWS])
    sim.fail("cuEventSynchronize", 400)
    with pytest.raises(CudaError, match="cuEventSynchronize"):
        batch.check()
    assert batch.check() is None


# Indices on the device


def listed(driver, arrays):
    return wr.SampleList([Cai(driver, array) for array in arrays]).to_device("cuda")


def table(driver, arrays):
    """The rows of one tensor, which need no addresses."""
    return wr.SampleList(Cai(driver, np.stack(arrays))).to_device("cuda")


def tabled(driver, array, **memory):
    return table_type([memory.get("stream") or LEGACY])(driver, array, **memory)


CHOSEN = np.array([3, 0, -1, 4, 4, -5])


# The cost of a call, in driver calls


@pytest.mark.simulated("which lists its calls")
@pytest.mark.parametrize("num", [64, 4096])
@pytest.mark.parametrize("offered", [Cai, tabled])
def test_a_stack_of_samples_on_the_device_is_a_few_driver_calls(sim, offered, num):
    rows = paint_values((num, 4), "float32", 3)
    # The samples are in reverse, or neighbours would be merged.
    samples = wr.SampleList([offered(sim, row) for row in rows[::-1]])
    for _ in range(3):
        # Events and memory of the first calls take turns.
        wr.stack(samples)
        sim.cuCtxSynchronize()
    batch, calls = sim.traced(lambda: wr.stack(samples))
    assert len(calls) <= 10, calls
    assert not any("Memcpy" in call or "Synchronize" in call for call in calls), calls
    assert_same(fetch(sim, batch), rows[::-1])


@pytest.mark.simulated("which lists its calls")
def test_a_stack_by_indices_on_the_device_is_a_few_driver_calls(sim):
    samples, indices = listed(sim, ROWS), Cai(sim, CHOSEN)
    for _ in range(3):
        wr.stack(samples.take(indices))
        sim.cuCtxSynchronize()
    batch, calls = sim.traced(lambda: wr.stack(samples.take(indices)))
    assert len(calls) <= 10, calls
    assert not any("Memcpy" in call or "Synchronize" in call for call in calls), calls
    assert_same(fetch(sim, batch), np.stack(ROWS)[CHOSEN])


@pytest.mark.simulated("which lists its calls")
def test_the_rows_of_a_table_upload_nothing(sim):
    samples = wr.SampleList(Cai(sim, np.stack(ROWS)))
    before = wr.stats()["bytes_to_device"]
    _, calls = sim.traced(lambda: samples.to_device("cuda"))
    assert not any("Memcpy" in call for call in calls), calls
    assert wr.stats()["bytes_to_device"] == before


@pytest.mark.simulated("which lists its calls")
@pytest.mark.parametrize("made", [listed, table])
def test_a_stack_by_indices_on_the_host_is_a_few_driver_calls(sim, made):
    rows = paint_values((5000, 4), "float32", 3)
    samples = made(sim, rows)
    indices = np.random.default_rng(3).integers(0, 5000, 4096)
    for _ in range(3):
        wr.stack(samples.take(indices))
        sim.cuCtxSynchronize()
    batch, calls = sim.traced(lambda: wr.stack(samples.take(indices)))
    assert len(calls) <= 12, calls
    assert sum("Memcpy" in call for call in calls) <= 1, calls
    assert not any("Synchronize" in call for call in calls), calls
    assert_same(fetch(sim, batch), rows[indices])


@pytest.mark.simulated("which lists its calls")
@pytest.mark.parametrize("arena", [False, True])
def test_a_tree_from_the_host_is_a_few_driver_calls(sim, arena):
    trees = [{f"leaf {n}": np.full(4, 40 * i + n, "uint8") for n in range(40)} for i in range(4)]
    for _ in range(3):
        wr.collate(trees, device="cuda", arena=arena)
        sim.cuCtxSynchronize()
    batch, calls = sim.traced(lambda: wr.collate(trees, device="cuda", arena=arena))
    kinds = [sum(word in call for call in calls) for word in ("Memcpy", "cuLaunchKernel", "cuMemHostAlloc", "Synchronize")]
    assert kinds == [1, 1, 0, 0] and sum("cuEventQuery" in call for call in calls) <= 2, calls
    assert len(calls) <= 16, calls
    for n in range(40):
        assert_same(fetch(sim, batch[f"leaf {n}"]), np.stack([tree[f"leaf {n}"] for tree in trees]))


# Batches by indices on the device


@pytest.mark.parametrize("made", [listed, table])
@pytest.mark.parametrize("offer", [Cai, Dlpack, tabled])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_stack_by_indices_on_the_device(driver, made, offer, dtype):
    samples = made(driver, ROWS)
    indices = offer(driver, CHOSEN.astype(dtype))
    for batch in wr.stack(samples.take(indices)), samples.stack(indices):
        assert (batch.device, batch.shape) == ("cuda:0", (6, 4, 6))
        assert batch.check() is None
        assert_same(fetch(driver, batch), np.stack([ROWS[i] for i in CHOSEN]))
    batch = samples.stack(indices, dtype="float16", transform=wr.Transform(scale=0.5))
    assert_same(fetch(driver, batch), wr.stack([ROWS[i] for i in CHOSEN], dtype="float16", transform=wr.Transform(scale=0.5)).numpy())


def test_a_pad_by_indices_on_the_device(driver):
    arrays = [paint_values((n, 3), "float32", n) for n in (4, 0, 2, 7, 4)]
    samples = listed(driver, arrays)
    options = dict(dims=0, size=8, value=-1, mask="real", side="left")
    batch = wr.pad(samples.take(Cai(driver, CHOSEN)), **options)
    want = wr.pad([arrays[i] for i in CHOSEN], **options)
    for name in ("data", "lengths", "mask"):
        assert_same(fetch(driver, getattr(batch, name)), getattr(want, name).numpy())
    refusal(lambda: batch[0], ValueError, "lengths")


def test_nothing_is_waited_for(streams):
    stream = streams.stream()
    samples = listed(streams, ROWS)
    samples.stack(Cai(streams, CHOSEN))
    for offer in Cai, Dlpack, tabled:
        before = wr.stats()["waits"]
        with streams.paused(stream):
            batch = samples.stack(offer(streams, CHOSEN, stream=stream))
            read = later(streams, batch)
        assert wr.stats()["waits"] == before
        assert_same(read(), np.stack([ROWS[i] for i in CHOSEN]))


def test_an_index_out_of_range_is_padding_and_raised_late(driver):
    samples = listed(driver, ROWS)
    bad = Cai(driver, np.array([1, 5, -6, 0]))
    good, nothing = Cai(driver, np.array([2])), np.zeros_like(ROWS[0])
    batch = samples.stack(bad)
    assert_same(fetch(driver, batch), np.stack([ROWS[1], nothing, nothing, ROWS[0]]))
    for _ in range(2):
        with pytest.raises(IndexError, match=r"position [12] is out of range for a list of 5 samples"):
            batch.check()
    with pytest.raises(IndexError, match="an earlier batch of this list"):
        samples.take(good)
    assert samples.stack(good).check() is None
    for use in (lambda: wr.stack(samples), lambda: samples.take([0]), lambda: samples.stack(good)):
        samples.stack(bad)
        driver.cuCtxSynchronize()
        with pytest.raises(IndexError):
            use()
        use()


def test_an_index_out_of_range_of_samples_without_elements(driver):
    samples = listed(driver, [np.zeros((0, 3), "f4")] * 3)
    assert samples.stack(Cai(driver, np.array([-3, 2]))).check() is None
    batch = samples.stack(Cai(driver, np.array([0, 3])))
    refusal(batch.check, IndexError, "position 1 is out of range for a list of 3 samples")
    assert batch.shape == (2, 0, 3)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [0, 2, 1, 3]])
def test_samples_without_elements_are_alike_whatever_their_strides(driver, order):
    def view(shape, strides):
        return Cai(driver, np.arange(12, dtype="f4"), says={"shape": shape, "strides": strides})

    kinds = [view((0, 3), (12, 4)), view((0, 3), (24, 4)), view((1, 3), (12, 4)), view((2, 3), (24, 4))]
    samples = wr.SampleList([kinds[kind] for kind in order]).to_device("cuda")
    ids = np.arange(len(order))[::-1].copy()
    batch = wr.pad(samples.take(Cai(driver, ids)), size=(2, 3), dims=(0,), value=-1)
    assert batch.check() is None
    assert_same(fetch(driver, batch), fetch(driver, wr.pad(samples.take(ids), size=(2, 3), dims=(0,), value=-1)))


def test_a_list_with_replaced_samples_is_known_anew(driver):
    samples = listed(driver, ROWS)
    before = samples.take(Cai(driver, np.array([0, 1])))
    # Its cached plan is not used for the changed list.
    assert_same(fetch(driver, wr.stack(before)), np.stack(ROWS[:2]))
    samples[1] = Cai(driver, ROWS[0] + 1)
    assert_same(fetch(driver, samples.stack(Cai(driver, np.array([1, 0])))), np.stack([ROWS[0] + 1, ROWS[0]]))
    assert_same(fetch(driver, wr.stack(before)), np.stack(ROWS[:2]))


def test_a_list_that_has_grown_is_known_anew(driver):
    samples = listed(driver, ROWS)
    assert_same(fetch(driver, samples.stack(Cai(driver, np.array([4, 0])))), np.stack([ROWS[4], ROWS[0]]))
    samples.append(Cai(driver, ROWS[0] + 1))
    assert_same(fetch(driver, samples.stack(Cai(driver, np.array([5, 0])))), np.stack([ROWS[0] + 1, ROWS[0]]))
    with pytest.raises(IndexError):
        samples.stack(Cai(driver, np.array([6]))).check()


@pytest.mark.simulated("which fails when told to")
def test_a_table_that_could_not_be_made_again_is_made_later(sim):
    samples = listed(sim, ROWS)
    samples[1] = Cai(sim, ROWS[1] + 1)
    indices = Cai(sim, np.array([1]))
    sim.fail("cuMemcpyHtoDAsync_v2", 400)
    with pytest.raises(CudaError):
        samples.take(indices)
    assert_same(fetch(sim, samples.stack(indices)), (ROWS[1] + 1)[None])


def test_indices_on_the_host_cost_no_more_than_before(driver):
    rows = np.arange(5000 * 4, dtype="float32").reshape(5000, 4)
    samples = wr.SampleList(Cai(driver, rows)).to_device("cuda")
    indices = np.random.default_rng(3).integers(0, 5000, 4096)
    before = wr.stats()
    assert_same(fetch(driver, samples.stack(indices)), rows[indices])
    assert wr.stats()["bytes_to_device"] == before["bytes_to_device"]
    # Indices beyond the parameters of a launch take one copy, of 4 bytes a sample.
    indices = np.random.default_rng(3).integers(0, 5000, 20_000)
    assert_same(fetch(driver, samples.stack(indices)), rows[indices])
    assert wr.stats()["bytes_to_device"] - before["bytes_to_device"] <= 20_000 * 4 + 1024


@pytest.mark.parametrize("change", ["append", "replace", "replace twice", "move", "replace before"])
def test_a_graph_selects_from_what_the_list_had(change, streams):
    stream, rows = streams.stream(), [row.copy() for row in ROWS]
    samples = listed(streams, rows)
    indices, out = Cai(streams, np.array([4, 1, 1, 0, 3, -1])), Cai(streams, np.zeros((6, 4, 6), "float32"))
    want = np.stack([rows[i] for i in indices.array])

    taken = samples.take(indices)

    def call():
        wr.copy_many(out, taken, stream=stream) if change == "move" else wr.stack(taken, out=out, stream=stream)

    call()
    streams.cuStreamSynchronize(stream)
    if change == "replace before":
        samples[1] = Cai(streams, np.full((4, 6), 6, "float32"))
    with streams.captured(stream) as graph:
        call()
    del taken
    for value in (7, 8) if change == "replace twice" else (7,):
        other = Cai(streams, np.full((4, 6), value, "float32"))
        if change == "append":
            samples.append(other)
        else:
            samples[1] = other
        assert samples.stack(indices).check() is None
    settle()
    others = [wr.stack([np.full((4, 6), -3, "float32")], device="cuda") for _ in range(30)]
    wr.empty_cache()
    assert (fetch(streams, others[0]) == -3).all()
    graph["replay"]()
    place = copy_out(streams, out.address, out.array.nbytes, stream)
    streams.cuStreamSynchronize(stream)
    assert_same(np.frombuffer(ctypes.string_at(place.address, out.array.nbytes), "float32").reshape(6, 4, 6), want)
    graph["free"]()


def test_a_graph_reads_the_indices_each_time(streams):
    stream = streams.stream()
    kind = table_type([stream])
    samples = wr.SampleList([kind(streams, row) for row in ROWS]).to_device("cuda")
    indices, out = kind(streams, np.zeros(6, "int64")), kind(streams, np.zeros((6, 4, 6), "float32"))
    taken = samples.take(indices)
    wr.stack(taken, out=out).check()
    with streams.captured(stream) as graph:
        batch = wr.stack(taken, out=out)
    rng = np.random.default_rng(1)
    for _ in range(100):
        chosen = rng.integers(-5, 5, 6)
        streams.cuMemcpyHtoDAsync_v2(indices.address, chosen.ctypes.data, chosen.nbytes, stream)
        graph["replay"]()
        place = copy_out(streams, out.address, out.array.nbytes, stream)
        streams.cuStreamSynchronize(stream)
        got = np.frombuffer(ctypes.string_at(place.address, out.array.nbytes), "float32").reshape(6, 4, 6)
        assert_same(got, np.stack([ROWS[i] for i in chosen]))
        assert batch.check() is None
    graph["free"]()


REFUSED = {
    "host samples": (wr.DeviceError, "not moved", lambda d, s, i: wr.SampleList(ROWS).to_device("cuda")),
    "no samples": (ValueError, "empty list", lambda d, s, i: wr.SampleList().to_device("cuda")),
    "no device": (wr.DeviceError, "expected a CUDA device, got cpu", lambda d, s, i: s.to_device("cpu")),
    "dtype": (wr.DTypeError, "int32 or int64, got int16", lambda d, s, i: s.take(Cai(d, CHOSEN.astype("int16")))),
    "floats": (wr.DTypeError, "int32 or int64", lambda d, s, i: s.take(Cai(d, CHOSEN.astype("float32")))),
    "dims": (wr.ShapeError, "one dim", lambda d, s, i: s.take(Cai(d, CHOSEN.reshape(2, 3)))),
    "ragged": (ValueError, "depends on its samples", lambda d, s, i: wr.ragged(s.take(i))),
    "no size": (ValueError, "pad needs a size", lambda d, s, i: wr.pad(s.take(i), dims=0)),
    "to the host": (wr.DeviceError, "expected cuda:0, got cpu", lambda d, s, i: wr.stack(s.take(i), device="cpu")),
    "no view": (ValueError, "copy=False", lambda d, s, i: wr.stack(s.take(i), copy=False)),
    "longer than out": (
        wr.ShapeError, r"expected shape \(6, 4, 6\)",
        lambda d, s, i: wr.stack(s.take(i), out=Cai(d, np.zeros((5, 4, 6), "float32"))),
    ),
    "item": (ValueError, "indices on a device", lambda d, s, i: s.take(i)[0]),
    "append": (ValueError, "indices on a device", lambda d, s, i: s.take(i).append(ROWS[0])),
    "take again": (ValueError, "indices on a device", lambda d, s, i: s.take(i).take([0])),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_indices_on_the_device_cannot_do(driver, case):
    error, text, call = REFUSED[case]
    samples, indices = listed(driver, ROWS), Cai(driver, CHOSEN)
    with pytest.raises(error, match=text):
        call(driver, samples, indices)
    assert samples.stack(indices).check() is None
