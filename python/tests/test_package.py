"""What the package is before its first use: an import that costs nothing, a demo that needs nothing."""

import subprocess
import sys

import pytest

HEAVY = ["numpy", "torch", "jax", "ray", "pyarrow", "paddle"]


def run(code, *options):
    return subprocess.run(
        [sys.executable, *options, "-c", code], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120
    )


def test_the_import_loads_no_other_library():
    code = f"import sys, windrow; print([name for name in {HEAVY} if name in sys.modules])"
    assert run(code).stdout.strip() == "[]"


def test_the_import_takes_less_than_50_ms():
    # self | cumulative | name, in microseconds; the package itself comes last.
    last = [run("import windrow", "-X", "importtime").stderr.splitlines()[-1].split("|") for _ in range(9)]
    assert all(name.strip() == "windrow" for _, _, name in last)
    assert min(int(microseconds) for _, microseconds, _ in last) < 50_000


@pytest.mark.parametrize("missing", ["numpy", "PIL"])
def test_the_demo_says_what_it_leaves_out(missing):
    if missing != "numpy":
        pytest.importorskip("numpy")
    code = f"import sys; sys.modules[{missing!r}] = None; from windrow.__main__ import main; sys.exit(main(['demo']))"
    said = run(code).stdout
    assert f"as {missing} is not installed" in said and "elements checked" in said


def test_other_commands_name_what_to_install():
    code = "import sys; sys.modules['numpy'] = None; from windrow.__main__ import main; sys.exit(main(['bench']))"
    with pytest.raises(subprocess.CalledProcessError) as info:
        run(code)
    assert "needs numpy: pip install" in info.value.stderr and "Traceback" not in info.value.stderr
