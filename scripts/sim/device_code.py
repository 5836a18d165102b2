#!/usr/bin/env python3
"""Takes the machine code out of the image that the engine embeds, as the simulator's emulator reads it.

scripts/sim/device_code.py [--out FOLDER] [--arch 90]... [FATBIN]
scripts/sim/device_code.py --compile 90    only compiles the kernels with source lines, as test_device_code.py takes them
scripts/sim/device_code.py --check 80      only checks that the sources compile for this architecture, without machine code

For each architecture FOLDER gets sm_90.cubin and sm_90.sass, its listing; FOLDER is target/device-code. With
CUDASIM_DEVICE_CODE=target/device-code/sm_90.cubin the simulated driver runs that instead of the kernels'
bodies as g++ compiled them. Prints the paths of the cubins.
"""

import argparse
import fcntl
import os
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
import kernel_report  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "target/device-code"


def extract(image, folder=OUT, arches=None):
    """Architecture -> cubin, with its listing beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for line in kernel_report.run("cuobjdump", "--list-elf", str(image)).splitlines():
        name = line.split()[-1]
        arch = int(re.search(r"sm_(\d+)", name)[1])
        if arches and arch not in arches:
            continue
        kernel_report.run("cuobjdump", "--extract-elf", name, str(image.resolve()), cwd=folder)
        cubin = folder / f"sm_{arch}.cubin"
        (folder / name).replace(cubin)
        list_code(cubin)
        found[arch] = cubin
    return found


def compiled(arch, folder=OUT):
    """The kernels of one architecture with their source lines: those of the engine's image if WINDROW_CUDA_LINES=1 gave it some,
    else compiled as build.rs does. Lines change no instruction. Kept until a source changes; a second process waits for the first."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"lock_{arch}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        image = kernel_report.embedded() if os.environ.get("WINDROW_CUDA_LINES") == "1" else None
        return (image and of_image(image, arch, folder)) or compiled_alone(arch, folder)


def is_newer(cubin, sources):
    return cubin.exists() and cubin.stat().st_mtime > max(source.stat().st_mtime for source in sources)


def of_image(image, arch, folder):
    cubin = folder / f"embedded/sm_{arch}.cubin"
    return cubin if is_newer(cubin.with_suffix(".sass"), [image]) else extract(image, cubin.parent, [arch]).get(arch)


def compiled_alone(arch, folder):
    cubin, unit = folder / f"lines_{arch}.cubin", folder / f"lines_{arch}.cu"
    sources = [source for source in (ROOT / "kernels").iterdir() if source.is_file()]
    if is_newer(cubin, sources):
        return cubin
    unit.write_text("".join(f'#include "{source}"\n' for source in sorted(sources) if source.suffix == ".cu"))
    new = folder / f"new_{arch}.cubin"
    kernel_report.run("nvcc", "-cubin", "-O3", "-std=c++17", "-lineinfo", f"-arch=sm_{arch}", "-o", str(new), str(unit))
    list_code(new).replace(cubin.with_suffix(".sass"))
    return new.replace(cubin)


def list_code(cubin):
    """Writes the listing of a cubin beside it, with source lines, those of callers that a function was inlined into too."""
    listing, new = cubin.with_suffix(".sass"), cubin.with_suffix(".new")
    new.write_text(kernel_report.run("nvdisasm", "-c", "-gi", str(cubin)))
    return new.replace(listing)


def listed(cubin):
    """(kernel, offset) -> text of an instruction, and its place in the source: files, from the innermost function out."""
    found, kernel, files, before = {}, None, [], []
    for line in cubin.with_suffix(".sass").read_text().splitlines():
        if match := re.search(r"\.section\s+\.text\.(\w+)", line):
            kernel, files, before = match[1], [], []
        elif match := re.search(r'//## File "([^"]+)"', line):
            files.append(match[1].rsplit("/", 1)[-1])
        elif match := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s*([^;]*);", line):
            # One without a note is of the same place as the one before.
            before, files = files or before, []
            found[kernel, int(match[1], 16)] = match[2].strip(), before
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    parser.add_argument("--arch", type=int, action="append")
    parser.add_argument("--compile", type=int)
    parser.add_argument("--check", type=int)
    parser.add_argument("image", nargs="?", type=pathlib.Path)
    options = parser.parse_args()
    if options.compile:
        print(compiled(options.compile))
        return
    if options.check:
        OUT.mkdir(parents=True, exist_ok=True)
        nvcc, environment = kernel_report.tool("nvcc")
        flags = "-ptx", "-std=c++17", "-Xcicc", "-O0", f"-arch=compute_{options.check}", "-o", OUT / f"check_{options.check}.ptx"
        sys.exit(subprocess.run([nvcc, *flags, ROOT / "kernels/windrow.cu"], env=environment).returncode)
    found = extract(options.image or kernel_report.embedded(), options.out, options.arch)
    if not found or (options.arch and set(options.arch) - set(found)):
        sys.exit(f"the image has machine code for {sorted(found) or 'nothing'}: see WINDROW_CUDA_ARCHS")
    for cubin in found.values():
        print(cubin)


if __name__ == "__main__":
    main()
