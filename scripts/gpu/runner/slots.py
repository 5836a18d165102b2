#!/usr/bin/env python3
"""Runs the slots of a queue and writes a record of each: the loop of slots.sh, which calls it. Also adds records to a file.

slots.py --add TO FROM...    appends to TO the records of FROM that it does not have
slots.py run OPTION...       as slots.sh calls it

A row of a queue is NAME|SECONDS|LIMIT|DEPENDS|SIMULATOR|COMMAND, for bash. A slot is done if a record says that it was ok with
the same hash of what it depends on: `kernels` (of this architecture, and on this GPU), `engine`, or `machine` (asked of each);
what a simulated driver answered is never a GPU's answer, nor the other way round. A name after ! is asked of each machine too, and what follows it waits until it was ok there.
"""

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time

# Programs and libraries that a machine with a GPU is expected to have. A SKIP for want of it would hide that a slot
# asked nothing; one that merely names a library, as for what a release of it cannot do, hides nothing.
LIBRARY = r"(?:\btorch\b|cupy|\bjax\b|triton|pytest|\bncu\b|compute-sanitizer)"
EXPECTED = re.compile(
    rf"{LIBRARY}.*(not installed|(not|n't) be imported)|(not import|no module named) .*{LIBRARY}|CUDA (engine|device)|no device|libcuda|not in this bundle",
    re.I,
)
# The name of the GPU in records of a simulated driver.
SIMULATED = "simulated driver"
# Reasons that one GPU and a real driver give.
ALLOWED = re.compile(r"simulat|several devices|two devices|second (GPU|device)|without a GPU|not with a GPU", re.I)
# `SKIP: reason` of the programs; pytest's -rs puts a place before the reason.
SKIP = re.compile(r"^SKIP(?:PED \[\d+\] \S+:)?:? *(.*)")
NOTE = re.compile(r"FAILED|panicked|error:|Error:|ERROR SUMMARY|passed|compared|windrow right|workloads")
FAULT = re.compile(r"^(FAILED|E  )|panicked|error|Error")
# Seconds between SIGTERM and SIGKILL.
GRACE = 5
# Marks every process of a slot, in whatever group or session it is.
MARK = "WINDROW_SLOTS_STATE"


def refuse(text):
    print(text, file=sys.stderr)
    sys.exit(2)


def records_of(path):
    """The records of a file. A line that was torn is none: its slot had not finished."""
    found = []
    try:
        lines = pathlib.Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return found
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "slot" in record:
            found.append(record)
    return found


def append(path, records):
    """Whole lines, written at once, behind the last whole line."""
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file).st_size
        end = size
        while end and os.pread(file, 1, end - 1) != b"\n":
            end -= 1
        os.ftruncate(file, end)
        if os.pwrite(file, text, end) != len(text):
            os.ftruncate(file, end)
            raise OSError(f"{path}: the disk is full")
        os.fsync(file)
    finally:
        os.close(file)


def add(to, sources):
    known = {json.dumps(record, sort_keys=True) for record in records_of(to)}
    new = []
    for record in (record for source in sources for record in records_of(source)):
        key = json.dumps(record, sort_keys=True)
        if key not in known:
            known.add(key)
            new.append(record)
    append(to, new)
    print(f"{to}: {len(new)} new records")


class Slot:
    def __init__(self, row):
        name, expected, limit, self.depends, self.simulator, self.command = row.split("|", 5)
        self.is_needed, self.name = name.startswith("!"), name.lstrip("!")
        self.expected, self.limit = int(expected), int(limit)
        if self.depends not in ("kernels", "engine", "machine") or self.simulator not in ("short", "all", "-"):
            refuse(f"a slot that is none: {row}")


def queue_of(path):
    rows = pathlib.Path(path).read_text().splitlines()
    return [Slot(row) for row in rows if row.strip() and not row.startswith("#")]


def kernels_of(path, arch):
    """The hash of the machine code that a GPU of this architecture executes: its own, else an earlier one of the same major
    number, else what the driver compiles."""
    try:
        known = dict(line.split() for line in pathlib.Path(path).read_text().splitlines())
    except FileNotFoundError:
        return "unknown"
    if arch.isdigit():
        usable = [int(one) for one in known if one.isdigit() and int(one) // 10 == int(arch) // 10 and int(one) <= int(arch)]
        if usable:
            return known[str(max(usable))]
    return known.get("ptx", "unknown")


def is_simulated(record):
    return record.get("gpu") == SIMULATED


def state_of(slot, here, earlier, facts):
    """never: it has not run like this; ok; again: it failed or was stopped. `here` are the records of this machine."""
    records = here if slot.is_needed or slot.depends == "machine" else [*earlier, *here]
    same = [record for record in records if record["slot"] == slot.name and is_simulated(record) == is_simulated(facts)]
    if slot.depends != "machine":
        same = [record for record in same if record.get(slot.depends) == facts[slot.depends]]
    if slot.depends == "kernels":
        same = [record for record in same if record.get("gpu") == facts["gpu"]]
    if not same:
        return "never"
    return "ok" if any(record["verdict"] == "ok" for record in same) else "again"


def in_order(slots, states, again):
    """Slots that never ran come before those that failed. A slot that others need keeps its place in the queue."""
    first = [slot for slot in slots if states[slot.name] == "never" or slot.is_needed and states[slot.name] == "again"]
    second = [slot for slot in slots if states[slot.name] == "again" and not slot.is_needed]
    return first + second + ([slot for slot in slots if states[slot.name] == "ok"] if again else [])


def processes_of(state):
    """Processes of slots of this state: the mark is in their environment."""
    mark = f"{MARK}={state}".encode()
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    yield int(folder.name)
            except OSError:
                continue  # it has ended, or is somebody else's


def end_all(state):
    """Ends every process that a slot left behind; one that waits for a failed device cannot be ended."""
    deadline = time.monotonic() + GRACE
    while found := list(processes_of(state)):
        if time.monotonic() > deadline:
            return found
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
    return []


def dies_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def gpu_answers():
    try:
        asked = subprocess.Popen(["nvidia-smi", "-L"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        asked.wait(timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        # A process cannot even be killed after a failure of the GPU, so nobody waits for it.
        return False
    return asked.stdout.read().startswith(b"GPU")


class Queue:
    def __init__(self, options):
        self.options, self.begin = options, time.monotonic()
        self.here, self.state, self.out = (pathlib.Path(path).resolve() for path in (options.here, options.state, options.out))
        self.keep = self.state / "files"
        self.done = self.state / "done.jsonl"
        gpu, driver, arch = (options.gpu.split(", ") + ["", ""])[:3]
        if options.simulate:
            gpu, driver, arch = SIMULATED, "", "90"
        read = lambda name: (self.here / name).read_text().strip() if (self.here / name).exists() else "unknown"
        self.facts = {
            "commit": read("COMMIT"), "gpu": gpu, "driver": driver,
            "kernels": kernels_of(self.here / "KERNELS", arch.replace(".", "")), "engine": read("ENGINE"),
        }  # fmt: skip
        self.slots = [slot for slot in queue_of(options.queue) if not options.only or slot.name in options.only.split()]
        if options.simulate == "short":
            self.slots = [slot for slot in self.slots if slot.simulator == "short"]
        known = {slot.name for slot in self.slots}
        if unknown := [name for name in (options.only or "").split() if name not in known]:
            refuse(f"no such slot: {' '.join(unknown)}")
        self.is_known_machine = not options.simulate and gpu_answers()
        self.verdicts, self.left, self.over = [], [], False

    def seconds_left(self):
        return self.options.budget - (time.monotonic() - self.begin)

    def states(self):
        here = records_of(self.done)
        earlier = [record for file in self.options.done for record in records_of(file)]
        return {slot.name: state_of(slot, here, earlier, self.facts) for slot in self.slots}

    def obstacle(self, slot):
        """Why a slot cannot be asked here at all, if it cannot."""
        simulate = self.options.simulate
        if simulate and slot.simulator == "-":
            return "the simulated driver has nothing to say of it"
        if self.options.release == "4.4.0" and slot.name in self.options.not_under_gvisor.split():
            return "uname -r is 4.4.0, gVisor: no tool reads the GPU's counters or patches its code"
        return None

    def run(self):
        self.done.parent.mkdir(parents=True, exist_ok=True)
        lock = open(self.state / "lock", "w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            refuse(f"another queue runs with {self.state}")
        # The handler ends the running slot, too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        end_all(self.state)
        append(self.done, [])  # drops a torn line
        self.keep.mkdir(exist_ok=True)
        self.out.mkdir(parents=True, exist_ok=True)
        self.versions = self.ask_versions()
        facts = self.facts
        print(f"windrow {facts['commit']}, kernels {facts['kernels']}, engine {facts['engine']}, on {facts['gpu']}, {self.options.budget} s", flush=True)
        (self.out / "slots.txt").write_text("")
        for slot in in_order(self.slots, self.states(), self.options.again):
            if self.over:
                self.left.append(slot.name)
            elif reason := self.obstacle(slot):
                self.say("SKIP", slot.name, 0, reason)
            elif self.seconds_left() < (1 if self.options.simulate else slot.expected):
                self.left.append(slot.name)
                self.say("not now", slot.name, 0, f"needs {slot.expected} s, {self.seconds_left():.0f} s are left")
            else:
                self.run_slot(slot)
        self.save()
        if self.left:
            print(f"Left for the next call: {' '.join(self.left)}")
        print(f"{len(self.verdicts)} slots, {time.monotonic() - self.begin:.0f} s; written: {self.out}/{{done.jsonl,slots.txt,results.tar.gz}}")
        return 1 if "failed" in self.verdicts else 3 if self.left or "stopped" in self.verdicts else 0

    def ask_versions(self):
        code = (
            "import importlib.metadata as m, json, platform; v = {'python': platform.python_version()}\n"
            "for name in 'windrow numpy torch triton cupy-cuda13x cupy-cuda12x jax numba-cuda pytest'.split():\n"
            "    try: v[name] = m.version(name)\n"
            "    except m.PackageNotFoundError: pass\n"
            "print(json.dumps(v))"
        )
        try:
            return json.loads(subprocess.run([self.options.python, "-c", code], capture_output=True, timeout=60).stdout)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            return {}

    @staticmethod
    def say(verdict, name, seconds, note):
        print(f"{verdict:<7} {name:<12} {seconds:>4.0f} s  {note}", flush=True)

    def run_slot(self, slot):
        log, figures = self.keep / f"{slot.name}.txt", self.keep / f"{slot.name}.json"
        figures.unlink(missing_ok=True)
        left = self.seconds_left()
        full_limit = slot.limit * (3 if self.options.simulate else 1)
        limit, begin, when = min(full_limit, left), time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            status, is_late = self.execute(slot, log, figures, limit)
            seconds = time.monotonic() - begin
        finally:
            stuck = end_all(self.state)
        lines = log.read_text(errors="replace").splitlines()
        verdict, note = self.judge(lines, status, is_late, limit, full_limit)
        if verdict == "SKIP":
            self.say("SKIP", slot.name, seconds, note)
            return
        record = {
            "slot": slot.name, "verdict": verdict, "status": status, "seconds": round(seconds, 1), **self.facts, "depends": slot.depends,
            "versions": self.versions, "command": slot.command, "note": note, "when": when,
        }  # fmt: skip
        if figures.exists():
            try:
                record["figures"] = json.loads(figures.read_text())
            except ValueError:
                record["note"] = f"its figures are no JSON; {note}"
        if stuck:
            record["note"] = f"processes {stuck} could not be ended; {record['note']}"
        append(self.done, [record])
        self.verdicts.append(verdict)
        self.say(verdict if verdict != "failed" else "FAILED", slot.name, seconds, record["note"])
        if verdict == "failed":
            for line in [line for line in lines if FAULT.search(line)][:8]:
                print(f"          {line[:200]}")
        elif "figures" in record and not self.options.simulate:
            # Worth the room in what is printed.
            print("\n".join(line[:140] for line in lines[-45:] if line.strip()))
        if slot.is_needed and verdict != "ok":
            self.over = True
            print(f"The queue ends: the others need {slot.name}.")
        elif verdict != "ok" and self.is_known_machine and not gpu_answers():
            self.over = True
            print("The queue ends: the GPU no longer answers.")
        with open(self.out / "slots.txt", "a") as text:
            text.write(f"==== {slot.name}, {verdict}, status {status}, {seconds:.1f} s\n{log.read_text(errors='replace')[-200_000:]}\n")
        self.save()

    def execute(self, slot, log, figures, limit):
        """The status of the command, and whether its time was over."""
        environment = {**os.environ, "FIGURES": str(figures), "keep": str(self.keep), MARK: str(self.state)}
        with open(log, "wb") as output:
            child = subprocess.Popen(
                ["bash", "-c", slot.command], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=environment, start_new_session=True, preexec_fn=dies_with_parent,
            )  # fmt: skip
            try:
                return child.wait(timeout=limit), False
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(timeout=GRACE)
            except subprocess.TimeoutExpired:
                end_all(self.state)
            try:
                return child.wait(timeout=GRACE), True
            except subprocess.TimeoutExpired:
                return -signal.SIGKILL, True

    def judge(self, lines, status, is_late, limit, full_limit):
        note = next((line for line in reversed(lines) if NOTE.search(line)), "")
        note = re.sub(r'[\x00-\x1f"\\]', "", note)[:160]
        reasons = [match[1] for line in lines if (match := SKIP.match(line))]
        missing = [reason for reason in reasons if EXPECTED.search(reason) and not ALLOWED.search(reason)]
        if is_late:
            return ("failed", f"hangs: ended after its limit of {full_limit:.0f} s") if limit == full_limit else ("stopped", f"after {limit:.0f} s: no time was left")
        if status:
            return "failed", note or f"status {status}"
        if missing and self.is_known_machine:
            return "failed", f"SKIP: {missing[0]}"[:160]
        if not note and reasons:
            return "SKIP", reasons[0][:160]
        return "ok", note

    def save(self):
        """Copies the answer: every record of this machine, and every file."""
        self.replace("done.jsonl", lambda path: shutil.copy(self.done, path))

        def pack(path):
            with tarfile.open(path, "w:gz", compresslevel=6) as packed:
                packed.add(self.keep, "results")

        self.replace("results.tar.gz", pack)

    def replace(self, name, write):
        part = self.out / f".{name}.part"
        write(part)
        part.replace(self.out / name)

    def list(self):
        states = self.states()
        print(f"{'slot':<14}{'seconds':>8}{'limit':>7}  {'depends on':<11}{'simulator':<10}state")
        for slot in self.slots:
            name = ("!" if slot.is_needed else "") + slot.name
            print(f"{name:<14}{slot.expected:>8}{slot.limit:>7}  {slot.depends:<11}{slot.simulator:<10}{states[slot.name]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", nargs="+", metavar="FILE", help="TO FROM...")
    commands = parser.add_subparsers(dest="action")
    options = commands.add_parser("run")
    for name in ("here", "queue", "state", "out", "python"):
        options.add_argument(f"--{name}", required=True)
    for name in ("only", "gpu", "release", "not-under-gvisor"):
        options.add_argument(f"--{name}", default="")
    options.add_argument("--budget", type=float, default=540)
    options.add_argument("--simulate", choices=["", "short", "all"], default="")
    options.add_argument("--done", action="append", default=[])
    options.add_argument("--again", action="store_true")
    options.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.add:
        if len(options.add) < 2:
            parser.error("--add TO FROM...")
        return add(options.add[0], options.add[1:])
    if not options.action:
        parser.error("see --help")
    queue = Queue(options)
    return queue.list() if options.list else queue.run()


if __name__ == "__main__":
    sys.exit(main())
