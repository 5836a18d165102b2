"""Fixtures of the Python tests. `oracle.py` holds the expected values, `helpers.py` the comparisons."""

import pytest

import dlpack_harness


@pytest.fixture(autouse=True)
def no_double_free():
    """Fails a test in which a foreign tensor was freed more than once."""
    dlpack_harness.double_frees()
    yield
    assert dlpack_harness.double_frees() == []


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def jax():
    return pytest.importorskip("jax")
