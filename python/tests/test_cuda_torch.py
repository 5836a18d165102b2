"""Batches of torch tensors on a device are torch tensors, in memory of its allocator. With a torch in miniature; with torch itself:
test_gpu_memory.py."""

import ctypes
import gc
import sys

import numpy as np
import pytest

import windrow as wr
from cuda_harness import JUNK, LEGACY, Cai, copy_out, fetch, later
from helpers import assert_same, paint_values, refusal, settle
from windrow import plan
from windrow.sequence import pack_rows, pack_tokens
from windrow.structure import concat_graphs, keyed_jagged, pad_images
from test_cuda_streams import ROWS, WANT
from torch_standin import OutOfMemoryError, Torch


@pytest.fixture
def torch(streams, monkeypatch):
    module = Torch(streams, streams.stream())
    monkeypatch.setitem(sys.modules, "torch", module)
    yield module
    streams.resume_all()
    gc.collect()
    wr.empty_cache()
    gc.collect()
    module.empty_cache()


@pytest.fixture
def samples(torch):
    return [torch.Tensor(row) for row in ROWS]


def read(torch, tensor):
    """The bytes of a torch tensor as its current stream finds them."""
    place = copy_out(torch.driver, tensor.address, tensor.array.nbytes, torch.current[0])

    def array():
        torch.driver.cuStreamSynchronize(torch.current[0])
        raw = ctypes.string_at(place.address, tensor.array.nbytes)
        return np.frombuffer(raw, tensor.array.dtype).reshape(tensor.array.shape)

    return array


def test_every_tensor_of_a_batch_is_torchs(torch, samples):
    batch = wr.pad([torch.Tensor(row[:n]) for n, row in enumerate(ROWS)], dims=0, mask="real")
    parts = [batch.data, batch.mask, batch.lengths]
    assert [part.data_ptr() for part in parts] == [address for address, _ in torch.made]
    tensor = batch.torch()
    assert type(tensor) is torch.Tensor and tensor is batch.data.torch() and tensor.dtype == "float32"
    want = np.zeros((5, 4, 6), np.float32)
    for n, row in enumerate(ROWS):
        want[n, :n] = row[:n]
    assert_same(read(torch, tensor)(), want)
    assert_same(read(torch, batch.lengths.torch())(), np.arange(5))
    torch.made.clear()
    ragged = wr.ragged(samples, batch_index=True)
    assert len(torch.made) == 4
    assert_same(read(torch, ragged.torch())(), np.concatenate(ROWS))
    assert_same(read(torch, ragged.offsets.torch())(), np.arange(0, 21, 4))
    assert_same(read(torch, ragged.batch_index.torch())(), np.repeat(np.arange(5), 4))


@pytest.mark.parametrize("place", ["host", "device"])
def test_leaves_and_lists_of_samples(torch, place):
    trees = [{"x": torch.Tensor(row, place=place), "y": n} for n, row in enumerate(ROWS)]
    out = wr.collate(trees, {"y": wr.Stack(device="cuda")}, device="cuda")
    assert_same(read(torch, out["x"].torch())(), WANT)
    assert_same(read(torch, out["y"].torch())(), np.arange(5))
    listed = wr.SampleList([tree["x"] for tree in trees])
    assert_same(read(torch, wr.stack(listed.take([4, 0]), device="cuda").torch())(), WANT[[4, 0]])
    table = torch.Tensor(WANT, place=place)
    assert_same(read(torch, wr.stack(wr.SampleList(table).take([3]), device="cuda").torch())(), WANT[[3]])
    assert len(torch.made) == 4


def test_a_batch_as_samples_gives_torchs_again(torch, samples):
    again = wr.stack(list(wr.stack(samples)))
    assert_same(read(torch, again.torch())(), WANT)


def test_host_samples_without_devices_of_torch(torch):
    torch.available = False
    batch = wr.stack([torch.Tensor(row, place="host") for row in ROWS], device="cuda")
    assert not torch.made
    assert_same(fetch(torch.driver, batch), WANT)


def test_torch_is_asked_once_whether_it_has_devices(torch, samples):
    asked = []
    torch.cuda.is_available = lambda: asked.append(1) or True
    for _ in range(3):
        assert type(wr.stack(samples).torch()) is torch.Tensor
    assert asked == [1]


def test_page_locked_batches_are_torchs(torch):
    """Its allocator knows what torch copies from them, and no device is waited for."""
    wr.reset_stats()
    batch = wr.stack(ROWS, device="pinned")
    tensor = batch.torch()
    assert type(tensor) is torch.Tensor and tensor is batch.data.torch() and tensor.address in torch.locked
    assert batch.device == "pinned" and wr.stats()["lent_bytes"] == batch.nbytes
    assert wr.explain(ROWS, device="pinned").device_memory == "torch"
    assert_same(batch.numpy(), WANT)
    assert batch[1].torch().address == tensor.address + WANT[0].nbytes
    assert_same(read(torch, wr.stack(list(batch), device="cuda").torch())(), WANT)
    trees = wr.collate([{"x": row, "y": n} for n, row in enumerate(ROWS)], device="pinned")
    assert_same(trees["x"].numpy(), WANT)
    assert_same(trees["y"].numpy(), np.arange(5))
    assert type(trees["y"].torch()) is torch.Tensor
    there = wr.stack([torch.Tensor(row) for row in ROWS])
    assert_same(wr.stack(list(there), device="pinned").numpy(), WANT)
    batch = wr.stack(ROWS, dtype="uint16", transform=wr.Transform(scale=0), device="pinned")
    assert batch.device == "pinned" and wr.stats()["pinned_used_bytes"] > 0


@pytest.mark.simulated("lists driver calls")
def test_dropped_page_locked_batches_wait_for_nothing(sim, torch):
    def work():
        for _ in range(40):
            wr.stack(ROWS, device="pinned").torch()

    _, calls = sim.traced(work)
    assert not any("Synchronize" in call for call in calls), calls


def test_dtypes_that_torch_lacks(torch, samples):
    batch = wr.stack(samples, dtype="uint16", transform=wr.Transform(scale=0))
    assert batch.dtype == "uint16" and not torch.made


def test_samples_of_others(torch, streams):
    batch = wr.stack([Cai(streams, row) for row in ROWS])
    assert not torch.made
    assert_same(fetch(streams, batch), WANT)


# Samples on the host, of any library, while torch uses devices


def test_samples_on_the_host_give_torchs_tensors(torch):
    before = wr.stats()
    batch = wr.pad([row[:n] for n, row in enumerate(ROWS)], dims=0, mask="real", device="cuda")
    parts = [batch.data, batch.mask, batch.lengths]
    assert [part.data_ptr() for part in parts] == [address for address, _ in torch.made]
    after = wr.stats()
    assert after["lent_bytes"] - before["lent_bytes"] == sum(part.nbytes for part in parts)
    assert after["device_bytes"] == before["device_bytes"]
    tensor = batch.torch()
    assert type(tensor) is torch.Tensor and tensor is batch.data.torch()
    assert_same(read(torch, batch.lengths.torch())(), np.arange(5))
    want = np.zeros((5, 4, 6), np.float32)
    for n, row in enumerate(ROWS):
        want[n, :n] = row[:n]
    assert_same(read(torch, tensor)(), want)
    assert tensor.stream != torch.current[0] and {*tensor.streams} == {torch.current[0]}


@pytest.mark.parametrize("make", [list, wr.SampleList, lambda rows: [{"x": row} for row in rows]])
def test_whatever_the_samples_are_in(torch, make):
    batch = wr.collate(make(ROWS), device="cuda")
    assert_same(read(torch, batch["x"].torch() if isinstance(batch, dict) else batch.torch())(), WANT)
    assert len(torch.made) == 1


def test_samples_go_up_beside_what_torch_computes(torch):
    stream = torch.current[0]
    with torch.driver.paused(stream):
        wr.stack(ROWS, device="cuda").check()
        batch = wr.stack(ROWS, device="cuda")
        batch.check()
        assert torch.current[0] == stream
        array = read(torch, batch.torch())
    assert_same(array(), WANT)


def test_work_on_another_stream_keeps_the_memory(torch, streams):
    """torch is told of it, as of memory that it made itself, and the tensor is gone long before it ends."""
    other = streams.stream()
    tensor = wr.stack(ROWS, device="cuda").torch()
    torch.driver.after(torch.current[0], other)
    with torch.driver.paused(other):
        place = copy_out(torch.driver, tensor.address, tensor.array.nbytes, other)
        tensor.record_stream(other)
        address = tensor.address
        del tensor
        settle()
        for _ in range(3):
            batch = wr.stack([np.zeros_like(row) for row in ROWS], device="cuda")
            assert batch.data_ptr() != address
            batch.check()
            del batch
    torch.driver.cuStreamSynchronize(other)
    assert_same(np.frombuffer(ctypes.string_at(place.address, WANT.nbytes), np.float32).reshape(WANT.shape), WANT)


@pytest.mark.parametrize("arena", [False, True])
def test_parts_are_views_of_torchs_tensors(torch, arena):
    """Views belong to a storage that torch knows, so that it protects them as the whole."""
    trees = [{"x": row, "n": n} for n, row in enumerate(ROWS)]
    batch = wr.collate(trees, device="cuda", arena=arena)
    whole = batch["x"].arena.torch() if arena else batch["x"].torch()
    part = batch["x"][3].torch()
    assert type(part) is torch.Tensor and tuple(part.shape) == (4, 6) and part.dtype == "float32"
    assert_same(read(torch, part)(), ROWS[3])
    if arena:
        numbers = batch["n"].torch()
        assert_same(read(torch, numbers)(), np.arange(5))
        assert_same(read(torch, batch["x"].torch())(), WANT)
        numbers.record_stream(LEGACY)
    else:
        part.record_stream(LEGACY)
    assert {*whole.streams} == {torch.current[0], LEGACY}


def test_a_torch_that_uses_no_device_lends_nothing(torch):
    torch.initialized = False
    lent = wr.stats()["lent_bytes"]
    batch = wr.stack(ROWS, device="cuda")
    assert not torch.made and wr.stats()["lent_bytes"] == lent
    assert_same(fetch(torch.driver, batch), WANT)


def test_explain_says_whose_memory_it_is(torch, streams, samples):
    there = [Cai(streams, row) for row in ROWS]
    said = [(samples, None, "torch"), (ROWS, "cuda", "torch"), (there, None, "windrow"), (ROWS, None, None)]
    for rows, device, name in said:
        explain = wr.explain(rows, device=device)
        assert explain.device_memory == explain.as_dict()["device_memory"] == name
        assert str(explain).endswith(f"device memory  of {name}") == (name is not None)
    torch.initialized = False
    assert wr.explain(ROWS, device="cuda").device_memory == "windrow"
    assert not torch.made


def test_torch_has_no_memory_for_samples_on_the_host(torch):
    stream = torch.current[0]
    torch.refusals = 2
    with pytest.raises(MemoryError):
        wr.stack(ROWS, device="cuda")
    assert torch.current[0] == stream
    torch.refusals = 1
    assert_same(read(torch, wr.stack(ROWS, device="cuda").torch())(), WANT)


# Order


def test_a_block_goes_from_batch_to_batch_in_the_order_of_the_stream(torch, samples):
    with torch.driver.paused(torch.current[0]):
        reads = []
        for n in range(5):
            batch = wr.stack(samples[n:])
            reads.append(read(torch, batch.torch()))
            del batch
            gc.collect()
            wr.stack([torch.Tensor(np.full_like(row, 9)) for row in ROWS[n:]])
    for n, array in enumerate(reads):
        assert_same(array(), WANT[n:])


def test_a_block_still_in_use_where_it_was_made(torch, samples, streams):
    """torch's stream has work queued on the block: other streams wait for it before they write."""
    other = streams.stream()
    with torch.driver.paused(torch.current[0]):
        batch = wr.stack(samples, stream=other)  # the block's own junk is queued
    assert_same(read(torch, batch.torch())(), WANT)


def test_torch_waits_for_another_stream(torch, samples, streams):
    other = streams.stream()
    with torch.driver.paused(other):
        batch = wr.stack(samples, stream=other)
        array = read(torch, batch.torch())
    assert_same(array(), WANT)


def test_a_stream_of_a_call_that_is_gone(torch, samples):
    driver = torch.driver
    other, gate = driver.stream(), driver.stream()
    with driver.paused(gate):
        driver.after(gate, other)
        batch = wr.stack(samples, stream=other)
        driver.destroy(other)
        array = read(torch, batch.torch())
    assert_same(array(), WANT)


def test_the_stream_of_an_engine_stays_with_torchs_tensors(torch):
    engine = wr.Engine()
    batch = wr.stack(ROWS, device="cuda", engine=engine)
    del engine
    gc.collect()
    assert_same(read(torch, batch.torch())(), WANT)


def test_torch_waits_for_all_of_a_batch(torch, samples, streams):
    """Lengths, offsets, masks and indices are written by the same launch as the data."""
    other = streams.stream()
    with torch.driver.paused(other):
        padded = wr.pad(samples, size=(5, 6), mask="real", stream=other)
        ragged = wr.ragged(samples, batch_index=True, stream=other)
        fields = [padded.mask, padded.lengths, ragged.offsets, ragged.lengths, ragged.batch_index]
        arrays = [read(torch, field.torch()) for field in fields]
    want = [np.tile([[True]] * 4 + [[False]], (5, 1, 6)), np.tile([4, 6], (5, 1)), np.arange(0, 21, 4), np.full(5, 4)]
    for array, expected in zip(arrays, [*want, np.repeat(np.arange(5), 4)]):
        assert_same(array(), expected)


def test_an_arena_is_one_tensor_of_torchs(torch, samples, streams):
    other = streams.stream()
    trees = [{"x": sample, "n": torch.Tensor(np.int64(n))} for n, sample in enumerate(samples)]
    with torch.driver.paused(other):
        tree = wr.collate(trees, {"x": wr.Pad(size=(5, 6), mask="real")}, arena=True, stream=other)
        arena = tree["x"].arena
        assert len(torch.made) == 1 and torch.made[0][0] == arena.data_ptr()
        array = read(torch, arena.torch())
    assert type(arena.torch()) is torch.Tensor and arena.torch() is tree["n"].arena.torch()
    raw = array()
    for key, name, want in [
        ("x", "data", np.pad(WANT, ((0, 0), (0, 1), (0, 0)))),
        ("x", "lengths", np.tile([4, 6], (5, 1))),
        ("n", "data", np.arange(5)),
    ]:
        dtype, shape, byte_offset = tree[key].arena_layout[name]
        assert_same(raw[byte_offset : byte_offset + want.nbytes].view(dtype).reshape(shape), want)
        assert_same(fetch(torch.driver, getattr(tree[key], name)), want)


def test_a_block_written_on_another_stream_is_held(torch, samples, streams):
    other = streams.stream()
    with torch.driver.paused(other):
        batch = wr.stack(samples, stream=other)
        address = batch.data_ptr()
        del batch
        settle()
        tensor = torch.Tensor(WANT, place="cache")
        assert tensor.address != address
        torch.driver.cuMemsetD8Async(tensor.address, 0, tensor.array.nbytes, torch.current[0])
    torch.driver.cuStreamSynchronize(other)
    wr.stack(samples)
    settle()
    assert address in torch.unused[WANT.nbytes, torch.current[0]]


def test_torch_is_told_of_streams_that_read(torch, samples, streams):
    other = streams.stream()
    batch = wr.stack(samples)
    tensor = batch.torch()
    assert tensor.streams == []
    assert_same(later(torch.driver, batch, other)(), WANT)
    assert_same(later(torch.driver, batch, LEGACY)(), WANT)
    assert tensor.streams == [other, LEGACY]
    torch.current[0] = elsewhere = streams.stream()
    assert batch.torch() is tensor and tensor.streams == [other, LEGACY, elsewhere]


def test_a_capture_needs_no_out(torch, samples, streams):
    """torch's allocator supports captures, so that a graph can hold a whole batch."""
    stream = torch.current[0]

    def assemble(**options):
        return wr.pad(samples, mask="real", size=(5, 6), **options)

    assemble()  # torch has the memory now
    gc.collect()
    with torch.driver.captured(stream) as graph:
        batch = assemble()
    rows = [paint_values((4, 6), "float32", 50 + n) for n in range(5)]
    for sample, row in zip(samples, rows):
        torch.driver.cuMemcpyHtoDAsync_v2(sample.address, row.ctypes.data, row.nbytes, stream)
    graph["replay"]()
    assert_same(read(torch, batch.torch())(), np.pad(rows, ((0, 0), (0, 1), (0, 0))))
    assert_same(read(torch, batch.lengths.torch())(), np.tile([4, 6], (5, 1)))
    graph["free"]()
    # Memory of another stream than that which is captured is another matter.
    other = streams.stream()
    with torch.driver.captured(other) as graph:
        with pytest.raises(ValueError, match="captured"):
            assemble(stream=other)
    graph["free"]()


# Faults


def test_out_of_memory(torch, samples):
    torch.refusals = 1
    assert_same(read(torch, wr.stack(samples).torch())(), WANT)
    torch.refusals = 2
    with pytest.raises(MemoryError, match="480") as caught:
        wr.stack(samples)
    assert isinstance(caught.value.__cause__, OutOfMemoryError)
    assert_same(read(torch, wr.stack(samples).torch())(), WANT)


def test_memory_that_does_not_fit(torch, samples, monkeypatch):
    monkeypatch.setattr(torch, "empty", lambda shape, **_: torch.Tensor(paint_values((3,), "float32"), place="cache"))
    with pytest.raises(ValueError, match="a row-major output of the allocator"):
        wr.stack(samples)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert_same(read(torch, wr.stack(samples).torch())(), WANT)


@pytest.mark.simulated("which fails when told to")
def test_a_launch_that_fails_gives_the_memory_back(sim, torch, samples):
    wr.stack(samples)
    settle()
    unused = {size: len(blocks) for size, blocks in torch.unused.items()}
    sim.fail("cuLaunchKernel", 701)
    with pytest.raises(wr.CudaError):
        wr.stack(samples)
    settle()
    assert {size: len(blocks) for size, blocks in torch.unused.items()} == unused
    assert_same(read(torch, wr.stack(samples).torch())(), WANT)


def test_nothing_is_written_beyond(torch, samples):
    whole = torch.Tensor(np.full(1 << 12, JUNK, np.uint8))
    wr.stack(samples)
    assert_same(fetch(torch.driver, wr.asarray(whole)), whole.array)


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("has_labels", [False, True])
def test_tokens_are_packed_where_they_are(torch, dtype, has_labels):
    """The result is the host's, by one launch and one copy of numbers."""
    rows = [np.arange(10, 10 + n, dtype=dtype) for n in (3, 0, 1, 260, 5)]
    features = [{"input_ids": row, **({"labels": row[::-1].copy()} if has_labels else {})} for row in rows]
    on_device = [{key: torch.Tensor(value) for key, value in feature.items()} for feature in features]
    on_device[0] = {key: torch.Tensor(value[None]) for key, value in features[0].items()}
    options = {"separator_id": -7, "position_ids_start": 2, "return_seq_idx": True}
    want = pack_tokens(features, return_tensors="np", **options)
    before = wr.stats()
    got = pack_tokens(on_device, **options)
    after = wr.stats()
    assert after["launches"] - before["launches"] == 1
    assert after["bytes_to_device"] - before["bytes_to_device"] == 8 * (1 + 260 + 6 + 5)
    assert after["bytes_to_host"] == before["bytes_to_host"]
    assert got.pop("max_seqlen") == want.pop("max_seqlen") == 260
    assert list(got) == list(want)
    for name, tensor in got.items():
        assert type(tensor) is torch.Tensor and tuple(tensor.shape) == want[name].shape, name
        assert_same(read(torch, tensor)(), want[name])


@pytest.mark.parametrize("has_labels", [False, True])
@pytest.mark.parametrize("lengths", [(3, 0, 1, 26, 5, 4), (30,), (1, 29, 12)])
def test_rows_of_a_plan_are_packed_where_they_are(torch, lengths, has_labels):
    """The result is the host's, by one launch and one copy of numbers: full rows and others, rows of many sequences and of none."""
    rows = [np.arange(10 * n, 10 * n + length) for n, length in enumerate(lengths)]
    features = [{"input_ids": row, **({"labels": -row} if has_labels else {})} for row in rows]
    there = [{key: torch.Tensor(value) for key, value in feature.items()} for feature in features]
    rows_of = plan.pack(lengths, max_tokens=30)
    options = {"pad_token_id": 7, "label_pad_token_id": -1, "separator_id": -2, "max_tokens": 30}
    for order in ([*rows_of], [[], *rows_of]):
        want = pack_rows(features, order, return_tensors="np", **options)
        before = wr.stats()
        got = pack_rows(there, order, **options)
        after = wr.stats()
        assert after["launches"] - before["launches"] == 1
        assert after["bytes_to_host"] == before["bytes_to_host"]
        assert list(got) == list(want)
        for name, tensor in got.items():
            assert type(tensor) is torch.Tensor and tuple(tensor.shape) == want[name].shape, name
            assert_same(read(torch, tensor)(), want[name])
    for samples in features, there:
        with pytest.raises(ValueError, match="row 0 of the plan has more than max_tokens=3 tokens"):
            pack_rows(samples, [[len(lengths) - 1]], max_tokens=3)


def test_tokens_in_two_places(torch):
    row = np.arange(3)
    here, there = row, torch.Tensor(row)
    for labels, features in {
        "labels": [{"input_ids": there, "labels": there}, {"input_ids": there, "labels": here}],
        "input_ids": [{"input_ids": there}, {"input_ids": here}],
    }.items():
        refusal(lambda: pack_tokens(features), wr.DeviceError, "ids and labels of one call are all on one device", path=labels, index=1)
    short = [{"input_ids": there, "labels": there}, {"input_ids": there, "labels": torch.Tensor(row[:2])}]
    refusal(lambda: pack_tokens(short), wr.ShapeError, "there is a label for each id", path="labels", index=1)
    empty = pack_tokens([{"input_ids": torch.Tensor(row[:0])}])
    assert tuple(empty["input_ids"].shape) == (1, 0)
    assert_same(read(torch, empty["cu_seqlens"])(), np.zeros(2, np.int32))


def test_images_and_keyed_values_where_they_are(torch):
    images = [paint_values((3, height, width), "uint8", height) for height, width in ((2, 5), (4, 3))]
    before = wr.stats()["launches"]
    got, want = pad_images([torch.Tensor(image) for image in images], multiple_of=4), pad_images(images, multiple_of=4, return_tensors="np")
    assert wr.stats()["launches"] - before == 1
    assert_same(read(torch, got.tensors)(), want.tensors)
    assert_same(read(torch, got.mask)(), want.mask)
    assert got.sizes == want.sizes == [(2, 5), (4, 3)]

    samples = [{"a": np.arange(3), "b": np.arange(1)}, {"a": np.arange(0), "b": np.arange(4)}]
    weights = [{key: value.astype("float32") / 2 for key, value in sample.items()} for sample in samples]
    there = [[{key: torch.Tensor(value) for key, value in tree.items()} for tree in trees] for trees in (samples, weights)]
    before = wr.stats()["launches"]
    got, want = keyed_jagged(there[0], weights=there[1]), keyed_jagged(samples, weights=weights, return_tensors="np")
    assert wr.stats()["launches"] - before == 1
    for name in ("values", "weights", "lengths", "offsets"):
        assert_same(read(torch, getattr(got, name))(), getattr(want, name))


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_graphs_are_joined_where_they_are(torch, dtype):
    """The result is the host's, by one launch and one copy of numbers."""
    sizes = [(3, 4), (0, 0), (2, 600), (5, 1)]
    graphs = [
        {"x": paint_values((nodes, 3), "float32", nodes), "edge_index": np.arange(2 * edges, dtype=dtype).reshape(2, edges) % 7}
        for nodes, edges in sizes
    ]
    there = [{key: torch.Tensor(value) for key, value in graph.items()} for graph in graphs]
    want = concat_graphs(graphs, follow_batch=["edge_index"], return_tensors="np")
    before = wr.stats()
    got = concat_graphs(there, follow_batch=["edge_index"])
    after = wr.stats()
    assert after["launches"] - before["launches"] == 1
    assert after["bytes_to_device"] - before["bytes_to_device"] == 8 * (4 + 5 + 5)
    assert (after["waits"], after["bytes_to_host"]) == (before["waits"], before["bytes_to_host"])
    assert list(got) == list(want)
    for name, tensor in got.items():
        assert type(tensor) is torch.Tensor and tuple(tensor.shape) == want[name].shape, name
        assert_same(read(torch, tensor)(), want[name])
