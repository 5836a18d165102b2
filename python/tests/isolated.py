"""Scripts in processes of their own, for what may crash, hang or spoil a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent

PRELUDE = """
import ctypes, faulthandler, gc, os, signal, sys, threading, time
faulthandler.enable()
import numpy as np
import windrow as wr
from dlpack_harness import Handle, Producer
from helpers import assert_tensor, memory, paint, settle
"""


def python(*arguments, timeout=300, env=None):
    """Runs the interpreter: what it printed, and its exit code.

    It has a session of its own, all of which is ended when the time is up: a process that it started and that holds its output
    open would be waited for without end.
    """
    command = [sys.executable, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True) as process:
        try:
            said, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
            said, errors = process.communicate()
            raise AssertionError(f"not done after {timeout} s\n{said}{errors}") from None
    return subprocess.CompletedProcess(command, process.returncode, said, errors)


def run(script, *args, timeout=120, env=None, code=0):
    """Runs a script; what it prints. It has to end by itself with this exit code, without a word of a panic."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = python("-c", PRELUDE + script, *args, timeout=timeout, env={**os.environ, "PYTHONPATH": path, **(env or {})})
    said = done.stdout + done.stderr
    assert done.returncode == code, f"exit {done.returncode}\n{said}"
    assert "panicked" not in said and "Fatal" not in said, said
    return done.stdout
