"""The package before its first use: an import that costs nothing, a demo that needs nothing."""

import sys

import pytest
import windrow as wr
from windrow.__main__ import main

import isolated

HEAVY = ["numpy", "torch", "jax", "ray", "pyarrow", "paddle"]


def run(code, *options):
    done = isolated.python(*options, "-c", code)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_the_import_loads_no_other_library():
    code = f"import sys, windrow; print([name for name in {HEAVY} if name in sys.modules])"
    assert run(code).stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["hf", "jax", "plan", "ray", "sequence", "structure", "torch"])
def test_a_module_that_is_not_imported_is_named(name, monkeypatch):
    monkeypatch.delattr(wr, name, raising=False)
    with pytest.raises(AttributeError, match=f"no attribute '{name}': .* write `import windrow.{name}`$"):
        getattr(wr, name)


def test_a_name_that_is_in_no_module_is_refused_as_by_other_modules():
    with pytest.raises(AttributeError, match="^module 'windrow' has no attribute 'stak'$"):
        wr.stak
    assert not hasattr(wr, "__wrapped__")


@pytest.mark.slow
def test_the_import_loads_few_modules():
    # 47 with Python 3.11, most of them for typing and dataclasses.
    code = "import sys; before = set(sys.modules); import windrow; print(len(set(sys.modules) - before))"
    assert int(run(code).stdout) < 80


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["numpy", "PIL"])
def test_the_demo_says_what_it_leaves_out(missing):
    if missing != "numpy":
        pytest.importorskip("numpy")
    code = f"import sys; sys.modules[{missing!r}] = None; from windrow.__main__ import main; sys.exit(main(['demo']))"
    said = run(code).stdout
    assert f"as {missing} is not installed" in said and "elements checked" in said


def test_the_demo_looks_for_its_folder_first(capsys):
    demo = pytest.importorskip("windrow.demo")
    with pytest.raises(SystemExit):
        demo.main(["--out", f"{__file__}/folder/demo.png"])
    assert "argument --out" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["nope"], [], ["doctor", "nope"], ["calibrate", "nope"], ["calibrate", "--print", "nope"]])
def test_words_that_commands_do_not_know(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        sys.exit(main(arguments))
    out, error = capsys.readouterr()
    assert ended.value.code == 2 and not out and "usage: python -m windrow" in error
    assert ("nope" in error) == bool(arguments)
    with pytest.raises(SystemExit) as ended:
        sys.exit(main([*arguments[:-1], "--help"]))
    assert ended.value.code == 0 and "usage: python -m windrow" in capsys.readouterr().out


@pytest.mark.slow
def test_other_commands_name_what_to_install():
    code = "import sys; sys.modules['numpy'] = None; from windrow.__main__ import main; sys.exit(main(['bench']))"
    done = isolated.python("-c", code)
    assert done.returncode == 1
    assert "needs numpy: pip install" in done.stderr and "Traceback" not in done.stderr
