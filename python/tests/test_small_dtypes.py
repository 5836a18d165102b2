"""Dtypes of fewer bits than a byte: moved whole bytes at a time where both sides can say so, else refused by name."""

import copy
import pickle

import numpy as np
import pytest

import windrow as wr
from dlpack_harness import Producer
from helpers import refusal

try:
    import torch
    from torch.utils.data import default_collate

    import windrow.torch as wt
except ImportError:
    torch = None

FLOAT4 = "float4_e2m1fn_x2"
# Older torch has only some.
SMALL = [name for name in (f"{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8)) if hasattr(torch, name)]
has_float4 = pytest.mark.skipif(not hasattr(torch, FLOAT4), reason=f"SKIP: torch, if it is installed, has no {FLOAT4}")
PADDED = 1 << 2


if torch is not None:

    class Mine(torch.Tensor):
        pass

    class WithoutApi(torch.Tensor):
        __dlpack_c_exchange_api__ = None


FORMS = {
    "stack": wr.stack,
    "concat": wr.concat,
    "pad": wr.pad,
    "ragged": wr.ragged,
    "collate": lambda samples: wr.collate([{"x": sample} for sample in samples])["x"],
    "SampleList": wr.SampleList,
    "collators": lambda samples: wt.collate_fn(wr.Pad())(samples),
    "view": lambda samples: wr.stack(samples, copy=None),
    "explain": wr.explain,
}


def small(name, *values):
    return torch.tensor(values, dtype=torch.uint8).view(getattr(torch, name))


def bits(tensor):
    return tensor.view(torch.uint8)


@pytest.mark.parametrize("name", SMALL)
def test_integers_of_torch_are_refused_by_name(name):
    """torch says of them that they are bytes."""
    samples, plain = [small(name, 1, 0, 1), small(name, 0, 1, 1)], torch.zeros(3, dtype=torch.uint8)
    words = rf"expected a dtype of whole bytes, got dtype torch\.{name}; its bytes are samples: view them as uint8"
    for call in FORMS.values():
        refusal(lambda: call(samples), wr.DTypeError, words, index=0)
        refusal(lambda: call([plain, samples[0]]), wr.DTypeError, words, index=1)
    refusal(lambda: wr.SampleList([plain]).append(samples[0]), wr.DTypeError, words)
    of_class = [samples[0].as_subclass(cls) for cls in (Mine, WithoutApi)]
    for odd in (*of_class, samples[0][None, None, None, None, None], torch.nn.Parameter(samples[0], requires_grad=False)):
        refusal(lambda: wr.stack([odd]), wr.DTypeError, words)
    table = torch.zeros(2, 3, dtype=torch.uint8)
    for call in (wr.asarray, wr.stack, wr.SampleList):
        refusal(lambda: call(table.view(samples[0].dtype)), wr.DTypeError, words)
    refusal(lambda: wr.stack([plain, plain], out=table.view(samples[0].dtype)), wr.DTypeError, "out: " + words)
    assert wr.stack([bits(sample) for sample in samples]).numpy().tolist() == [[1, 0, 1], [0, 1, 1]]


@pytest.mark.parametrize("name", [*SMALL, pytest.param(FLOAT4, marks=has_float4)])
def test_collate_fn_gives_the_dtype_of_default_collate(name):
    samples = [small(name, 1, 0, 1), small(name, 0, 1, 1)]
    for collate in (wt.collate_fn(), wt.collate_fn(arena=True)):
        for got, want in (
            (collate(samples), default_collate(samples)),
            (collate([{"x": sample, "y": 1} for sample in samples])["x"], default_collate(samples)),
            (collate([(1, sample[0]) for sample in samples])[1], default_collate([sample[0] for sample in samples])),
        ):
            assert got.dtype == want.dtype and torch.equal(bits(got), bits(want))


@has_float4
def test_pairs_of_float4_are_moved():
    dtype = getattr(torch, FLOAT4)
    rows = [small(FLOAT4, *range(n, n + n)) for n in (3, 1, 2)]
    for form in (wr.concat, wr.pad, wr.ragged):
        got = form(rows).torch()
        assert got.dtype == dtype and torch.equal(bits(got), form([bits(row) for row in rows]).torch())
    assert bits(wr.pad(rows, value=-1.25).torch())[1].tolist() == [1, 0xAA, 0xAA]
    refusal(lambda: wr.pad(rows, value=7), ValueError, f"value=7 is not representable in {FLOAT4}")
    table = torch.arange(12, dtype=torch.uint8).view(3, 4)
    for sample in (table, table.t(), table[1:], table[0], table[2, 3], table[:0], table[None, None, None, None]):
        batch = wr.stack([sample.view(dtype)] * 2)
        assert batch.dtype == FLOAT4 and torch.equal(bits(batch.torch()), torch.stack([sample] * 2))
    out, samples = torch.zeros(2, 4, dtype=torch.uint8), [table[0].view(dtype)] * 2
    wr.stack(samples, out=out.view(dtype))
    assert torch.equal(out, table[:1].expand(2, 4))
    batch = wr.stack(table.view(dtype))
    for again in (wr.asarray(table.view(dtype)), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch, protocol=5)), wr.stack(list(batch))):
        assert torch.equal(bits(again.torch()), table)
    assert wr.collate([{"x": samples[0]}] * 2, arena=True)["x"].dtype == FLOAT4
    for call, library in ((batch.numpy, "NumPy or ml_dtypes"), (batch.jax, "JAX")):
        refusal(call, wr.DTypeError, rf"expected a dtype that {library} has, got {FLOAT4}; \.torch\(\) gives it")
    refusal(lambda: wr.stack([samples[0], table[0]]), wr.DTypeError, f"sample 1: expected {FLOAT4}, got uint8")
    refusal(lambda: wr.stack(samples, dtype="float32"), wr.DTypeError, "are moved, never cast")


@pytest.mark.parametrize("name", ["int4", "uint4"])
def test_four_bits_of_ml_dtypes_are_moved(name):
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), name))
    rows = [np.arange(n, n + n).astype(dtype) for n in (3, 1, 2)]
    for form in (wr.concat, wr.pad, wr.ragged):
        got = form(rows).numpy()
        assert got.dtype == dtype and (got.view(np.uint8) == form([row.view(np.uint8) for row in rows]).numpy()).all()
    low, high = (-8, 7) if name == "int4" else (0, 15)
    for value in (low, high):
        assert wr.pad(rows, value=value).numpy()[1].astype(int).tolist() == [1, value, value]
    for value in (low - 1, high + 1, 0.5):
        refusal(lambda: wr.pad(rows, value=value), ValueError, f"value={value} is not representable in {name}")
    table = np.arange(low, low + 12).reshape(3, 4).astype(dtype)
    for sample in (table, table.T, table[1:, ::-2], table[0], table[2, 3], table[:0]):
        batch = wr.stack([sample] * 2)
        assert batch.dtype == name and (batch.numpy() == np.stack([sample] * 2)).all()
    out = np.zeros((2, 4), dtype)
    wr.stack([table[0]] * 2, out=out, dtype=dtype)
    assert (out == table[:1]).all()
    batch = wr.stack(table)
    for again in (wr.asarray(table), wr.stack(list(batch)), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch, protocol=5))):
        assert again.numpy().dtype == dtype and (again.numpy() == table).all()
    refusal(batch.torch, wr.DTypeError, rf"expected a dtype that torch takes by DLPack, got {name}; \.numpy\(\) gives it")
    refusal(lambda: wr.stack([table[0], np.zeros(4, np.uint8)]), wr.DTypeError, f"sample 1: expected {name}, got uint8")
    for cast in (lambda: wr.stack(table, dtype="int8"), lambda: wr.stack(np.zeros((2, 3), np.int8), dtype=dtype)):
        refusal(cast, wr.DTypeError, "are moved, never cast")


@pytest.mark.parametrize("name", ["int4", "uint4"])
def test_four_bits_of_jax(name):
    jax = pytest.importorskip("jax")
    values = np.array([1, 0, 7]).astype(name if name in np.sctypeDict else jax.numpy.dtype(name))
    got = wr.stack([values] * 2).jax()
    assert got.dtype == values.dtype and (np.asarray(got) == values).all()
    # JAX has no DLPack dtype for its own.
    words = rf"expected a dtype of whole bytes, got dtype {name}; numpy\.asarray\(array\) is an array that can be a sample"
    refusal(lambda: wr.stack([jax.numpy.asarray(values)]), wr.DTypeError, words)
    assert (wr.stack([np.asarray(jax.numpy.asarray(values))] * 2).numpy() == values).all()


@pytest.mark.parametrize("name", ["int2", "uint2", "float4_e2m1fn", "float6_e2m3fn"])
def test_others_of_ml_dtypes_are_refused_by_name(name):
    dtype = getattr(pytest.importorskip("ml_dtypes"), name, None)
    if dtype is None:
        pytest.skip(f"SKIP: this ml_dtypes has no {name}")
    words = f"expected a dtype of whole bytes, got dtype {name}; its bytes are samples: view them as uint8"
    refusal(lambda: wr.stack([np.zeros(3, np.uint8).view(dtype)]), wr.DTypeError, words)


@pytest.mark.parametrize("code, name", [(0, "int4"), (1, "uint4")])
def test_padded_integers_of_dlpack(code, name):
    values = np.array([1, 15, 7], np.uint8)
    made = wr.stack([Producer(values, dtype=(code, 4, 1), flags=PADDED)])
    assert made.dtype == name and (made.data.shape, made.nbytes) == ((1, 3), 3)
    for fields in ({}, {"versioned": False}):
        refusal(lambda: wr.stack([Producer(values, dtype=(code, 4, 1), **fields)]), wr.DTypeError, "bits 4, lanes 1")
    refusal(lambda: wr.stack([Producer(values, dtype=(code, 4, 2), flags=PADDED)]), wr.DTypeError, "bits 4, lanes 2")
    refusal(made.data.__dlpack__, BufferError, "by a flag, from 1.0 on")
    again = wr.asarray(Exported(made.data))
    assert again.dtype == name and again.data_ptr() == made.data.data_ptr()


class Exported:
    """Shows nothing of a tensor but its capsules."""

    def __init__(self, tensor):
        self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__
