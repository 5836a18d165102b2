#!/usr/bin/env python3
"""Reports what the compiler made of the kernels: registers, memory, instructions, and what follows for a multiprocessor.

scripts/sim/kernel_report.py [--check] [--write docs/gpu-performance.md] [FATBIN]

Reads the image that the library of the tests embeds, by cuobjdump and nvdisasm ($CUDA_HOME/bin or PATH).
--check fails on spills in aligned loops over vectors, shared memory, barriers, too many registers for the blocks that
kernels/policy.h asks for, and kernels without 16-byte loads and stores. (How often the other loops spill is counted by
scripts/sim/device_counts.py.) --write puts the table into a file, between its marks.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MARKS = "<!-- kernels: written by scripts/sim/kernel_report.py -->", "<!-- end of kernels -->"

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": threads of a multiprocessor. Each has
# 65,536 registers, given out to warps in units of 256.
THREADS = {80: 2048, 86: 1536, 89: 1536, 90: 2048, 100: 2048, 120: 1536}
REGISTERS = 65536

# 16-byte vectors of a lane that are under way together: kRowVectors of kernels/rows.cuh.
VECTORS = 4

# The kernel of elements that share scales.
QUANTISE = "windrow_quantise"


def policy():
    """The numbers of kernels/policy.h."""
    text = (ROOT / "kernels/policy.h").read_text()
    return {name: int(value) for name, value in re.findall(r"#define WINDROW_(\w+) (\d+)", text)}


def tool(name):
    home = os.environ.get("CUDA_HOME")
    path = os.pathsep.join(filter(None, [home and f"{home}/bin", os.environ.get("PATH")]))
    found = shutil.which(name, path=path)
    if not found:
        sys.exit(f"{name} was not found in $CUDA_HOME/bin or PATH: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    return found, {**os.environ, "PATH": path}


def run(*command, cwd=None):
    program, environment = tool(command[0])
    return subprocess.run([program, *command[1:]], env=environment, cwd=cwd, check=True, capture_output=True, text=True).stdout


def embedded():
    """The image in the library of the tests."""
    command = [os.environ.get("CARGO", "cargo"), "build-for-tests", "--message-format=json"]
    lines = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    messages = map(json.loads, lines)
    folders = [m["out_dir"] for m in messages if m["reason"] == "build-script-executed" and "out_dir" in m]
    images = [image for image in (pathlib.Path(folder) / "windrow.fatbin" for folder in folders) if image.exists()]
    if not images:
        sys.exit("no windrow.fatbin among the build's outputs")
    return images[0]


def resources(image):
    """(architecture, kernel) -> registers, stack, shared, local."""
    found, arch, kernel = {}, None, None
    for line in run("cuobjdump", "--dump-resource-usage", str(image)).splitlines():
        if match := re.match(r"arch = sm_(\d+)", line):
            arch = int(match[1])
        elif match := re.match(r" Function (\w+):", line):
            kernel = match[1]
        elif line.startswith("  REG:"):
            found[arch, kernel] = {name.lower(): int(n) for name, n in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", line)}
    return found


def instructions(image):
    """(architecture, kernel) -> address, opcode and text of each instruction."""
    found, arch, kernel = {}, None, None
    for line in run("cuobjdump", "-sass", str(image)).splitlines():
        if match := re.match(r"arch = sm_(\d+)", line):
            arch = int(match[1])
        elif match := re.match(r"\s*Function : (\w+)", line):
            kernel = match[1]
            found[arch, kernel] = []
        elif match := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+((?:@!?U?P\w+ )?\s*([A-Z][A-Z0-9_.]*)[^;]*);", line):
            found[arch, kernel].append((int(match[1], 16), match[3], match[2]))
    return found


def vector_loops(code):
    """The innermost loops that store 16 bytes at once: where each begins, and the opcodes of its body."""
    index = {address: at for at, (address, _, _) in enumerate(code)}
    loops = []
    for at, (address, opcode, text) in enumerate(code):
        target = re.search(r"\b0x[0-9a-f]+\b", text) if opcode.startswith("BRA") else None
        if target and int(target[0], 16) < address:
            loops.append((index[int(target[0], 16)], at))
    is_inner = lambda loop: not any(other != loop and loop[0] <= other[0] and other[1] <= loop[1] for other in loops)
    bodies = ((code[first][0], [opcode for _, opcode, _ in code[first : last + 1]]) for first, last in filter(is_inner, loops))
    return [(address, body) for address, body in bodies if any(is_access(opcode, "STG", ".128") for opcode in body)]


def is_access(opcode, name, width=""):
    return opcode.startswith(name) and width in opcode


def is_aligned(body):
    """Loops over sources at any address read them word by word, and a word more than they need."""
    loads = [opcode for opcode in body if is_access(opcode, "LDG")]
    stores = sum(is_access(opcode, "STG", ".128") for opcode in body)
    return any(".128" in opcode for opcode in loads) or len(loads) <= stores


def spilled_loops(code):
    """Addresses of aligned loops over vectors that spill."""
    loops = (loop for loop in vector_loops(code) if is_aligned(loop[1]))
    return [address for address, body in loops if any(is_access(opcode, ("LDL", "STL")) for opcode in body)]


def occupancy(arch, registers, threads):
    """Resident blocks of a multiprocessor."""
    warp_registers = -(-registers // 8) * 8 * 32
    by_registers = REGISTERS // warp_registers // (threads // 32)
    return min(by_registers, THREADS[arch] // threads)


def rows(image):
    constants, listed = policy(), instructions(image)
    for (arch, kernel), used in sorted(resources(image).items()):
        if not kernel.startswith("windrow_assemble_") and kernel != QUANTISE:
            continue  # a function that kernels call, or one of those that make a table of indices
        blocks = occupancy(arch, used["reg"], constants["THREADS"])
        code = listed[arch, kernel]
        num_accesses = lambda names, width="": sum(is_access(opcode, names, width) for _, opcode, _ in code)
        yield {
            "arch": arch,
            "kernel": kernel,
            **used,
            "instructions": len(code),
            "vector_loops": len(vector_loops(code)),
            "spilled_loops": spilled_loops(code),
            "barriers": num_accesses(("BAR", "SHFL")),
            "loads_16": num_accesses("LDG", ".128"),
            "stores_16": num_accesses("STG", ".128"),
            "blocks": blocks,
            "asked": constants["QUANTISED_BLOCKS" if kernel == QUANTISE else "ANY_BLOCKS" if "_any_" in kernel else "BLOCKS"],
            "threads": blocks * constants["THREADS"],
            "in_flight": blocks * constants["THREADS"] * VECTORS * 16,
        }


def faults(row):
    if row["spilled_loops"]:
        yield f"spills in aligned loops over vectors, at {', '.join(map(hex, row['spilled_loops']))}"
    if not row["vector_loops"]:
        yield "no loops over vectors"
    # Lanes of a group exchange its largest magnitude.
    if row["shared"] or row["barriers"] and row["kernel"] != QUANTISE:
        yield "shared memory or barriers"
    if row["blocks"] < row["asked"]:
        yield f"{row['reg']} registers leave room for {row['blocks']} blocks of {row['asked']}"
    if not row["loads_16"] or not row["stores_16"]:
        yield "no 16-byte loads or no 16-byte stores"


def table(all_rows):
    lines = [
        "| GPU | kernel | registers | instructions | 16-byte loads, stores | resident blocks | threads | bytes of copies in flight |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in all_rows:
        lines.append(
            f"| sm_{row['arch']} | {row['kernel'].removeprefix('windrow_')} | {row['reg']} | {row['instructions']} "
            f"| {row['loads_16']}, {row['stores_16']} | {row['blocks']} | {row['threads']} | {row['in_flight'] // 1024} KiB |"
        )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("image", nargs="?", type=pathlib.Path)
    options = parser.parse_args()
    all_rows = list(rows(options.image or embedded()))
    print(table(all_rows))
    if options.write:
        text = options.write.read_text()
        before, rest = text.split(MARKS[0])
        options.write.write_text(f"{before}{MARKS[0]}\n\n{table(all_rows)}\n\n{MARKS[1]}{rest.split(MARKS[1])[1]}")
    bad = [f"sm_{row['arch']} {row['kernel']}: {fault}" for row in all_rows for fault in faults(row)]
    if options.check and (bad or not all_rows):
        sys.exit("\n".join(bad) or "no kernels in the image")


if __name__ == "__main__":
    main()
