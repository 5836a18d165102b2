#!/usr/bin/env python3
"""Writes what the workloads' machine code executes as traces for Accel-Sim, and compares the clocks that it took for them.

scripts/sim/device_traces.py FOLDER [--only TEXT]... [--scale 8] [--multiprocessors 16] [--arch 80]
scripts/sim/device_traces.py FOLDER --compare LOG...

The machine code is sm_80's, which Accel-Sim reads. For each workload of benches/gather/counted.rs, its numbers of samples
divided by the scale, FOLDER/WORKLOAD gets kernelslist.g with a kernel's trace; FOLDER/WORKLOAD.copy that of a plain
copy of half as many bytes as the workload reads and writes. Work is cut for so many multiprocessors. When Accel-Sim has run,
its output being FOLDER/WORKLOAD/LOG and FOLDER/WORKLOAD.copy/LOG, --compare prints the bytes of a clock and their share of
the copy's.
"""

import argparse
import ctypes
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import device_code  # noqa: E402
import device_counts as counts  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
# 16 bytes a lane, four times: sim_copy of crates/cudasim/kernels/test.cu.
COPY_THREADS, COPY_BYTES = 256, 256 * 64


def copy(driver, bytes):
    """Launches the plain copy, through the simulated driver."""
    cuda = ctypes.CDLL(driver)

    def call(name, *arguments):
        if code := getattr(cuda, name)(*arguments):
            sys.exit(f"{name}: error {code}")

    def allocated():
        address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(bytes))
        return address

    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    # The simulator takes any PTX that names the kernel.
    call("cuModuleLoadData", ctypes.byref(module), b"// sim_copy")
    call("cuModuleGetFunction", ctypes.byref(function), module, b"sim_copy")
    values = allocated(), allocated(), ctypes.c_uint64(bytes // 16)
    parameters = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))
    call("cuLaunchKernel", function, -(-bytes // COPY_BYTES), 1, 1, COPY_THREADS, 1, 1, 0, None, parameters, None)
    call("cuCtxSynchronize")


def copy_cubin(arch):
    cubin = device_code.OUT / f"copy_{arch}.cubin"
    source = ROOT / "crates/cudasim/kernels/test.cu"
    device_code.kernel_report.run("nvcc", "-cubin", "-O3", "-std=c++17", f"-arch=sm_{arch}", "-o", str(cubin), str(source))
    device_code.list_code(cubin)
    return cubin


def trace(folder, options):
    bench, driver = counts.built([options.arch])
    cubin, plain = device_code.compiled(options.arch), copy_cubin(options.arch)
    machine = {"CUDASIM_MULTIPROCESSORS": str(options.multiprocessors)}
    for only in options.only or [None]:
        with tempfile.TemporaryDirectory(dir=folder) as all_launches:
            traced = {**machine, "CUDASIM_DEVICE_CODE_TRACE": all_launches}
            found = counts.run(bench, driver, cubin, only, options.scale, **traced)
            names = iter((pathlib.Path(all_launches) / "kernelslist.g").read_text().split())
            for workload, launches in found:
                # The last of several traces with one name stays. Accel-Sim wants names without spaces.
                target = folder / workload["workload"].replace(" ", "-")
                shutil.rmtree(target, ignore_errors=True)
                target.mkdir()
                kernels = [next(names) for _ in launches]
                for kernel in kernels:
                    (pathlib.Path(all_launches) / kernel).rename(target / kernel)
                (target / "kernelslist.g").write_text("".join(f"{kernel}\n" for kernel in kernels))
                (target / "workload.json").write_text(json.dumps(workload))
                trace_copy(target.with_suffix(".copy"), driver, plain, (workload["read"] + workload["written"]) // 32 * 16, machine)
                print(target, flush=True)


def trace_copy(folder, driver, cubin, bytes, machine):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    variables = {"CUDASIM_DEVICE_CODE": str(cubin), "CUDASIM_DEVICE_CODE_TRACE": str(folder), "CUDASIM_DELAY_US": "0"}
    command = [sys.executable, __file__, str(folder), "--copy", driver, str(bytes)]
    subprocess.run(command, env={**os.environ, **machine, **variables}, check=True)
    (folder / "workload.json").write_text(json.dumps({"read": bytes, "written": bytes}))


def bytes_per_clock(folder, log):
    """The bytes per clock of a replay; None if it has not come to its end."""
    path = folder / log
    text = path.read_text(errors="replace") if path.exists() else ""
    clocks = re.findall(r"^gpu_tot_sim_cycle = (\d+)", text, re.M)
    workload = json.loads((folder / "workload.json").read_text())
    done = "exit detected" in text and clocks
    return (workload["read"] + workload["written"]) / int(clocks[-1]) if done else None


def compare(folder, logs):
    print(f"{'workload':26}" + "".join(f"{log:>14}{'of a copy':>11}" for log in logs))
    for copied in sorted(folder.glob("*.copy")):
        line = f"{copied.stem:26}"
        for log in logs:
            assembled, plain = bytes_per_clock(copied.with_suffix(""), log), bytes_per_clock(copied, log)
            line += f"{assembled or 0:14.1f}{assembled / plain if assembled and plain else 0:11.3f}"
        print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", action="append", help="workloads whose name has this in it")
    parser.add_argument("--scale", type=int, default=8)
    parser.add_argument("--multiprocessors", type=int, default=16)
    parser.add_argument("--arch", type=int, default=80, help="of the machine code; Accel-Sim reads that of 80")
    parser.add_argument("--compare", nargs="+", metavar="LOG")
    parser.add_argument("--copy", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.copy:
        copy(options.copy[0], int(options.copy[1]))
    elif options.compare:
        compare(options.folder, options.compare)
    else:
        options.folder.mkdir(parents=True, exist_ok=True)
        trace(options.folder, options)


if __name__ == "__main__":
    main()
