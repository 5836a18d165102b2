"""scripts/ci/commit_msg.sh: which commit messages it takes."""

import os
import pathlib
import shutil
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


def test_only_commits_after_a_base_are_judged(tmp_path):
    script = tmp_path / "scripts/ci/commit_msg.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, script)
    author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=none"]
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    for message in ("ci: begin\n\nWhy.", "No area", "ci: end\n\nWhy."):
        subprocess.run(["git", *author, "-C", tmp_path, "commit", "--quiet", "--allow-empty", "-m", message], check=True)
    outcomes = {}
    for base in ("HEAD~2", "HEAD~1", "0" * 40):
        ran = subprocess.run([script], env={**os.environ, "COMMIT_BASE": base}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        outcomes[base] = (ran.returncode, "No area" in ran.stderr, ran.stdout.startswith("SKIP"))
    assert outcomes == {"HEAD~2": (1, True, False), "HEAD~1": (0, False, False), "0" * 40: (0, False, True)}
