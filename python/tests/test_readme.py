"""The examples of the README and of the documentation run and give what their comments say."""

import pytest

from helpers import run_examples


@pytest.mark.parametrize("file", ["README.md", "python/README.md", "docs/index.md", "docs/observability.md", "docs/recipes/replay.md"])
def test_examples(file):
    run_examples(file)
