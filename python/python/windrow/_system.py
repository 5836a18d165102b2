"""The machine and the libraries on it. Imports nothing that is not in the standard library."""

from __future__ import annotations

import importlib
import os
import platform
from typing import Any, Tuple


def load(name: str) -> Tuple[Any, str]:
    """A module and an empty string, or None and why it is not there."""
    try:
        return importlib.import_module(name), ""
    except ModuleNotFoundError as error:
        return None, f"{error.name} is not installed"
    except Exception as error:
        return None, f"{name} does not load: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def optional(name: str) -> Any:
    """The module, or None where it is not installed or does not load."""
    return load(name)[0]


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cache_bytes() -> int:
    """Size of the last-level cache; 32 MiB where the system does not say."""
    try:
        with open("/sys/devices/system/cpu/cpu0/cache/index3/size", encoding="ascii") as file:
            return int(file.read().strip().rstrip("K")) * 1024
    except (OSError, ValueError):
        return 32 << 20
