"""The right bits of torch's tensors on a GPU, by the kernels of the installed wheel, beside those of the host's engine."""

import numpy as np
import pytest

import windrow as wr
from gpu_harness import HERE, assert_bits, cuda, gpu, on_device, settled, torch, values, warm  # noqa: F401
from windrow.sequence import pack_tokens
from windrow.structure import concat_graphs, pad_images

CASTS = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 float8_e4m3fn float8_e5m2".split()
FLOATS = CASTS[-6:]
MOVED = [*CASTS, *(name for name in (
    "complex64", "complex128", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
) if hasattr(torch, name))]  # fmt: skip


def any_bits(dtype, count, seed):
    """NaNs with payloads among them."""
    dtype = getattr(torch, dtype)
    raw = torch.randint(0, 256, (count * dtype.itemsize,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return (raw % 2 if dtype is torch.bool else raw).view(dtype)


def test_the_device_is_the_one_that_torch_names(gpu):  # noqa: F811
    (device,) = [device for device in wr.devices() if device["device"] == "cuda:0"]
    properties = cuda.get_device_properties(0)
    assert device["name"] == properties.name and device["multiprocessors"] == properties.multi_processor_count
    assert tuple(device["compute_capability"]) == (properties.major, properties.minor)


@pytest.mark.parametrize("dtype", MOVED)
def test_every_dtype_is_moved_as_it_is(dtype):
    samples = [any_bits(dtype, 33 * 7, n).view(33, 7) for n in range(9)]
    got = wr.stack(on_device(samples)).torch()
    assert got.dtype == samples[0].dtype and got.shape == (9, 33, 7)
    # A tensor of the bytes is compared: torch.stack lacks some dtypes.
    assert_bits(got.flatten().view(torch.uint8), torch.cat([sample.flatten().view(torch.uint8) for sample in samples]))


@pytest.mark.parametrize("source", CASTS)
def test_casts_give_the_bits_of_the_host(source):
    samples = [any_bits(source, 1031, n) for n in range(5)]
    there = on_device(samples)
    for target in CASTS:
        for transform in [None, wr.Transform(scale=0.37)][: 1 + (target in FLOATS)]:
            options = {"dtype": target, "transform": transform}
            for more in [{}, {"saturate": True}][: 1 + target.startswith("float8")]:
                got, want = (wr.concat(given, **options, **more) for given in (there, samples))
                assert_bits(got.torch().view(torch.uint8), want.torch().view(torch.uint8))


def drawn(draw, shape, dtype, seed):
    """A tensor whose rows are apart, and whose dims may begin and step anywhere."""
    (base,) = values(1, [2 * extent + 3 for extent in shape], dtype, seed)
    begins, steps = draw.integers(0, 3, len(shape)), draw.integers(1, 3, len(shape))
    return base[tuple(slice(begin, begin + extent * step, step) for extent, begin, step in zip(shape, map(int, begins), map(int, steps)))]


def there_as_here(tensor):
    """Returns a copy on the device, with the same strides."""
    moved = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=HERE)
    return moved.copy_(tensor)


@pytest.mark.parametrize("form", ["stack", "concat", "pad", "ragged"])
def test_random_batches(form):
    draw = np.random.default_rng(len(form))
    for turn in range(40):
        ndim = int(draw.integers(1, 4))
        dtype = str(draw.choice(["uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]))
        options = {"dtype": [None, "float32", "float16", "int64"][draw.integers(4)]}
        if form == "pad":
            options.update(value=1, side=str(draw.choice(["left", "right", "center"])), mask="real")
        common, samples = [int(n) for n in draw.integers(1, 40, ndim)], []
        for n in range(int(draw.integers(1, 12))):
            shape = [int(m) for m in draw.integers(0, 40, ndim)] if form == "pad" else list(common)
            if form in ("concat", "ragged"):
                shape[0] = int(draw.integers(0, 40))
            samples.append(drawn(draw, shape, dtype, 1000 * turn + n))
        if form == "stack" and ndim > 1 and draw.random() < 0.3:
            samples = [sample.transpose(0, -1) for sample in samples]
        want, got = (getattr(wr, form)(made, **options) for made in (samples, [there_as_here(sample) for sample in samples]))
        for name in ("data", "lengths", "offsets", "mask"):
            fields = getattr(got, name), getattr(want, name)
            assert (fields[0] is None) == (fields[1] is None)
            if fields[0] is not None:
                assert_bits(*(field.torch() for field in fields))


def test_samples_at_every_byte():
    (host,) = values(1, (1 << 16,), "uint8")
    (base,) = on_device([host])
    for size in (1, 15, 16, 17, 77, 512, 4097):
        places = [slice(311 * n + n % 16, 311 * n + n % 16 + size) for n in range(120)]
        assert_bits(wr.stack([base[place] for place in places]).torch(), torch.stack([host[place] for place in places]))
        assert_bits(wr.ragged([base[place] for place in places]).torch(), torch.cat([host[place] for place in places]))


def test_layouts_of_torch():
    (image,) = values(1, (5, 3, 32, 20), "uint8")
    for layout in (image.to(memory_format=torch.channels_last), image.flip(0), image[:1].expand(5, 3, 32, 20)):
        there = there_as_here(layout) if 0 not in layout.stride() else layout[:1].to(HERE).expand_as(layout)
        assert_bits(wr.stack(list(there)).torch(), torch.stack(list(layout)))
    for shape in ((), (0,), (0, 3), (3, 0)):
        samples = [torch.zeros(shape) for _ in range(5)]
        assert_bits(wr.stack(on_device(samples)).torch(), torch.stack(samples))


@pytest.mark.parametrize("form", ["stack", "ragged", "cast"])
def test_more_than_2_31_elements(gpu, form):  # noqa: F811
    """The test reads both ends of each sample, and the middle, where a number of 32 bits would have wrapped."""
    count = (1 << 31) + 12_345
    if cuda.mem_get_info()[0] < 2 * count * (3 if form == "cast" else 2) + (4 << 30):
        pytest.skip("SKIP: too little memory is free")
    samples = [torch.zeros(count, dtype=torch.uint8, device=HERE) for _ in range(2)]
    places = [0, 1, (1 << 31) - 1, 1 << 31, count - 1]
    for n, sample in enumerate(samples):
        for k, place in enumerate(places):
            sample[place] = 10 * n + k + 1
    call = {"stack": wr.stack, "ragged": wr.ragged, "cast": lambda samples: wr.concat(samples, dtype="int16")}[form]
    out = call(samples).torch().view(-1)
    found = [int(out[n * count + place]) for n in range(2) for place in places]
    assert found == [10 * n + k + 1 for n in range(2) for k in range(5)]
    assert sum(int(part.count_nonzero()) for part in out.split(1 << 30)) == 10


def test_two_hundred_thousand_samples(gpu):  # noqa: F811
    samples = torch.randn(200_000, 24, device=HERE).unbind(0)
    chosen = [samples[n] for n in torch.randperm(200_000).tolist()]
    assert_bits(wr.stack(chosen).torch(), torch.stack(chosen))


def test_samples_that_require_a_gradient():
    leaf = torch.ones(4, device=HERE, requires_grad=True)
    batch = wr.stack([leaf.detach()]).torch().requires_grad_()
    (batch * 3).sum().backward()
    assert_bits(batch.grad, torch.full((1, 4), 3.0))


def test_lazy_signs_are_seen(gpu):  # noqa: F811
    x = torch.randn(8, 3, dtype=torch.complex64, device=HERE)
    for view in (x.conj(), x.conj().imag, torch._neg_view(x.real)):
        try:
            got = wr.stack([view, view]).torch()
        except (BufferError, ValueError):
            continue  # refused is right, silently wrong is not
        assert_bits(got, torch.stack([view.resolve_conj().resolve_neg()] * 2))


def test_an_address_of_the_host_is_refused(gpu):  # noqa: F811
    class Claims:
        array = np.zeros(4, "f4")
        __cuda_array_interface__ = {"version": 3, "shape": (4,), "typestr": "<f4", "data": (array.ctypes.data, False), "strides": None}

    with pytest.raises((ValueError, BufferError)):
        wr.stack([Claims()])
    wr.stack(on_device(values(2))).check()


def test_sequences_and_structures():
    features = [{"input_ids": np.arange(n) + 10} for n in (3, 0, 1, 260, 5)]
    there = [{"input_ids": torch.from_numpy(feature["input_ids"]).to(HERE)} for feature in features]
    want, got = pack_tokens(features, return_tensors="pt"), pack_tokens(there, return_tensors="pt")
    for name, value in want.items():
        assert_bits(got[name], value) if isinstance(value, torch.Tensor) else None
    images = [torch.randint(0, 255, (3, height, width), dtype=torch.uint8) for height, width in ((20, 50), (41, 33))]
    want, got = pad_images(images, multiple_of=16), pad_images(on_device(images), multiple_of=16)
    assert_bits(got.tensors, want.tensors)
    assert_bits(got.mask, want.mask)
    graph = {"x": torch.randn(5, 3), "edge_index": torch.randint(0, 5, (2, 9))}
    want, got = concat_graphs([graph] * 4), concat_graphs([{key: value.to(HERE) for key, value in graph.items()}] * 4)
    for name, value in want.items():
        assert_bits(got[name], value)
