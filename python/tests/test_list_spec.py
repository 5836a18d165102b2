"""`wr.List` in specs: samples of a leaf that stay separate, in one allocation."""

import copy
import pickle

import numpy as np
import pytest

import oracle
import windrow as wr
from cuda_harness import Cai, plain
from helpers import assert_same, paint_values, refusal

# Several shapes, one of which has no elements.
SHAPES = [(4, 6, 3), (2, 5, 3), (0, 1, 3), (7, 2, 3)]
LAYOUTS = {
    "row-major": lambda x: x,
    "Fortran": np.asfortranarray,
    "reversed": lambda x: np.ascontiguousarray(x[::-1])[::-1],
    "strided": lambda x: np.repeat(x, 2, 1)[:, ::2],
}
CHW = oracle.T(scale=1 / 255, mean=[0.5, 0.4, 0.3], std=[0.2, 0.3, 0.4], channel_dim=2, permute=(2, 0, 1))


def images(name, seed=0):
    return [paint_values(shape, name, seed + n) for n, shape in enumerate(SHAPES)]


def trees(arrays):
    return [{"x": x, "y": float(n), "text": "t"} for n, x in enumerate(arrays)]


def expected(arrays, src, dst=None, t=None):
    """Sample by sample, as of a stack of one."""
    return [oracle.stack([x], src, dst, t).data[0] for x in arrays]


def check(tensors, want, name):
    assert type(tensors) is list and len(tensors) == len(want)
    for tensor, array in zip(tensors, want):
        assert type(tensor) is wr.Tensor and (tensor.shape, tensor.dtype) == (array.shape, name)
        got = plain(tensor)
        assert_same(got if name != "bfloat16" else got.view(array.dtype), array, name)


def check_one_allocation(tensors, align=64):
    """Each begins where the ones before it end."""
    begin = 0
    for tensor in tensors:
        if tensor.nbytes:
            assert tensor.data_ptr() - tensors[0].data_ptr() == begin
        begin += -(-tensor.nbytes // align) * align


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["float32", "uint8", "bool", "bfloat16"])
def test_samples_stay_separate(name, layout):
    arrays = [LAYOUTS[layout](x) for x in images(name)]
    given = arrays
    if name == "bfloat16":
        torch = pytest.importorskip("torch")
        if layout == "reversed":
            pytest.skip("torch has no negative strides")
        given = [torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) for x in arrays]
    batch = wr.collate(trees(given), {"x": wr.List()})
    check(batch["x"], expected(arrays, name), name)
    check_one_allocation(batch["x"])
    assert batch["y"].numpy().tolist() == [0, 1, 2, 3] and batch["text"] == ["t"] * 4
    for tensor in batch["x"]:
        tensor.numpy()[...] = 0  # Memory of their own.
    assert all(np.array_equal(x, y) for x, y in zip(arrays, images(name)))


@pytest.mark.parametrize("src, dst", [("uint8", "float32"), ("float32", "float16"), ("float64", "float32")])
def test_arithmetic_and_casts(src, dst):
    arrays = images(src)
    spec = wr.List(dtype=dst, transform=wr.Transform(**CHW.arguments()))
    check(wr.collate(trees(arrays), {"x": spec})["x"], expected(arrays, src, dst, CHW), dst)
    check(wr.collate(trees(arrays), {"x": wr.List(dtype=dst)})["x"], expected(arrays, src, dst), dst)
    mixed = [x.astype("float64") if n % 2 else x for n, x in enumerate(arrays)]
    check(wr.collate(trees(mixed), {"x": wr.List(dtype=dst)})["x"], expected(arrays, src, dst), dst)


def test_all_kinds_of_samples():
    arrays = images("float32")
    want = expected(arrays, "float32")
    check(wr.collate(arrays, wr.List()), want, "float32")
    check(wr.collate(wr.SampleList(arrays), wr.List()), want, "float32")
    check(wr.collate(wr.SampleList(trees(arrays)), {"x": wr.List()})["x"], want, "float32")
    check(wr.collate([wr.asarray(x) for x in arrays], wr.List()), want, "float32")
    check(wr.collate([{"x": [1, 2]}, {"x": [3]}, {"x": []}], {"x": wr.List()})["x"], [np.array(x) for x in ([1, 2], [3], np.zeros(0, int))], "int64")
    check(wr.collate([1.5, 2.5], wr.List()), [np.float64(1.5), np.float64(2.5)], "float64")
    check(wr.collate([np.zeros((0, 3), "float32")] * 2, wr.List()), [np.zeros((0, 3), "float32")] * 2, "float32")
    two = wr.collate([{"a": x, "b": x} for x in arrays], {"*": wr.List()})
    check(two["a"], want, "float32")
    check(two["b"], want, "float32")


def test_it_outlives_the_other_leaves():
    batch = wr.collate(trees(images("float32")), {"x": wr.List()})
    last = batch["x"].pop()
    del batch
    assert_same(last.numpy(), images("float32")[-1], "float32")


def test_in_an_arena_with_all_leaves():
    batch = wr.collate(trees(images("float32")), {"x": wr.List()}, arena=True)
    check(batch["x"], expected(images("float32"), "float32"), "float32")
    begin = batch["y"].arena.data_ptr()
    assert all(begin <= x.data_ptr() < begin + batch["y"].arena.nbytes for x in batch["x"] if x.nbytes)
    assert wr.collate(trees(images("float32")), {"x": wr.List()})["y"].arena is None


def test_pickles():
    spec = wr.List(dtype="float32")
    assert pickle.loads(pickle.dumps(spec)) == spec != wr.List() and repr(spec) == "List(dtype='float32')"
    tensors = wr.collate(images("float32"), wr.List())
    check(pickle.loads(pickle.dumps(tensors)), expected(images("float32"), "float32"), "float32")
    check(copy.deepcopy(tensors), expected(images("float32"), "float32"), "float32")


def test_errors_have_sample_and_path():
    arrays = images("float32")

    def refused(x, kind, *texts, spec=wr.List(), **attributes):
        refusal(lambda: wr.collate(trees([*arrays, x]), {"x": spec}), kind, *texts, **attributes)

    cure = r'sample 4 at "x": expected float32, got float64; spec=\{"x": wr.List\(dtype=...\)\} casts on the way'
    refused(np.ones(3), wr.DTypeError, cure, index=4, path="x", expected="float32", got="float64")
    refused(None, TypeError, 'sample 4 at "x": expected an array-like, got NoneType', index=4, path="x")
    permuted = wr.List(transform=wr.Transform(permute=(2, 0, 1)))
    refused(np.ones(3, "float32"), ValueError, 'at "x": sample 4: permute=.* for samples of 1 dims', spec=permuted)
    channels = wr.List(transform=wr.Transform(mean=[1, 2, 3], channel_dim=2))
    refused(np.ones((2, 2, 4), "float32"), wr.ShapeError, 'sample 4 at "x": expected 3 channels', spec=channels, index=4, path="x")
    ints = wr.List(transform=wr.Transform(scale=2))
    refusal(lambda: wr.collate(images("uint8"), ints), wr.DTypeError, "sample 0.*float32", index=0)
    refusal(lambda: wr.collate([], wr.List()), ValueError, "cannot assemble an empty list of samples")
    refusal(lambda: wr.collate(trees(arrays), {"text": wr.List()}), ValueError, "of str or bytes")
    refusal(lambda: wr.List(stream=1), TypeError, "stream")
    refusal(lambda: wr.List(dtype="float31"), TypeError, "float31")
    refusal(lambda: wr.explain(arrays, "List"), ValueError, "form must be")


def test_no_place_for_them_in_outputs_and_views():
    samples, spec = trees(images("float32")), {"x": wr.List()}
    refusal(lambda: wr.collate(samples, spec, copy=False), ValueError, 'leaf at "x": copy=False asks for a view', path="x")
    y = np.zeros(4)
    out = {"x": [np.zeros(3)], "y": y, "text": None}
    refusal(lambda: wr.collate(samples, spec, out=out), ValueError, 'leaf at "x": out= has no place', path="x")
    assert not y.any()
    batch = wr.collate(samples, spec, out={"x": None, "y": y, "text": None})
    check(batch["x"], expected(images("float32"), "float32"), "float32")
    assert y.tolist() == [0, 1, 2, 3]
    views = wr.collate(samples, spec, copy=None)
    check(views["x"], expected(images("float32"), "float32"), "float32")


def test_nothing_is_written_before_all_is_checked():
    y = np.zeros(2)
    samples = [{"y": 1.0, "x": np.ones(2)}, {"y": 2.0, "x": np.ones(2, "float32")}]
    refusal(lambda: wr.collate(samples, {"x": wr.List()}, out={"x": None, "y": y}), wr.DTypeError, index=1, path="x")
    assert not y.any()


def test_the_plan_has_each_sample():
    plan = wr.explain(trees(images("float32")), "collate", spec={"x": wr.List()})
    assert plan.names == ["x"] * 4 + ["y"] and plan.launches == 0 and plan.samples == 4
    assert [shape for shape, _ in plan.outputs] == [*((1, *shape) for shape in SHAPES), (4,)]


def test_engines_of_specs():
    engine = wr.Engine(threads=1)
    batch = wr.collate(trees(images("float32")), {"x": wr.List(), "y": wr.Stack(engine=engine)})
    check(batch["x"], expected(images("float32"), "float32"), "float32")
    assert engine.stats()["samples"] == 4


def test_engines_of_specs_around_it_in_torch():
    pytest.importorskip("torch")
    from windrow.torch import collate_fn

    engine, arrays = wr.Engine(threads=1), images("float32")
    spec = {"a": wr.Stack(engine=engine), "x": wr.List(), "b": wr.Stack(engine=engine)}
    batch = collate_fn(spec)([{"a": n, "x": x, "b": -n} for n, x in enumerate(arrays)])
    assert (batch["a"].tolist(), batch["b"].tolist()) == ([0, 1, 2, 3], [0, -1, -2, -3])
    assert [tensor.tolist() for tensor in batch["x"]] == [x.tolist() for x in arrays]


# Devices


@pytest.mark.parametrize("source", ["cpu", "cuda"])
def test_on_a_device_it_is_one_launch(driver, source):
    arrays = images("float32")
    place = (lambda x: Cai(driver, x)) if source == "cuda" else (lambda x: x)
    samples = [{"x": place(x), "y": place(np.float32(n))} for n, x in enumerate(arrays)]
    t = wr.Transform(**CHW.arguments())
    spec, engine = {"x": wr.List(dtype="float16", transform=t), "y": wr.Stack()}, wr.Engine()
    batch = wr.collate(samples, spec, device="cuda", engine=engine)
    assert engine.stats()["launches"] == 1
    check(batch["x"], expected(arrays, "float32", "float16", CHW), "float16")
    check_one_allocation(batch["x"], 256)
    assert all(tensor.device == "cuda:0" for tensor in batch["x"])
    assert plain(batch["y"]).tolist() == [0, 1, 2, 3]
    ragged = wr.collate(samples, {"x": wr.List(), "y": wr.Stack()}, device="cpu")
    check(ragged["x"], expected(arrays, "float32"), "float32")


def test_beside_lengths_on_a_device(driver):
    rows = [np.arange(n, dtype=np.int32) for n in (3, 0, 2)]
    samples = [{"x": Cai(driver, x), "ids": Cai(driver, x)} for x in rows]
    batch = wr.collate(samples, {"x": wr.List(), "ids": wr.Ragged()})
    check(batch["x"], rows, "int32")
    assert plain(batch["ids"].offsets).tolist() == [0, 3, 3, 5] and plain(batch["ids"]).tolist() == [0, 1, 2, 0, 1]


def test_samples_in_several_places(driver):
    samples = [{"x": np.ones(2)}, {"x": Cai(driver, np.ones(2))}]
    refusal(lambda: wr.collate(samples, {"x": wr.List()}), wr.DeviceError, 'sample 1 at "x"', index=1, path="x", expected="cpu", got="cuda:0")


# Other libraries


def torch_trees(torch, arrays):
    return [{"x": torch.from_numpy(x), "y": float(n)} for n, x in enumerate(arrays)]


@pytest.mark.parametrize("arena", [False, True])
def test_tensors_of_torch(torch, arena):
    import windrow.torch

    collate = windrow.torch.collate_fn({"x": wr.List()}, arena=arena)
    batch = collate(torch_trees(torch, images("float32")))
    assert type(batch["x"]) is list and batch["y"].tolist() == [0, 1, 2, 3]
    for tensor, want in zip(batch["x"], images("float32")):
        assert type(tensor) is torch.Tensor and tensor.shape == want.shape
        assert torch.equal(tensor, torch.from_numpy(want))
    check_one_allocation([wr.asarray(tensor) for tensor in batch["x"]])
    refusal(lambda: collate(torch_trees(torch, [*images("float32"), np.ones(2)])), wr.DTypeError, index=4, path="x")


class Shared:
    """The tensors that are in shared memory before torch sends them, and whether that is one segment."""

    def __init__(self, collate):
        self.collate = collate

    def __call__(self, samples):
        made = self.collate(samples)["x"]
        full = [tensor for tensor in made if tensor.numel()]
        return made, all(x.is_shared() for x in full), len({x.untyped_storage().data_ptr() for x in full})


@pytest.mark.parametrize("memory", [None, 0])
@pytest.mark.parametrize("arena", [False, True])
@pytest.mark.parametrize("factor", [1, 1000])
def test_tensors_of_workers(torch, factor, arena, memory):
    """Batches are in one segment of torch's, or, by default, in blocks that are used again, which no tensor calls shared."""
    import windrow.torch
    from torch.utils.data import DataLoader

    arrays = [np.repeat(x, factor, 0) for x in images("float32")]
    collate = Shared(windrow.torch.collate_fn({"x": wr.List()}, arena=arena, workers_memory=memory))
    loader = DataLoader(torch_trees(torch, arrays), batch_size=4, num_workers=1, collate_fn=collate)
    (made, are_shared, num_segments), = loader
    assert (are_shared and num_segments == 1) or memory is None
    assert all(torch.equal(tensor, torch.from_numpy(x)) for tensor, x in zip(made, arrays))


def test_arrays_of_jax(jax):
    import windrow.jax

    batch = windrow.jax.collate([{"x": x, "y": np.float32(1)} for x in images("float32")], {"x": wr.List()})
    assert type(batch["x"]) is list and batch["y"].shape == (4,)
    for array, want in zip(batch["x"], images("float32")):
        assert isinstance(array, jax.Array) and np.array_equal(array, want)


def test_classes_whose_leaves_are_tensors(torch):
    td = pytest.importorskip("tensordict")
    samples = [td.TensorDict({"x": torch.ones(2)}, [])] * 2
    refusal(lambda: wr.collate(samples, {"x": wr.List()}), ValueError, "is that of wr.List: leaves within .* are torch tensors")


def test_the_plan_of_lists_of_numbers():
    for lists in ([[1, 2, 3], [4]], [[1, 2], [3, 4]]):
        plan = wr.List().explain(lists)
        assert plan.bytes_read == plan.bytes_written == 8 * sum(map(len, lists)), plan
