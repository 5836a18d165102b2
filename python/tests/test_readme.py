"""The examples of the README run and give what their comments say."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)


def test_there_are_examples():
    assert BLOCKS


@pytest.mark.parametrize("code", BLOCKS)
def test_example(code):
    lines = code.splitlines()
    printed = []
    exec("\n".join(lines), {"print": lambda value: printed.append(getattr(value, "tolist", lambda: value)())})
    expected = [line.split("#", 1)[1].strip() for line in lines if line.startswith("print(")]
    assert [str(value) for value in printed] == expected
