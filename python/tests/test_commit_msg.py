"""scripts/ci/commit_msg.sh: which commit messages it takes."""

import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/ci/commit_msg.sh"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a bash script")


def check(folder, message):
    file = folder / "MESSAGE"
    file.write_text(message)
    return subprocess.run([SCRIPT, file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    "message",
    [
        "plan: check offsets\n\nTwo callers need it.\n",
        "plan: " + "x" * 54 + "\n\nSixty characters.\n",
        "src/plan,docs: check offsets\n\nWhy.\n# Please enter the commit message\n# Changes:\n",
        "fixup! plan: check offsets\n",
        "Merge branch 'one' into two\n",
    ],
)
def test_messages_of_the_rule(tmp_path, message):
    ran = check(tmp_path, message)
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize(
    "message, fault",
    [
        ("Offsets are checked\n\nWhy.\n", "is not"),
        ("plan:check offsets\n\nWhy.\n", "is not"),
        ("plan: " + "x" * 55 + "\n\nSixty-one characters.\n", "61 characters, at most 60"),
        ("plan: check offsets.\n\nWhy.\n", "full stop"),
        ("plan: check offsets\nWhy.\n", "a blank line"),
        ("plan: check offsets\n", "a body"),
        ("plan: check offsets\n\n# Only a comment\n", "a body"),
        ("plan: check offsets\n\n# ------------------------ >8 ------------------------\ndiff --git a b\n", "a body"),
        ("", "is not"),
    ],
)
def test_messages_that_break_it(tmp_path, message, fault):
    ran = check(tmp_path, message)
    assert ran.returncode == 1 and fault in ran.stderr
