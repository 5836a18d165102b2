"""The machine and the libraries on it. Imports nothing that is not in the standard library."""

from __future__ import annotations

import glob
import importlib
import os
import platform
from pathlib import Path
from typing import Any, Dict, Tuple


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


def caches() -> Dict[int, int]:
    """The bytes of each data cache that the first core reaches, by level; empty where the system does not say."""
    found = {}
    for folder in sorted(glob.glob("/sys/devices/system/cpu/cpu0/cache/index*")):
        try:
            level, kind, size = [Path(folder, name).read_text("ascii").strip() for name in ("level", "type", "size")]
            if kind != "Instruction":
                found[int(level)] = int(size.rstrip("K")) * 1024
        except (OSError, ValueError):
            pass
    return found


def cache_bytes() -> int:
    """Bytes of the third-level cache; 32 MiB if there is none or the system does not say."""
    return caches().get(3, 32 << 20)
