"""Scripts in processes of their own, for what may crash, hang or spoil a process."""

from __future__ import annotations

import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
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

# The process that `fork` asks: it imports torch once, and forks for each script that comes, with two files for what it prints.
SERVER = """
import gc, json, os, socket, sys
import torch
gc.collect(), gc.freeze()

def next_script():
    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        request, files, _, _ = socket.recv_fds(control, 1 << 20, 2)
        if not request:
            sys.exit()
        child = os.fork()
        if not child:
            control.close()
            os.setsid()
            for number, file in enumerate(files, 1):
                os.dup2(file, number)
            script, sys.argv, environment = json.loads(request)
            os.environ.clear()
            os.environ.update(environment)
            return script
        for file in files:
            os.close(file)
        control.send(str(child).encode())
        control.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())

exec(next_script())
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


def environment(env):
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, **(env or {})}


def run(script, *args, timeout=120, env=None, code=0):
    """Runs a script; what it prints. It has to end by itself with this exit code, without a word of a panic."""
    done = python("-c", PRELUDE + script, *args, timeout=timeout, env=environment(env))
    return checked(done.returncode, done.stdout, done.stderr, code)


def checked(status, said, errors, code=0):
    said_all = said + errors
    assert status == code, f"exit {status}\n{said_all}"
    assert "panicked" not in said_all and "Fatal" not in said_all, said_all
    return said


def fork(script, *args, timeout=120, env=None):
    """Runs a script as `run` does, in a fork of a process that has imported torch and nothing else: its import is most of what
    such a script takes."""
    if sys.platform != "linux":
        return run(script, *args, timeout=timeout, env=env)
    control, _ = server(tuple(sorted((env or {}).items())))
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
        request = json.dumps([PRELUDE + script, ["-c", *map(str, args)], environment(env)])
        socket.send_fds(control, [request.encode()], [said.fileno(), errors.fileno()])
        control.settimeout(timeout)
        child = int(control.recv(16))
        try:
            status = int(control.recv(16))
        except socket.timeout:
            os.killpg(child, signal.SIGKILL)
            control.settimeout(None)
            control.recv(16)
            status = f"by SIGKILL, not done after {timeout} s"
        said.seek(0), errors.seek(0)
        return checked(status, said.read().decode(), errors.read().decode())


@functools.cache
def server(env):
    """A server that was started with these variables, and the socket to it, at whose end it ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-c", SERVER, str(theirs.fileno())]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=environment(dict(env)))
    return ours, process
