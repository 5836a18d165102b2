"""The recipes under examples/ run, each as a program of its own."""

import os
from pathlib import Path

import pytest

import isolated

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
NAMES = sorted(path.name for path in RECIPES.glob("*.py"))
NEEDS = {
    "arrow.py": ["pyarrow", "polars", "duckdb"],
    "collators.py": ["transformers"],
    "hf_datasets.py": ["datasets"],
    "pyg_graphs.py": ["torch_geometric"],
    "tensordicts.py": ["tensordict"],
    "torchdata_nodes.py": ["torchdata"],
}


@pytest.mark.parametrize("name", NAMES)
def test_recipe(name):
    torch = pytest.importorskip("torch")
    if name == "ragged_attention.py" and not hasattr(torch.library, "custom_op"):
        pytest.skip("SKIP: operators need PyTorch 2.4")
    for module in NEEDS.get(name, ()):
        pytest.importorskip(module, reason=f"SKIP: {module} is not installed")
    # The simulated driver is not torch's.
    environment = {key: value for key, value in os.environ.items() if key != "WINDROW_CUDA_DRIVER"}
    done = isolated.python(RECIPES / name, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "a recipe shows what it made"


def test_the_index_names_them_all():
    index = (RECIPES.parents[1] / "docs/recipes/index.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"examples/recipes/{name}" not in index] == []
