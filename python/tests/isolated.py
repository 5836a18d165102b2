"""Scripts in processes of their own, for what may crash, hang or spoil a process."""

from __future__ import annotations

import os
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


def run(script, *args, timeout=120, env=None, code=0):
    """Runs a script; what it prints. It has to end by itself with this exit code, without a word of a panic."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]), **(env or {})},
    )
    said = done.stdout + done.stderr
    assert done.returncode == code, f"exit {done.returncode}\n{said}"
    assert "panicked" not in said and "Fatal" not in said, said
    return done.stdout
