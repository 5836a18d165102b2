"""The examples in docstrings run, and every public name has one."""

import doctest
import inspect

import pytest
import windrow as wr

PUBLIC = [name for name in wr.__all__ if not name.startswith("__")]
CALLS = ["stack", "concat", "pad", "ragged", "collate", "explain", "SampleList", "Transform"]


def examples_of(name):
    text = inspect.getdoc(getattr(wr, name)) or ""
    return doctest.DocTestParser().get_doctest(text, {}, name, None, None)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_documented(name):
    assert (getattr(wr, name).__doc__ or "").strip()


@pytest.mark.parametrize("name", CALLS)
def test_the_examples_of_docstrings_run(name):
    examples = examples_of(name)
    assert examples.examples, f"{name} has no example"
    assert doctest.DocTestRunner(verbose=False).run(examples).failed == 0


def test_the_package_example_runs():
    assert doctest.testmod(wr).failed == 0


@pytest.mark.parametrize("name", ["stack", "concat", "pad", "ragged", "collate"])
def test_signatures_name_their_arguments(name):
    parameters = inspect.signature(getattr(wr, name)).parameters
    assert {"samples", "dtype", "device", "out", "stream", "transform", "copy", "engine"} <= set(parameters)
