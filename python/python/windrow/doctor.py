"""Says what this build can do on this machine, and how it reads whose tensors.

For bug reports: run it in the environment and with the variables in which the bug shows."""

from __future__ import annotations

import argparse
import array
import json
import os
import platform
import statistics
import sys
import time
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import windrow as wr
from windrow import _shared_memory, _windrow
from windrow._system import cpu_name, load, num_cores

# The instruction sets that kernels for x86-64 use beside the baseline: all of them or none.
KERNEL_FLAGS = ("avx2", "fma", "f16c")

# A small tensor of each library.
PROBES: Dict[str, Callable[[Any], Any]] = {
    "torch": lambda torch: torch.arange(12.0).view(3, 4),
    "numpy": lambda numpy: numpy.arange(12.0).reshape(3, 4),
    "jax": lambda jax: jax.numpy.arange(12.0).reshape(3, 4),
    "paddle": lambda paddle: paddle.arange(12).reshape([3, 4]),
    "tvm_ffi": lambda tvm_ffi: tvm_ffi.from_dlpack(wr.asarray(array.array("f", range(12)))),
    "cupy": lambda cupy: cupy.arange(12.0).reshape(3, 4),
    "PIL.Image": lambda image: image.new("L", (4, 3)),
    "array": lambda module: module.array("f", range(12)),
}

# The interfaces of an object that has no exchange table, in the order in which they are tried.
PROTOCOLS = ("__dlpack__", "__cuda_array_interface__", "buffer", "__array_interface__")


def cpu_flags() -> Optional[List[str]]:
    """The processor's flags; None where the system does not list them."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.split(":", 1)[1].split() for line in file if line.startswith("flags")), None)
    except OSError:
        return None


def kernels() -> str:
    """The compiled kernels that run here."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"baseline of {platform.machine()}"
    flags = cpu_flags()
    if flags is None:
        return "chosen at run time; this system does not list the processor's flags"
    lacking = [flag for flag in KERNEL_FLAGS if flag not in flags]
    return f"baseline, the processor lacks {', '.join(lacking)}" if lacking else ", ".join(KERNEL_FLAGS)


# The CUDA version of the oldest driver that runs the kernels, and the driver's own version, by release of the toolkit:
# any of that release loads the machine code ("CUDA Compatibility", minor version compatibility), and 12.1 brought
# parameters of more than 4 KiB.
DRIVERS = {12: ((12, 1), "530 or newer"), 13: ((13, 0), "580 or newer")}


def cuda() -> str:
    """The driver and what the kernels were compiled for, or why there is no CUDA."""
    try:
        build = _windrow._cuda_build()
    except Exception as error:
        return str(error)
    (major, minor), toolkit = build["driver"], build["toolkit"]
    text = f"driver for CUDA {major}.{minor}; kernels by nvcc {toolkit} for {build['targets']}"
    release = int(toolkit.split(".")[0])
    needed, name = DRIVERS.get(release, ((release, 0), "a newer one"))
    if (major, minor) >= needed:
        return text
    return f"{text}, which need a driver for CUDA {needed[0]}.{needed[1]}: {name}"


def cuda_devices() -> Iterator[str]:
    """A line for each device, with what happens there: the first batch loads the kernels."""
    for device in wr.devices():
        if not device["device"].startswith("cuda"):
            continue
        major, minor = device["compute_capability"]
        text = (
            f"{device['device']}, {device['name']}, compute capability {major}.{minor}, "
            f"{device['multiprocessors']} multiprocessors, {device['total_memory'] / 2**30:.1f} GiB"
        )
        try:
            wr.Engine(device=device["device"])
            if not _windrow._reads_page_locked(device["index"]):
                text += "; kernels have stale copies of page-locked memory, as under confidential computing: samples there are copied first"
            try:
                _windrow._try_page_lock(device["index"])
            except wr.CudaError as error:
                text += f"; memory of worker processes cannot be page-locked, batches are copied once more: {error}"
        except Exception as error:
            text += f"; not usable: {error}"
        yield text


def locked_memory() -> str:
    """How much host memory a process may lock, and what is locked for copies to devices."""
    try:
        import resource

        soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    except (ImportError, OSError):
        return "unknown"
    limit = "none" if soft < 0 else f"{soft / 2**20:.0f} MiB"
    stats = wr.stats()
    return (
        f"{stats['pinned_bytes']} bytes free, {stats['pinned_used_bytes']} in use; "
        f"RLIMIT_MEMLOCK {limit}, by which most drivers are not bound"
    )


def cuda_paths() -> Iterator[str]:
    """The path of a stack for each place of samples and batch."""
    host = [wr.asarray(bytearray(1 << 12)) for _ in range(4)]
    places = {"cpu": host, "pinned": list(wr.stack(host, device="pinned")), "cuda": list(wr.stack(host, device="cuda"))}
    for source, samples in places.items():
        for target in places:
            plan = wr.explain(samples, device=target)
            cast = wr.explain(samples, device=target, dtype="float32")
            crossing = plan.bytes_to_device + plan.bytes_to_host
            yield f"{source:7} -> {target:7} {plan.path}, {crossing} of 16384 bytes staged; with a cast {cast.path}"


def memory() -> str:
    """Memory that is free, and the limit of the container if there is one."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            kib = {key: int(value.split()[0]) for key, value in (line.split(":", 1) for line in file)}
    except OSError:
        return "unknown"
    text = f"{kib['MemAvailable'] / 2**20:.1f} GiB of {kib['MemTotal'] / 2**20:.1f} GiB free"
    limit = _shared_memory.memory()
    return f"{text}, limit {limit / 2**30:.1f} GiB" if limit < kib["MemTotal"] << 10 else text


def shared_memory() -> str:
    """Size of the memory in which worker processes hand batches to their parent."""
    room = _shared_memory.room()
    return f"{room[0] / 2**30:.1f} GiB of {room[1] / 2**30:.1f} GiB free" if room else "none"


def workers() -> str:
    """The memory of worker processes' batches, and the counts of the workers that this process reads from."""
    if not hasattr(_windrow, "_start_pool"):
        return "new shared memory for each batch: this system has no memory that could be used again"
    counted = wr.stats()["workers"]
    text = f"up to {_shared_memory.pool_bytes() / 2**30:.1f} GiB of memory that is used again, for all workers of a loader"
    if counted["batches"]:
        text += f"; {counted['batches']} batches, {counted['refused']} times more than the limit, {counted['locked_bytes']} bytes page-locked"
    return text


def has_buffer(value: Any) -> bool:
    try:
        memoryview(value).release()
    except Exception:
        return False
    return True


def route(value: Any) -> str:
    """How windrow reads a value of this type."""
    way = str(_windrow._import_route(value))
    if way != "protocols":
        return {"exchange": "C exchange API"}.get(way, way)
    offered = [name for name in PROTOCOLS if has_buffer(value) if name == "buffer"]
    offered += [name for name in PROTOCOLS if name != "buffer" and hasattr(type(value), name)]
    return min(offered, key=PROTOCOLS.index, default="none")


def import_cost(make: Callable[[], Any]) -> float:
    """Nanoseconds to read one object of a list of a thousand, the median of some times."""
    values = [make() for _ in range(1000)]
    wr.SampleList(values)
    times = []
    for _ in range(9):
        begin = time.perf_counter_ns()
        wr.SampleList(values)
        times.append((time.perf_counter_ns() - begin) / len(values))
    return statistics.median(times)


def library(name: str, probe: Callable[[Any], Any]) -> Dict[str, Any]:
    """Version of a library, how its tensors are read, and what reading one costs; or what is wrong."""
    module, reason = load(name)
    if module is None:
        return {"library": name, "problem": reason}
    about = {"library": name, "version": getattr(module, "__version__", platform.python_version())}
    try:
        value = probe(module)
    except Exception as error:
        return {**about, "problem": f"makes no tensor here: {error}"}
    about["read by"] = route(value)
    try:
        return {**about, "nanoseconds": round(import_cost(lambda: probe(module)))}
    except Exception as error:
        return {**about, "problem": f"refused: {error}"}


def libraries() -> List[Dict[str, Any]]:
    """A row for each library of `PROBES`, which are imported. What they warn of meanwhile is not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [library(name, probe) for name, probe in PROBES.items()]


def huge_pages() -> str:
    """Whether the kernel gives huge pages on request, as windrow asks for for batches of some megabytes."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled", encoding="ascii") as file:
            mode = file.read().split("[")[-1].split("]")[0]
    except OSError:
        return "unknown"
    return "never: large batches take longer to be written for the first time" if mode == "never" else mode


def suggestions(rows: List[Dict[str, Any]]) -> Iterator[str]:
    """Suggestions for more speed or for a GPU on this machine, a line for each; `rows` are those of `libraries`."""
    if not wr.cuda_available() and platform.system() == "Linux":
        yield (
            f"for device=\"cuda\", on a machine with an NVIDIA GPU: install driver {DRIVERS[13][1]}; start a container with "
            "--gpus all; WINDROW_CUDA_DRIVER=PATH names a libcuda elsewhere"
        )
    elif wr.cuda_available() and "need a driver" in cuda():
        yield "the driver is older than the kernels: update it, or build from a checkout with CUDA_HOME set to a toolkit of its release"
    room = _shared_memory.room()
    if room and room[0] < 1 << 30:
        yield (
            f"less than 1 GiB of {_shared_memory.FOLDER} is free for batches of DataLoader workers, such as those of default_collate: "
            "docker run --shm-size=8g, or --ipc=host"
        )
    if huge_pages().startswith("never"):
        yield "large batches are faster in huge pages: echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
    if num_cores() < (os.cpu_count() or 1):
        yield f"this process may use {num_cores()} of {os.cpu_count()} cores: taskset, a container or the scheduler limits it"
    for row in rows:
        if row["library"] == "torch" and row.get("read by") in PROTOCOLS:
            yield f"torch {row['version']} has no C exchange API, and each tensor takes microseconds to read: pip install 'torch>=2.10'"
        elif "does not load" in row.get("problem", ""):
            yield f"{row['library']} is installed and does not load: reinstall it, or its dependencies"


def variables() -> str:
    """The environment variables of windrow and its neighbours that are set."""
    names = [name for name in os.environ if name.startswith("WINDROW_")]
    names += [name for name in ("CUDA_VISIBLE_DEVICES", "NVTX_INJECTION64_PATH") if name in os.environ]
    return ", ".join(f"{name}={os.environ[name]}" for name in sorted(names)) or "none"


def private_layouts() -> str:
    """Whether words of objects of CPython and torch are read, and why not. Imports torch."""
    load("torch")
    return "; ".join(f"{library}: {state}" for library, state in _windrow._private_layouts())


def facts() -> Dict[str, str]:
    """Facts about this installation, by name."""
    stats = wr.stats()
    observers = _windrow._observers()
    return {
        "windrow": f"{wr.__version__}, {getattr(_windrow, '__file__', '?')}",
        "python": f"{platform.python_version()}, {platform.platform()}",
        "processor": f"{cpu_name()}, {num_cores()} cores for this process",
        "kernels": kernels(),
        "stores": "around the caches from bytes {}; by {}".format(*_windrow._streaming_stores()),
        "threads": f"{wr.Engine().threads} for a large batch",
        "pool": f"{stats['pool_bytes']} bytes free, {stats['pool_used_bytes']} in use, 1 GiB at most kept free",
        "cuda": cuda(),
        "memory": memory(),
        "huge pages": huge_pages(),
        _shared_memory.FOLDER: shared_memory(),
        "workers": workers(),
        "logging": "on" if observers["logging"] else "off; WINDROW_LOG=1 or wr.set_logging() turns it on",
        "nvtx": observers["nvtx"] or "on, a profiler listens",
        "private layouts": private_layouts(),
        "variables": variables(),
    }


def cuda_facts() -> Iterator[Tuple[str, str]]:
    """Facts about CUDA, by name: a line for each device and each path. The driver is there."""
    for text in cuda_devices():
        yield "device", text
    yield "in use", f"{wr.stats()['device_bytes']} bytes of devices"
    yield "pinned", locked_memory()
    try:
        for text in cuda_paths():
            yield "path", text
    except Exception as error:
        yield "path", f"none: {error}"


def main(argv: List[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m windrow doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(argv)
    about = facts()
    devices = list(cuda_facts()) if wr.cuda_available() else []
    rows = libraries()
    if options.json:
        print(json.dumps({**about, "devices": [f"{name}: {text}" for name, text in devices], "libraries": rows, "suggestions": list(suggestions(rows))}, indent=1))
        return 0
    for name, text in [*about.items(), *devices]:
        print(f"{name:16}{text}")
    print("\nlibrary, version, how its tensors are read, time to read one")
    for row in rows:
        problem = f"  {row['problem']}" if "problem" in row else f"{row['nanoseconds']:6} ns"
        print(f"  {row['library']:10} {row.get('version', ''):16} {row.get('read by', ''):20}{problem}")
    print("\nsuggestions")
    for text in list(suggestions(rows)) or ["none"]:
        print(f"  {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
