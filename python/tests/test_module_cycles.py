"""scripts/ci/module_cycles.py: which imports of a Python package are a cycle."""

import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/ci/module_cycles.py"


def cycles(folder, files):
    for name, text in files.items():
        path = folder / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    ran = subprocess.run([sys.executable, SCRIPT, "package"], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert ran.returncode == bool(ran.stdout)
    return [line.strip() for line in ran.stdout.splitlines()[1:]]


def test_a_package_in_order(tmp_path):
    files = {
        "__init__.py": "from package.one import f\n",
        # The public surface is no module of the order.
        "one.py": "import package as p\nfrom package import f\n",
        "two.py": "from . import one\nfrom .one import f\nimport package.one\n",
        "sub/__init__.py": "from package.two import g\n",
        "sub/three.py": "from .. import one\nfrom . import g\n",
        "typed.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package import untyped\nelse:\n    from package import one\n",
        "untyped.py": "import package.typed\n",
    }
    assert cycles(tmp_path, files) == []


@pytest.mark.parametrize(
    "one",
    [
        "import package.two\n",
        "from package import two\n",
        "from package.two import f\n",
        "from . import two\n",
        "from .two import f\n",
        "def f():\n    from package import two\n",
        "class A:\n    def f(self):\n        if self:\n            import package.two as t\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    from package import two\n",
        "import typing\nif not typing.TYPE_CHECKING:\n    from package import two\n",
    ],
)
def test_two_modules_that_import_each_other(tmp_path, one):
    files = {"__init__.py": "", "one.py": one, "two.py": "from package.one import f\n"}
    assert cycles(tmp_path, files) == ["one -> two", "two -> one"]


def test_a_folder_and_its_module(tmp_path):
    files = {"__init__.py": "", "sub/__init__.py": "from package.sub.inner import f\n", "sub/inner.py": "from package.sub import g\n"}
    assert cycles(tmp_path, files) == ["sub -> sub/inner", "sub/inner -> sub"]
