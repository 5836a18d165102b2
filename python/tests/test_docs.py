"""The examples in docstrings run, and every public name has one."""

import doctest
import importlib
import inspect

import pytest
import windrow as wr

import isolated

PUBLIC = [name for name in wr.__all__ if not name.startswith("__")]
CALLS = ["stack", "concat", "pad", "ragged", "collate", "explain", "SampleList", "Transform", "register_node", "copy_many", "pack", "pack_buckets", "Staging"]


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


MODULES = ["hf", "sequence", "structure", "torch", "torch._collate", "torch._install", "torch._prefetch", "torch.ops"]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_modules_run(name):
    torch = pytest.importorskip("torch")
    if name == "torch.ops" and not hasattr(torch.library, "custom_op"):
        pytest.skip("SKIP: operators need PyTorch 2.4")
    if name == "hf":
        pytest.importorskip("pyarrow", reason="SKIP: pyarrow is not installed")
    module = importlib.import_module(f"windrow.{name}")
    found = doctest.testmod(module)
    assert found.attempted and not found.failed


@pytest.mark.parametrize("name", ["hf", "sequence", "structure", "torch", "torch.ops"])
def test_every_public_name_of_modules_is_documented(name):
    torch = pytest.importorskip("torch")
    if name == "torch.ops" and not hasattr(torch.library, "custom_op"):
        pytest.skip("SKIP: operators need PyTorch 2.4")
    module = importlib.import_module(f"windrow.{name}")
    for public in module.__all__:
        if public == "ToDevice":
            pytest.importorskip("torchdata", reason="SKIP: torchdata is not installed")
        assert public.isupper() or (getattr(module, public).__doc__ or "").strip(), public


@pytest.mark.slow
def test_windrow_alone_imports_no_framework():
    code = "import sys, windrow; print(sorted({'torch', 'numpy', 'jax', 'torchdata'} & set(sys.modules)))"
    assert isolated.python("-c", code).stdout.strip() == "[]"
