"""Shared memory, in which worker processes hand on batches: what depends on the system, with a plain fallback. Imports
nothing that is not in the standard library, but for torch's own function."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from typing import Any, Iterator, Optional, Tuple

# The folder in which Linux has it as files. Other systems have no such folder.
FOLDER = "/dev/shm"


def room() -> Optional[Tuple[int, int]]:
    """Bytes that are free, and bytes in all; None where the system does not say."""
    try:
        usage = shutil.disk_usage(FOLDER)
    except OSError:
        return None
    return usage.free, usage.total


def reserve(name: str, nbytes: int) -> None:
    """Reserves the pages of a segment: without memory for them this is an OSError here, where otherwise the first write to a
    missing page would end the process. Elsewhere than on Linux nothing is reserved."""
    if sys.platform == "linux":
        with open(os.path.join(FOLDER, name), "rb+") as segment:
            os.posix_fallocate(segment.fileno(), 0, nbytes)


def torch_storage(nbytes: int) -> Any:
    """Uninitialised memory of torch's that other processes can map. Where torch has no function for it, this is ordinary
    memory: torch copies the batch when it hands it on."""
    import torch

    storages: Any = torch.UntypedStorage
    return storages._new_shared(nbytes, device="cpu") if hasattr(storages, "_new_shared") else storages(nbytes, device="cpu")


def pool_bytes() -> int:
    """Bytes for the pools of all workers of a loader: half of the memory, and an eighth of the addresses that a process may have
    (`ulimit -v`). A pool takes four addresses for each byte, in its worker and in the loop."""
    found = memory() // 2
    if sys.platform == "linux":
        import resource

        addresses = resource.getrlimit(resource.RLIMIT_AS)[0]
        if addresses != resource.RLIM_INFINITY:
            found = min(found, addresses // 8)
    return found


@functools.lru_cache(maxsize=None)
def memory(root: str = "/sys/fs/cgroup", groups: str = "/proc/self/cgroup") -> int:
    """Bytes of memory: the machine's, or the least that a control group of this process or one around it allows."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _limit_files(root, groups):
        try:
            with open(name) as file:
                found.append(int(file.read()))
        except (OSError, ValueError):  # "max" is no limit.
            pass
    return min(found)


def _limit_files(root: str, groups: str) -> Iterator[str]:
    """Files that would have the limits, of both versions of control groups; not all are there."""
    yield from (f"{root}/memory.max", f"{root}/memory/memory.limit_in_bytes")
    try:
        with open(groups) as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return
    for _, controllers, path in lines:
        if controllers == "":
            folder, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = f"{root}/memory", "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part]
        yield from ("/".join([folder, *parts[:count], name]) for count in range(1, len(parts) + 1))
