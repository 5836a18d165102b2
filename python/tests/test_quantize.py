"""Quantize and Dequantize, beside the formulas of vLLM's quantisation by tokens and by blocks of 128, and of torchao's OCP MX."""

import copy
import pickle

import numpy as np
import pytest

import windrow as wr
from helpers import refusal

torch = pytest.importorskip("torch", reason="SKIP: torch is not installed")

LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0}
FLOAT8 = ["float8_e4m3fn", "float8_e5m2"]
SOURCES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def drawn(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-6, 7, (*shape[:-1], 1), generator=generator, dtype=torch.float32)
    return (torch.randn(*shape, generator=generator) * 2**exponents).to(dtype)


def codes(tensor):
    """The bytes of a result, or of torch's."""
    tensor = tensor.torch() if isinstance(tensor, (wr.Batch, wr.Tensor)) else tensor
    return tensor.contiguous().view(torch.uint8)


def by_groups(x, dtype, size=None, eps=1e-12):
    """vLLM: `native_per_token_group_quant_fp8` and its sibling for int8; the last group may be shorter. Data and scales."""
    largest, out, scales = LARGEST[dtype], [], []
    for group in x.to(torch.float32).split(size or x.shape[-1], dim=-1):
        amax = group.abs().amax(dim=-1, keepdim=True).clamp(min=eps)
        scale = amax / largest
        y = (group / scale).clamp(-largest, largest)
        out.append((y.round() if dtype == "int8" else y).to(getattr(torch, dtype)).view(torch.uint8))
        scales.append(scale)
    return torch.cat(out, dim=-1), torch.cat(scales, dim=-1)


def ocp_mx(x, dtype, size=32):
    """torchao: `to_mx` with `ScaleCalculationMode.FLOOR`. Data and codes of e8m0."""
    x = x.to(torch.float32)
    blocks = x.reshape(*x.shape[:-1], -1, size)
    amax = blocks.abs().amax(dim=-1, keepdim=True)
    power = (amax.view(torch.int32) >> 23 & 0xFF) - 127 - (8 if dtype == "float8_e4m3fn" else 15)
    biased = power.clamp(-127, 128) + 127
    biased = torch.where(torch.isfinite(amax), biased, torch.full_like(biased, 255)).to(torch.uint8)
    inverse = 254 - biased.to(torch.int32)
    bits = torch.where(inverse == 0, torch.full_like(inverse, 1 << 22), inverse << 23)
    bits = torch.where(inverse < 0, torch.full_like(inverse, 0x7FC00000), bits)
    y = (blocks * bits.view(torch.float32)).clamp(-LARGEST[dtype], LARGEST[dtype])
    return y.reshape(x.shape).to(getattr(torch, dtype)).view(torch.uint8), biased.squeeze(-1)


@pytest.mark.parametrize("source", SOURCES, ids=str)
@pytest.mark.parametrize("dtype", LARGEST)
def test_by_token_as_vllm(dtype, source):
    x = drawn(64, 300, dtype=source)
    batch = wr.stack(list(x), transform=wr.Quantize(dtype, eps=1e-10))
    want, scales = by_groups(x, dtype, eps=1e-10)
    assert torch.equal(codes(batch), want)
    assert torch.equal(batch.scales.torch(), scales.squeeze(-1)) and batch.dtype == dtype


@pytest.mark.parametrize("size", [128, 32, 7, 1, 300, 1000])
@pytest.mark.parametrize("dtype", LARGEST)
def test_by_block_as_vllm(dtype, size):
    x = drawn(33, 300, dtype=torch.bfloat16)
    x[3] = 0
    batch = wr.stack(list(x), transform=wr.Quantize(dtype, scale=size))
    want, scales = by_groups(x, dtype, size)
    assert torch.equal(codes(batch), want)
    assert torch.equal(batch.scales.torch(), scales)


@pytest.mark.parametrize("source", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", FLOAT8)
def test_ocp_mx_as_torchao(dtype, source):
    x = drawn(40, 256, dtype=source)
    # Powers of two and what is next to them, rows of tiny and of huge numbers.
    x[0] = 2.0 ** torch.arange(-120, 136).clamp(max=127).to(torch.float32)
    x[1] = torch.nextafter(x[0].float(), torch.tensor(0.0))
    x[2] *= 1e-38
    x[3] = x[3] * 1e-45
    x[4] = torch.finfo(source).max
    x[5, 7] = float("inf")
    x[6] = 0
    quantize = wr.Quantize(dtype, scale=32, scale_dtype="e8m0", eps=2.0**-130)
    batch = wr.stack(list(x), transform=quantize)
    want, scales = ocp_mx(x, dtype)
    assert torch.equal(codes(batch.scales), scales) and batch.scales.dtype == "float8_e8m0fnu"
    got, is_nan = codes(batch), want & 0x7F > 0x7C if dtype == "float8_e5m2" else want & 0x7F == 0x7F
    assert torch.equal(got[~is_nan], want[~is_nan])
    assert torch.isnan(batch.torch().to(torch.float32)[is_nan]).all() and is_nan.any()


def test_samples_and_tensors_as_a_whole():
    x = drawn(6, 5, 33)
    batch = wr.stack(list(x), transform=wr.Quantize("int8", scale="sample"))
    want, scales = by_groups(x.reshape(6, -1), "int8")
    assert torch.equal(codes(batch), want.reshape(x.shape)) and torch.equal(batch.scales.torch(), scales[:, 0])


FORMS = {
    "ragged": (wr.ragged, {}, [(3, 4, 40), (0, 4, 40), (5, 4, 40)]),
    "concat": (wr.concat, {"dim": 0}, [(3, 4, 40), (1, 4, 40)]),
    "middle": (wr.concat, {"dim": 1}, [(3, 4, 40), (3, 1, 40)]),
    "pad": (wr.pad, {"value": -1, "mask": "real"}, [(3, 4, 40), (1, 2, 40)]),
    "left": (wr.pad, {"side": "left", "multiple_of": (4, 1, 1)}, [(3, 4, 40), (1, 4, 40)]),
}


@pytest.mark.parametrize("scale", ["sample", "row", 16])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_scales_samples_as_alone(form, scale):
    call, options, shapes = FORMS[form]
    samples = [drawn(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    quantize = wr.Quantize("float8_e4m3fn", scale=scale)
    batch, plain = call(samples, transform=quantize, **options), call(samples, dtype="float8_e4m3fn", **options)
    assert batch.shape == plain.shape
    for index, sample in enumerate(samples):
        alone = wr.stack([sample], transform=quantize)
        assert torch.equal(codes(batch[index]), codes(alone)[0])
    scales, whole = batch.scales.torch(), call([torch.ones_like(sample) for sample in samples], **options)
    if scale == "sample":
        want = [wr.stack([sample], transform=quantize).scales.torch()[0] for sample in samples]
        assert torch.equal(scales, torch.stack(want))
        return
    assert scales.shape == whole.torch().shape[:-1] + ((3,) if scale == 16 else ())
    if options.get("value") == -1 or form == "left":
        assert (scales[~(whole.torch()[..., 0] == 1)] == 1).all()
        assert torch.equal(codes(batch)[whole.torch() != 1], codes(plain)[whole.torch() != 1])


@pytest.mark.parametrize("scale", ["sample", "row", 16])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", LARGEST)
def test_and_back_within_half_a_step(dtype, form, scale):
    call, options, shapes = FORMS[form]
    samples = [drawn(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    block = scale if isinstance(scale, int) else None
    batch = call(samples, transform=wr.Quantize(dtype, scale=scale), **options)
    given = wr.Dequantize(batch.scales, block=block)
    back = call(list(batch), dtype="float32", transform=given, **options)
    each = wr.Dequantize([wr.stack([own], transform=wr.Quantize(dtype, scale=scale)).scales.torch()[0] for own in samples], block)
    assert torch.equal(codes(call(list(batch), dtype="float32", transform=each, **options)), codes(back))
    for index, sample in enumerate(samples):
        got, own = back[index].torch(), batch[index].torch().to(torch.float32)
        alone = wr.stack([sample], transform=wr.Quantize(dtype, scale=scale))
        scales = alone.scales.torch()[0]
        wide = scales.reshape(()) if scale == "sample" else scales
        if scale != "sample":
            wide = wide[..., None] if block is None else wide.repeat_interleave(block, dim=-1)[..., : sample.shape[-1]]
        assert torch.equal(got, own * wide)
        # A step is one of int8, or the last bit of a number of so many bits.
        bits = {"int8": None, "float8_e4m3fn": 4, "float8_e5m2": 3}[dtype]
        step = 1 if bits is None else torch.maximum(own.abs() * 2.0 ** (1 - bits), torch.tensor(2.0**-9))
        assert ((got - sample).abs() <= (step / 2 * 1.001) * wide).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_products_are_rounded_from_float32(dtype):
    x = drawn(9, 50)
    batch = wr.stack(list(x), transform=wr.Quantize("float8_e5m2", scale=16, scale_dtype="e8m0"))
    back = wr.stack(batch, dtype=dtype, transform=wr.Dequantize(batch.scales, block=16))
    scales = batch.scales.torch().to(torch.float32).repeat_interleave(16, dim=-1)[:, :50]
    want = (batch.torch().to(torch.float32) * scales).to(getattr(torch, dtype))
    assert torch.equal(codes(back), codes(want))


def test_scales_over_a_sample_are_refused():
    x, data = np.ones((2, 4), "f4"), np.zeros((2, 4), "i1")
    text = "sample 0: expected memory apart from out of the scales"
    refusal(lambda: wr.stack(list(x), transform=wr.Quantize("int8"), out=(data, x[:, 0])), wr.LayoutError, text, index=0)


def test_scales_of_every_kind():
    codes8 = [np.array([[2, 3], [4, 5]], np.int8), np.array([[6, 7], [8, 9]], np.int8)]
    rows = np.array([[1, 10], [100, 1000]], np.float32)
    want = np.stack(codes8) * rows[..., None]
    def back(scales):
        return wr.stack(codes8, dtype="float32", transform=wr.Dequantize(scales)).numpy().tolist()
    for scales in (rows, torch.from_numpy(rows), wr.asarray(rows), rows.astype(np.float16), rows.astype(np.float64), list(rows)):
        assert back(scales) == want.tolist()
    assert back(rows.astype(">f4")) == want.tolist() and back([[1, 10.0], [100.0, 1000.0]]) == want.tolist()
    assert back(rows.T.copy().T) == want.tolist()
    assert back([2, 0.5]) == [[[4, 6], [8, 10]], [[3, 3.5], [4, 4.5]]]
    assert back(np.array([2, 0.5], np.float32)) == [[[4, 6], [8, 10]], [[3, 3.5], [4, 4.5]]]
    # They are read at the time of the call.
    given = wr.Dequantize(rows)
    rows *= 2
    assert wr.stack(codes8, dtype="float32", transform=given).numpy().tolist() == (2 * want).tolist()


def test_a_row_that_is_joined_or_padded_is_the_sample():
    rows = [drawn(n, seed=n) for n in (5, 1, 9)]
    for call in (wr.ragged, wr.concat, wr.pad):
        batch = call(rows, transform=wr.Quantize("int8"))
        want = [by_groups(row[None], "int8")[1].item() for row in rows]
        assert batch.scales.torch().tolist() == want
        assert call([batch[i] for i in range(3)], dtype="float32", transform=wr.Dequantize(batch.scales)).shape == batch.shape
    assert wr.stack([1.5, -3.0], transform=wr.Quantize("int8")).scales.shape == (2,)
    for call in (wr.ragged, wr.concat, wr.pad):
        error = refusal(lambda call=call: call(rows, transform=wr.Quantize("int8", scale=4)), ValueError)
        assert str(error).startswith("blocks of 4 elements are along the last dim, which is the one that is joined or padded here")


@pytest.mark.parametrize("scale", ["sample", "row", 16])
def test_into_memory_of_the_callers(scale):
    x = drawn(4, 3, 40)
    quantize = wr.Quantize("float8_e4m3fn", scale=scale)
    want = wr.stack(list(x), transform=quantize)
    data = torch.full((4, 3, 80), 7, dtype=torch.uint8).view(torch.float8_e4m3fn)[..., ::2]
    scales = torch.full(tuple(want.scales.shape), 7.0)
    versions = data._version, scales._version
    batch = wr.stack(list(x), transform=quantize, out=(data, scales))
    assert (data._version, scales._version) == tuple(version + 1 for version in versions)
    assert torch.equal(data.view(torch.uint8), codes(want)) and torch.equal(scales, want.scales.torch())
    assert batch.data.data_ptr() == data.data_ptr() and batch.scales.data_ptr() == scales.data_ptr()


def test_outputs_that_do_not_fit():
    x, quantize = list(drawn(4, 40)), wr.Quantize("int8")
    data, scales = np.full((4, 40), 7, np.int8), np.full(4, 7, np.float32)
    def stack(out, transform=quantize):
        return lambda: wr.stack(x, transform=transform, out=out)
    error = refusal(stack(data), TypeError)
    assert str(error).startswith("out of a wr.Quantize must be a pair (data, scales), got array(")
    error = refusal(stack((data, scales[:3])), wr.ShapeError, expected=(4,), got=(3,))
    assert str(error) == "out of the scales: expected shape (4,), got (3,)"
    refusal(stack((data, scales.astype(np.float64))), wr.DTypeError, "out of the scales: expected float32, got float64")
    refusal(stack((data[:2], scales)), wr.ShapeError, r"^out: expected shape \(4, 40\), got \(2, 40\)$")
    memory = bytearray(160 + 16)
    inside = np.frombuffer(memory, np.int8, 160).reshape(4, 40), np.frombuffer(memory, np.float32, 4, 144)
    refusal(stack(inside), wr.LayoutError, "expected memory apart from out")
    read_only = scales.copy()
    read_only.flags.writeable = False
    refusal(stack((data, read_only)), wr.LayoutError, "writable memory")
    assert (data == 7).all() and (scales == 7).all()
    refusal(lambda: wr.stack(x, out=(data, scales)), TypeError)


def test_collate_by_spec():
    trees = [{"kv": drawn(n, 4, 64, seed=n), "w": drawn(8, seed=n), "y": n} for n in (3, 5)]
    spec = {
        "kv": wr.Ragged(transform=wr.Quantize("float8_e4m3fn", scale=32, scale_dtype="e8m0")),
        "w": wr.Stack(transform=wr.Quantize("int8")),
    }
    for arena in (False, True):
        batch = wr.collate(trees, spec, arena=arena)
        alone = wr.ragged([tree["kv"] for tree in trees], transform=spec["kv"].kwargs["transform"])
        assert torch.equal(codes(batch["kv"]), codes(alone))
        assert torch.equal(codes(batch["kv"].scales), codes(alone.scales))
        assert batch["w"].scales.shape == (2,) and batch["y"].scales is None
        if arena:
            assert set(batch["kv"].arena_layout) == {"data", "lengths", "offsets", "scales"}
        for copied in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch)):
            assert torch.equal(codes(copied["kv"].scales), codes(alone.scales))
            assert copied["kv"].scales.dtype == "float8_e8m0fnu"
    out = {
        "kv": (torch.empty(8, 4, 64, dtype=torch.float8_e4m3fn), torch.empty(8, 4, 2, dtype=torch.float8_e8m0fnu)),
        "w": (np.empty((2, 8), np.int8), np.empty(2, np.float32)),
        "y": np.empty(2, np.int64),
    }
    wr.collate(trees, spec, out=out)
    assert torch.equal(codes(out["kv"][0]), codes(alone)) and torch.equal(codes(out["kv"][1]), codes(alone.scales))
    assert out["w"][0].tolist() == batch["w"].numpy().tolist() and out["w"][1].tolist() == batch["w"].scales.numpy().tolist()
    fn = pytest.importorskip("windrow.torch").collate_fn(spec)
    given = fn(trees)
    assert torch.equal(given["kv"].scales.view(torch.uint8), codes(alone.scales)) and given["w"].scales.shape == (2,)


def test_where_scales_have_no_place():
    trees = [{"x": drawn(3, seed=n)} for n in range(2)]
    for transform in (wr.Quantize("int8"), wr.Dequantize([1.0, 2.0])):
        spec = {"x": wr.List(dtype=None, transform=transform)}
        refusal(lambda spec=spec: wr.collate(trees, spec), ValueError, "wr.List has no place for scales")
    from windrow import structure

    images = [torch.zeros(4, 4, 3)]
    refusal(lambda: structure.pad_images(images, transform=wr.Quantize("int8")), TypeError, "transform must be a wr.Transform")


def test_lists_and_explain():
    x = drawn(10, 4, 32)
    samples = wr.SampleList(list(x))
    quantize = wr.Quantize("float8_e4m3fn")
    batch = samples.stack([3, 1, 3], transform=quantize)
    assert torch.equal(codes(batch), codes(wr.stack(list(x[[3, 1, 3]]), transform=quantize)))
    assert repr(batch).endswith("scales=float32 (3, 4))")
    plan = wr.explain(samples, transform=quantize)
    assert (plan.path, plan.bytes_read, plan.bytes_written) == ("quantize", 10 * 4 * 32 * 4, 10 * 4 * 32 + 10 * 4 * 4)
    plan = wr.explain(batch, dtype="float32", transform=wr.Dequantize(batch.scales))
    assert plan.path == "dequantize"
    before = wr.stats()["paths"].get("quantize", 0)
    wr.stack(samples, transform=quantize)
    assert wr.stats()["paths"]["quantize"] == before + 1


@pytest.mark.parametrize("scale", ["sample", "row", 16])
def test_copy_many(scale):
    sources = [drawn(3, 40), drawn(0, 40), drawn(7, seed=2).to(torch.bfloat16), drawn(2, 5, 33, seed=3)]
    quantize = wr.Quantize("float8_e4m3fn", scale=scale)
    alone = [wr.stack([source], transform=quantize) for source in sources]
    dsts = [torch.zeros(*source.shape, 2, dtype=torch.uint8).view(torch.float8_e4m3fn)[..., 1] for source in sources]
    scales = [torch.full(tuple(own.scales.shape[1:]), 7.0) for own in alone]
    wr.copy_many(dsts, sources, transform=quantize, scales_out=scales)
    for dst, scale_out, own in zip(dsts, scales, alone):
        assert torch.equal(dst.view(torch.uint8), codes(own)[0]) and torch.equal(scale_out, own.scales.torch()[0])
        assert scale_out._version > 0
    plan = wr.explain(sources, "copy_many", dsts=dsts, transform=quantize, scales_out=scales)
    assert plan.path == "quantize"
    block = scale if isinstance(scale, int) else None
    back = [torch.empty(source.shape, dtype=torch.bfloat16) for source in sources]
    wr.copy_many(back, dsts, transform=wr.Dequantize(scales, block=block))
    for source, got, own in zip(sources, back, alone):
        want = wr.stack(own.data, dtype="bfloat16", transform=wr.Dequantize(own.scales, block=block))
        assert torch.equal(codes(got), codes(want)[0])


def test_copy_many_of_tables_and_trees():
    x = drawn(6, 4, 32)
    quantize = wr.Quantize("int8")
    want = wr.stack(list(x), transform=quantize)
    data, scales = np.zeros((6, 4, 32), np.int8), np.zeros((6, 4), np.float32)
    wr.copy_many(data, x, transform=quantize, scales_out=scales)
    assert (data == want.numpy()).all() and (scales == want.scales.numpy()).all()
    pages, kept = np.zeros((9, 4, 32), np.int8), np.zeros((9, 4), np.float32)
    ids = [8, 0, 3, 5, 1, 2]
    wr.copy_many(wr.SampleList(pages).take(ids), x, transform=quantize, scales_out=wr.SampleList(kept).take(ids))
    assert (pages[ids] == data).all() and (kept[ids] == scales).all()
    back = np.zeros((6, 4, 32), np.float32)
    wr.copy_many(back, data, transform=wr.Dequantize(scales))
    assert (back == data * scales[..., None]).all()
    tree = {"a": np.zeros(8, np.int8), "b": {"c": np.zeros((2, 8), np.int8)}}
    found = {"a": np.zeros((), np.float32), "b": {"c": np.zeros(2, np.float32)}}
    source = {"b": {"c": drawn(2, 8)}, "a": drawn(8)}
    wr.copy_many(tree, source, transform=quantize, scales_out=found)
    assert (found["b"]["c"] == by_groups(source["b"]["c"], "int8")[1][:, 0].numpy()).all()


def test_copy_many_refuses():
    x, quantize = [drawn(2, 8), drawn(3, 8)], wr.Quantize("int8")
    dsts, scales = [np.full((n, 8), 7, np.int8) for n in (2, 3)], [np.full(n, 7, np.float32) for n in (2, 3)]
    def move(scales_out, transform=quantize, dsts=dsts):
        return lambda: wr.copy_many(dsts, x, transform=transform, scales_out=scales_out)
    refusal(move(None), ValueError, "needs scales_out")
    refusal(move(scales, None), ValueError, "scales_out is for the scales of a Quantize")
    refusal(move(scales[:1]), ValueError, "scales_out has 1 destinations of scales for 2 pairs")
    def at_scales(index, *arguments):
        error = refusal(*arguments)
        assert (error.side, error.index) == ("scales_out", index), error
    at_scales(0, move(scales[::-1]), wr.ShapeError, r"scales_out 0: expected shape \(2,\), got \(3,\)")
    at_scales(1, move([scales[0], scales[1].astype(np.float64)]), wr.DTypeError, "scales_out 1: expected float32, got float64")
    at_scales(0, move([scales[0].astype(">f4"), scales[1]]), wr.LayoutError, "scales_out 0: expected native byte order")
    at_scales(1, move([scales[0], np.frombuffer(dsts[1].data, np.float32, 3)]), ValueError, "scales_out 1: .*overlaps destination 1")
    read_only = scales[1].copy()
    read_only.flags.writeable = False
    at_scales(1, move([scales[0], read_only]), wr.LayoutError, "scales_out 1: expected writable memory")
    at_scales(1, move([scales[0], "text"]), TypeError, "scales_out 1: expected an array-like")
    at_scales(0, move([torch.zeros(2, requires_grad=True), scales[1]]), wr.LayoutError, "scales_out 0: .*requires grad")
    table = np.zeros((2, 3), np.float32)
    table.flags.writeable = False
    at_scales(None, move(table), wr.LayoutError, "scales_out: expected writable memory")
    error = refusal(lambda: wr.copy_many(dsts, x, transform=quantize, scales_out=wr.SampleList([scales[0][:2], scales[1]]).take([1, 1])), wr.ShapeError)
    both = [drawn(2, 8), drawn(2, 8)]
    twice = wr.SampleList([scales[0]]).take([0, 0])
    into = [np.zeros((2, 8), np.int8) for _ in both]
    error = refusal(lambda: wr.copy_many(into, both, transform=quantize, scales_out=twice), ValueError)
    assert "scales_out 0" in str(error) and "destination" not in str(error), error
    refusal(move(scales, dsts=[dst.astype(np.float32) for dst in dsts]), wr.DTypeError, "expected int8, got float32")
    assert all((dst == 7).all() for dst in dsts) and all((own == 7).all() for own in scales)
    wide = [np.zeros((n, 8), np.float32) for n in (2, 3)]
    def back(given):
        return lambda: wr.copy_many(wide, dsts, transform=wr.Dequantize(given))
    refusal(back([1.0]), ValueError, "1 scales for 2 pairs")
    error = refusal(lambda: wr.copy_many(dsts, dsts, transform=wr.Dequantize([1.0, 1.0])), wr.DTypeError, "destination 0: expected float16")
    assert (error.side, error.index) == ("destination", 0)
    refusal(back([scales[0], scales[0]]), wr.ShapeError, "source 1: expected scales of shape")


def test_arguments():
    quantize = wr.Quantize("float8_e4m3fn", scale=128, scale_dtype="e8m0", eps=1e-6)
    same = pickle.loads(pickle.dumps(quantize))
    assert same == quantize and same != wr.Quantize("float8_e4m3fn", scale=64)
    assert repr(quantize) == "Quantize(dtype='float8_e4m3fn', scale=128, scale_dtype='float8_e8m0fnu', eps=1e-06)"
    assert wr.Quantize(torch.float8_e5m2, scale_dtype=torch.float8_e8m0fnu) == wr.Quantize("float8_e5m2", scale_dtype="e8m0")
    assert wr.Quantize("int8", scale="row", scale_dtype="float32", eps=1e-12) == wr.Quantize("int8")
    for kwargs, kind, text in [
        ({"dtype": "float16"}, ValueError, "dtype must be float8_e4m3fn, float8_e5m2 or int8, got float16"),
        ({"dtype": "int8", "scale": "rows"}, ValueError, 'scale must be "sample", "row" or a block length, got \'rows\''),
        ({"dtype": "int8", "scale": 0}, ValueError, "a block of at least 1 element, got 0"),
        ({"dtype": "int8", "scale": 1.5}, TypeError, 'scale must be "sample", "row" or a block length, got 1.5'),
        ({"dtype": "int8", "scale": True}, TypeError, 'scale must be "sample", "row" or a block length, got True'),
        ({"dtype": "int8", "scale_dtype": "e8m0"}, ValueError, "scales in e8m0 are those of float8, not of int8"),
        ({"dtype": "int8", "scale_dtype": "float16"}, ValueError, "scale_dtype must be float32 or float8_e8m0fnu, got float16"),
        ({"dtype": "int8", "eps": 0.0}, ValueError, "eps must be a positive number"),
        ({"dtype": "int8", "eps": float("nan")}, ValueError, "eps must be a positive number"),
        ({"dtype": "int8", "eps": "1"}, TypeError, "eps must be a number, got '1'"),
    ]:
        error = refusal(lambda kwargs=kwargs: wr.Quantize(**kwargs), kind)
        assert text in str(error)
    given = wr.Dequantize(np.ones(3, np.float32), block=4)
    assert repr(given) == "Dequantize(float32 [3], block=4)" and repr(pickle.loads(pickle.dumps(given))) == repr(given)
    refusal(lambda: wr.Dequantize([1.0], block=0), ValueError, "block must be at least 1 element, got 0")
    refusal(lambda: wr.Dequantize([1.0], block=1.5), TypeError, "block must be an int, got 1.5")
    refusal(lambda: wr.Dequantize("abc"), TypeError)
    refusal(lambda: wr.stack([1.0], transform=3), TypeError, "transform must be a wr.Transform, wr.Quantize or wr.Dequantize, got 3")


def test_samples_that_are_refused():
    quantize, floats = wr.Quantize("int8"), drawn(2, 8)
    refusal(lambda: wr.stack([np.zeros(3, np.int32)], transform=quantize), wr.DTypeError, "floating-point samples", index=0)
    refusal(lambda: wr.stack([np.zeros(3, np.complex64)], transform=quantize), wr.DTypeError, "floating-point samples", index=0)
    refusal(lambda: wr.stack(list(floats), transform=quantize, dtype="float32"), ValueError, "has a dtype of its own")
    refusal(lambda: wr.stack(list(floats), transform=quantize, copy=False), ValueError, "copy=False")
    refusal(lambda: wr.stack(list(floats), transform=quantize, saturate=True), ValueError, "saturate is for batches of float8")
    codes8 = [np.zeros(3, np.int8)]
    refusal(lambda: wr.stack(codes8, transform=wr.Dequantize([1.0])), wr.DTypeError, 'dtype="float32" names it')
    refusal(lambda: wr.stack(codes8, dtype="int32", transform=wr.Dequantize([1.0])), wr.DTypeError)
    refusal(lambda: wr.stack(list(floats), dtype="float32", transform=wr.Dequantize([1.0, 1.0])), wr.DTypeError, "int8", index=0)
    refusal(lambda: wr.stack(codes8, dtype="float32", transform=wr.Dequantize([1.0, 2.0])), ValueError, "2 scales for 1 samples")
    refusal(lambda: wr.stack(codes8, dtype="float32", transform=wr.Dequantize(np.ones((1, 3), np.float32))), wr.ShapeError)
    refusal(lambda: wr.stack(codes8, dtype="float32", transform=wr.Dequantize(np.ones(1, np.int32))), wr.DTypeError)


def test_scales_that_moved_are_refused():
    memory = bytearray(np.ones(2, np.float32).tobytes())
    given = wr.Dequantize(memoryview(memory).cast("f"))
    assert wr.stack([np.ones(1, np.int8)] * 2, dtype="float32", transform=given).numpy().tolist() == [[1.0], [1.0]]
