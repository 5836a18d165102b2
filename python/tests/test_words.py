"""Samples read from the structs and words of NumPy, torch and Python objects, and asked for where these are not known."""

import numpy as np
import pytest

import isolated
import oracle
import windrow as wr
from helpers import assert_tensor, paint
from windrow import _windrow

NAMES = [n for n in (*oracle.ARITHMETIC, *oracle.COMPLEX) if n != "bfloat16"]


def test_they_are_known_here():
    """Or the short way was never tested."""
    assert _windrow.import_route(np.zeros(2)) == "array"


@pytest.mark.parametrize("name", NAMES)
def test_numpy_of_every_dtype(name):
    arrays = [paint((3, 4), name, i) for i in range(3)]
    batch = wr.stack(arrays)
    got = batch.numpy()
    assert got.dtype == arrays[0].dtype and got.dtype.num == arrays[0].dtype.num and got.flags.writeable
    assert got.tobytes() == np.stack(arrays).tobytes()
    assert got.strides == np.stack(arrays).strides and got.flags.c_contiguous and got.flags.aligned
    locked = arrays[0].copy()
    locked.flags.writeable = False
    assert not wr.asarray(locked).numpy().flags.writeable
    turned = wr.asarray(arrays[0].T[::-1]).numpy()
    assert turned.tobytes() == arrays[0].T[::-1].tobytes() and turned.strides == arrays[0].T[::-1].strides
    assert wr.asarray(arrays[0][1, 2]).numpy().shape == ()
    assert wr.asarray(arrays[0][:0]).numpy().shape == (0, 4)


@pytest.mark.parametrize("name", [*NAMES, "bfloat16"])
def test_dense_torch_tensors(name):
    torch = pytest.importorskip("torch")
    table = torch.arange(60).reshape(5, 12).to(getattr(torch, name))
    bits = (lambda t: t.view(torch.int16)) if name == "bfloat16" else (lambda t: t)
    for rows in (list(table), list(table.t()), list(table[1:, 2:7]), [table[3, 4]] * 2, [table[:, None, None, None, :, None]], [table[:0]] * 2):
        got = wr.stack(rows).torch()
        assert got.dtype == table.dtype and bits(got).equal(bits(torch.stack(rows)))
    ragged = wr.ragged([table[0], table[1][:3], table[2][:0], table[3][5:]])
    assert bits(ragged.torch()).equal(bits(torch.cat([table[0], table[1][:3], table[2][:0], table[3][5:]])))


FALLBACKS = {
    "numpy": (
        "import numpy; zeros, numpy.zeros = numpy.zeros, None\nimport numpy._core._multiarray_umath as core; del core._ARRAY_API",
        "assert _windrow.import_route(numpy.ones(2)) == 'array struct'; numpy.zeros = zeros",
    ),
    "torch": (
        "import windrow._torch_probe as probe; told = probe.dense\n"
        "probe.dense = lambda: [(*case[:4], case[4] + 1, *case[5:]) for case in told()]",
        "",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("library", FALLBACKS)
def test_without_the_words(library):
    if library == "torch":
        pytest.importorskip("torch")
    broken, check = FALLBACKS[library]
    isolated.run(
        f"""
import oracle
from windrow import _windrow
{broken}
{check}
rows = [paint((n, 3), "float32", n) for n in (2, 5, 1)]
if {library!r} == "torch":
    import torch
    rows = [torch.from_numpy(row) for row in rows]
assert_tensor(wr.pad(rows), oracle.pad([np.asarray(row) for row in rows], "float32").data)
assert_tensor(wr.ragged([row[:, 1:] for row in rows]), np.concatenate([np.asarray(row)[:, 1:] for row in rows]))
assert wr.ragged(rows).numpy().shape == (8, 3)
"""
    )
