"""The examples of the README and of the documentation run and give what their comments say."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def blocks(file):
    return re.findall(r"```python\n(.*?)```", (ROOT / file).read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize("file", ["README.md", "docs/index.md"])
def test_examples(file):
    """Blocks of one file go on from each other."""
    names, wanted, printed = {}, [], []
    names["print"] = lambda *values: printed.append(" ".join(map(shown, values)))
    for code in blocks(file):
        wanted += re.findall(r"print\(.*\)\s*# (.*)", code)
        exec(re.sub(r"print\((\w+)\)\n", r"str(\1)\n", code), names)
    assert wanted and printed == wanted


def shown(value):
    return str(getattr(value, "tolist", lambda: value)())
