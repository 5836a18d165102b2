"""`python -m windrow doctor`: what it says of devices and drivers."""

import os
import subprocess
import sys

import windrow.doctor
from windrow import _windrow


def doctor(**environment):
    command = [sys.executable, "-m", "windrow", "doctor"]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_doctor_says_what_there_is(driver):
    text = doctor()
    for part in ("driver for CUDA", "kernels by nvcc", "cuda:0", "compute capability", "upload", "direct pinned", "download"):
        assert part in text, part


def test_doctor_says_that_the_driver_is_too_old(monkeypatch):
    monkeypatch.setattr(_windrow, "cuda_build", lambda: {"toolkit": "13.0.88", "targets": "sm_90", "driver": (12, 4)})
    assert windrow.doctor.cuda().endswith("need a driver for CUDA 13: 580 or newer")
    monkeypatch.setattr(_windrow, "cuda_build", lambda: {"toolkit": "13.0.88", "targets": "sm_90", "driver": (13, 1)})
    assert windrow.doctor.cuda().endswith("for sm_90")


def test_doctor_says_what_there_is_not():
    assert "/nonexistent/libcuda.so" in doctor(WINDROW_CUDA_DRIVER="/nonexistent/libcuda.so")
