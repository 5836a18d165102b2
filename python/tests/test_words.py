"""Samples read from the structs and words of NumPy, torch and Python objects, and asked for where these are not known."""

import json
import sys
import sysconfig

import numpy as np
import pytest

import isolated
import oracle
import windrow as wr
from helpers import assert_tensor, paint, release
from windrow import _windrow, doctor

NAMES = [n for n in (*oracle.ARITHMETIC, *oracle.COMPLEX) if n != "bfloat16"]


def test_they_are_known_here():
    """The short way is tested only where they are known."""
    assert _windrow._import_route(np.zeros(2)) == "array"


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


@pytest.mark.slow
def test_a_numpy_of_another_release():
    isolated.run(
        """
import oracle
from windrow import _windrow
np.__version__ = "3.0.0"
assert _windrow._import_route(np.ones(2)) == "array struct"
rows = [paint((n, 3), "float32", n) for n in (2, 5, 1)]
assert_tensor(wr.pad(rows), oracle.pad(rows, "float32").data)
assert_tensor(wr.ragged([row[:, 1:] for row in rows]), np.concatenate([row[:, 1:] for row in rows]))
assert wr.ragged(rows).numpy().shape == (8, 3)
"""
    )


STATES = """
import json
{before}
wr.stack([[1, 2], [3, 4]]), wr.stack([torch.zeros(3)])
print(json.dumps(wr._windrow._private_layouts()))
"""


def expected_states():
    """The expected states of CPython and torch here: "on" for the releases that the readers were tested with."""
    python, in_torch = "on", "on"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        python = "off, an interpreter without a global lock"
    elif not (3, 9) <= sys.version_info[:2] <= (3, 13):
        python = "off, tested with 3.9 to 3.13"
    if sys.platform != "linux" or not (2, 10) <= release(pytest.importorskip("torch")) <= (2, 15):
        in_torch = "off, tested with 2.10 to 2.15 on Linux"
    return [python, in_torch]


@pytest.mark.slow
@pytest.mark.parametrize("value, is_on", [("0", False), ("1", True), ("", True)])
def test_the_switch(value, is_on):
    pytest.importorskip("torch")
    said = isolated.fork(STATES.format(before="import torch"), env={"WINDROW_PRIVATE_LAYOUTS": value})
    wanted = expected_states() if is_on else ["off, WINDROW_PRIVATE_LAYOUTS=0"] * 2
    assert [state for _, state in json.loads(said)] == wanted


@pytest.mark.slow
def test_an_unknown_release_of_torch():
    pytest.importorskip("torch")
    before = "import torch; torch.__version__ = '3.1.0'"
    said = isolated.fork(STATES.format(before=before), env={"WINDROW_PRIVATE_LAYOUTS": "1"})
    assert json.loads(said)[1] == ["torch 3.1.0", "off, tested with 2.10 to 2.15 on Linux"]


def test_the_doctor_says_so():
    name = f"CPython {sys.version_info[0]}.{sys.version_info[1]}"
    assert doctor.facts()["private layouts"].startswith(f"{name}: o")
