"""The examples of the README and of the documentation run and give what their comments say."""

import pytest

from helpers import run_examples


FILES = ["README.md", "python/README.md", "docs/index.md", "docs/observability.md"]
NEEDS = {
    "docs/recipes/arrow.md": ["polars", "datasets"],
    "docs/recipes/classes.md": [],
    "docs/recipes/fp8.md": ["torch"],
    "docs/recipes/moves.md": ["torch"],
    "docs/recipes/replay.md": ["torch"],
    "docs/recipes/sequences.md": ["torch"],
    "docs/recipes/servers.md": ["torch"],
    "docs/recipes/torch.md": ["tensordict", "torch_geometric", "pyarrow"],
}


@pytest.mark.parametrize("file", [*FILES, *NEEDS])
def test_examples(file):
    for library in NEEDS.get(file, ()):
        pytest.importorskip(library, reason=f"SKIP: {library} is not installed")
    run_examples(file)
