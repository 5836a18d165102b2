"""The queue of the bundle for a GPU (scripts/gpu/slots.sh), and how it reads NVIDIA's profiler: with stand-ins for all programs."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

GPU = pathlib.Path(__file__).resolve().parents[2] / "scripts/gpu"
SCRIPTS = GPU / "runner"
WORKLOADS = ["W1 f32", "W2b", "W3 address", "W5b affine", "W10b", "short ragged i32 to i64"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SCRIPTS.exists(), reason="SKIP: needs a checkout"),
    pytest.mark.skipif(sys.platform != "linux", reason="SKIP: the bundle is for Linux"),
]

# A table as `ncu --csv` writes it: ncu's messages first, numbers with commas, a name with commas, another metric, a kernel of
# another library.
CSV = """==PROF== Connected to process 4242 (/tmp/gpu-check/bench/gather)
==PROF== Profiling "windrow_assemble_small" - 0: 0%....50%....100% - 1 pass
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","4242","gather","127.0.0.1","void other<int, 4>(int *, int)","1","7","(128, 1, 1)","(17, 1, 1)","0","9.0","Command line profiler metrics","smsp__inst_executed.sum","inst","98,765"
"1","4242","gather","127.0.0.1","windrow_assemble_small(Params<2048>, int)","1","7","(256, 1, 1)","(528, 1, 1)","0","9.0","Command line profiler metrics","smsp__inst_executed.sum","{unit}","{value}"
"1","4242","gather","127.0.0.1","windrow_assemble_small(Params<2048>, int)","1","7","(256, 1, 1)","(528, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","ns","5,120"
"""


def program(path, text):
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def counted(tmp_path):
    """Runs `counts.sh` on a canned file of the profiler, for workloads of 2 million instructions and 64 MB."""

    def run(value="2,000,000", unit="inst", multiprocessors=132, arch=90):
        (tmp_path / "canned.csv").write_text(CSV.format(value=value, unit=unit))
        rows = [{"workload": name, "arch": 90, "instructions_per_16_bytes": 16.0} for name in WORKLOADS]
        (tmp_path / "counts.json").write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
        ncu = program(tmp_path / "ncu", f'while [[ $1 != --log-file ]]; do shift; done; cp {tmp_path}/canned.csv "$2"; shift 2; "$@"')
        bench = program(
            tmp_path / "gather",
            'printf \'{"workload": "%s", "launches": 1, "uploaded": 0, "multiprocessors": '
            + str(multiprocessors)
            + ', "samples": 9, "read": 5, "written": 64000000}\\n\' "$4"',
        )
        done = subprocess.run([SCRIPTS / "counts.sh", ncu, bench, tmp_path / "counts.json", str(arch)], capture_output=True, text=True)
        return done.returncode, done.stdout

    return run


def test_counts_of_the_profiler_are_compared(counted):
    status, text = counted()
    assert status == 0 and text.endswith("6 workloads compared, at most 5 % apart: yes\n")
    for name in WORKLOADS:
        assert f"{name:26} {16:12.2f} {16:12.2f} {'+0.0':>7} %" in text


@pytest.mark.parametrize("value, status", [("2,099,000", 0), ("2,102,000", 1), ("1901000", 0), ("1,898,000", 1)])
def test_counts_that_differ_fail(counted, value, status):
    got, text = counted(value)
    assert got == status and ("FAILED W2b: more than 5 % from the emulator's count" in text) == bool(status)


def test_counts_of_another_number_of_multiprocessors_are_printed(counted):
    status, text = counted("4,000,000", multiprocessors=108)
    assert status == 0 and "+100.0 %" in text and "not judged: this GPU has not 132 multiprocessors" in text


@pytest.mark.parametrize("canned", [{"unit": "Kinst"}, {"value": "n/a"}])
def test_what_the_profiler_did_not_count_fails(counted, canned):
    status, text = counted(**canned)
    assert status == 1 and "FAILED W2b: 0 launches profiled, 1 made" in text


def test_an_architecture_without_counts_fails(counted):
    status, text = counted(arch=86)
    assert status == 1 and "FAILED W2b: no count for sm_86" in text


# Stands in for a machine with one GPU.
SMI = """
[[ -e {folder}/dead ]] && exit 9
case $* in
    -L) echo "GPU 0: NVIDIA H100" ;;
    *name,driver_version,compute_cap*) echo "$(cat {folder}/gpu), 580.65.06, 9.0" ;;
    *compute_cap*) echo 9.0 ;;
esac"""


class Machine:
    """A bundle of stand-ins, on a machine with one GPU."""

    def __init__(self, folder):
        self.folder, self.bin, self.bundle = folder, folder / "bin", folder / "gpu-check"
        for path in (self.bin, self.bundle / "tests", self.bundle / "bench"):
            path.mkdir(parents=True)
        for script in (GPU / "slots.sh", *SCRIPTS.iterdir()):
            shutil.copy(script, self.bundle)
        for name, text in {"COMMIT": "abc", "GLIBC": "2.17", "KERNELS": "80 k80\n90 k90\nptx kptx", "ENGINE": "e1", "libcudasim.so": ""}.items():
            (self.bundle / name).write_text(text + "\n")
        (folder / "gpu").write_text("NVIDIA H100")
        program(self.bin / "nvidia-smi", SMI.format(folder=folder))

    def start(self, rows, *options, **environment):
        """Starts the queue, of rows if there are any. Each notes in `ran` that it has begun."""
        if rows is not None:
            (self.folder / "queue").write_text("\n".join(rows) + "\n")
            options = ("--queue", self.folder / "queue", *options)
        names = {"WINDROW_SLOTS": self.folder / "state", "OUT": self.folder / "out", "PATH": f"{self.bin}:{os.environ['PATH']}", "PYTHON": sys.executable}
        environment = {**os.environ, **{name: str(value) for name, value in {**names, **environment}.items()}}
        return subprocess.Popen(
            [self.bundle / "slots.sh", *options], env=environment, cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def run(self, rows, *options, **environment):
        process = self.start(rows, *options, **environment)
        text = process.communicate(timeout=120)[0]
        return process.returncode, text

    def records(self, path="state/done.jsonl"):
        return [json.loads(line) for line in (self.folder / path).read_text().splitlines()]

    def verdicts(self):
        return [(record["slot"], record["verdict"]) for record in self.records()]

    def ran(self):
        """The slots that have begun since the last question."""
        file = self.folder / "ran"
        names = file.read_text().split() if file.exists() else []
        file.unlink(missing_ok=True)
        return names


def has_ended(process):
    """Whether a process has ended; true too if nobody has asked for its status yet."""
    try:
        return pathlib.Path("/proc", process, "stat").read_text().rsplit(")")[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def row(name, command="", seconds=1, limit=20, depends="engine", simulator="short"):
    return f"{name}|{seconds}|{limit}|{depends}|{simulator}|echo {name.lstrip('!')} >>ran; {command}"


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_a_slot_costs_itself_alone(machine):
    rows = [
        row("good", "echo 5 passed"),
        row("bad", "echo E  wrong byte; exit 3"),
        row("aborts", "kill -ABRT $$"),
        # Its child is in a session of its own, and neither heeds SIGTERM.
        row("hangs", "trap '' TERM; setsid bash -c \"trap '' TERM; echo \\$\\$ >left; sleep 61; true\" & sleep 60; sleep 60", limit=1),
        row("sticky", "echo 'thread panicked: CUDA_ERROR_ILLEGAL_ADDRESS'; exit 101"),
        row("leaves", "sleep 62 & echo $! >behind"),
        row("last", 'echo "[1, 2]" >"$FIGURES"; echo the table'),
    ]
    status, text = machine.run(rows)
    assert status == 1, text
    assert machine.verdicts() == [
        ("good", "ok"), ("bad", "failed"), ("aborts", "failed"), ("hangs", "failed"), ("sticky", "failed"), ("leaves", "ok"), ("last", "ok"),
    ]  # fmt: skip
    good, bad, aborts, hangs, sticky, _, last = machine.records()
    assert good["note"] == "5 passed" and bad["status"] == 3 and aborts["status"] == -signal.SIGABRT
    assert hangs["note"] == "hangs: ended after its limit of 1 s" and 1 <= hangs["seconds"] < 30
    assert "ILLEGAL_ADDRESS" in sticky["note"] and last["figures"] == [1, 2] and "the table" in text
    expected = {"commit": "abc", "gpu": "NVIDIA H100", "driver": "580.65.06", "kernels": "k90", "engine": "e1", "depends": "engine"}
    assert {name: last[name] for name in expected} == expected and last["versions"]["python"] and last["command"] and last["when"]
    for file in ("left", "behind"):
        assert has_ended((machine.folder / file).read_text().strip())
    assert machine.records("out/done.jsonl") == machine.records()
    assert (machine.folder / "out/results.tar.gz").exists() and "wrong byte" in (machine.folder / "out/slots.txt").read_text()


def test_what_never_ran_comes_first_and_what_was_ok_is_not_run_again(machine):
    rows = [row("one"), row("two", "[[ -e mended ]]"), row("three")]
    assert machine.run(rows, "--only", "two three")[0] == 1
    assert machine.ran() == ["two", "three"]
    (machine.folder / "mended").touch()
    assert machine.run(rows)[0] == 0
    assert machine.ran() == ["one", "two"]
    assert machine.run(rows)[0] == 0 and machine.ran() == []
    assert machine.run(rows, "--again", "--only", "three one")[0] == 0 and machine.ran() == ["one", "three"]
    # Another machine, which is told.
    shutil.move(machine.folder / "state", machine.folder / "before")
    assert machine.run(rows, "--done", "before/done.jsonl")[0] == 0 and machine.ran() == []
    shutil.copy(machine.folder / "before/done.jsonl", machine.bundle)
    assert machine.run(rows)[0] == 0 and machine.ran() == []
    assert machine.run(rows, "--only", "four")[0] == 2


def test_the_budget_takes_what_fits(machine):
    rows = [row("long", seconds=100), row("short"), row("slow", "sleep 30", limit=60), row("late")]
    status, text = machine.run(rows, "--budget", "4")
    assert status == 3 and "Left for the next call: long late" in text, text
    assert machine.verdicts() == [("short", "ok"), ("slow", "stopped")]


def test_the_others_wait_for_a_slot_that_they_need(machine):
    rows = [row("before"), row("!needed", "[[ -e mended ]]"), row("after")]
    status, text = machine.run(rows)
    assert status == 1 and machine.ran() == ["before", "needed"] and "Left for the next call: after" in text
    assert machine.run(rows)[0] == 1 and machine.ran() == ["needed"]
    (machine.folder / "mended").touch()
    assert machine.run(rows)[0] == 0 and machine.ran() == ["needed", "after"]
    # Another machine is asked too, however often it was ok elsewhere.
    shutil.move(machine.folder / "state", machine.folder / "before-that")
    assert machine.run(rows, "--done", "before-that/done.jsonl")[0] == 0 and machine.ran() == ["needed"]


def test_the_queue_ends_with_the_gpu(machine):
    status, text = machine.run([row("kills", "touch dead; exit 1"), row("next")])
    assert status == 1 and "the GPU no longer answers" in text and machine.ran() == ["kills"]


def test_a_queue_that_is_killed_goes_on(machine):
    rows = [row(f"slot{i}", f"sleep 0.1; echo {i} passed; echo end{i} >>ends") for i in range(14)]
    moments, said, before = random.Random(41), "", []
    for _ in range(20):
        process = machine.start(rows)
        time.sleep(moments.uniform(0, 1.2))
        process.kill()
        said += process.communicate(timeout=60)[0]
        done = machine.folder / "state/done.jsonl"
        now = machine.records() if done.exists() else []
        assert now[: len(before)] == before
        before = now
    status, text = machine.run(rows)
    assert status == 0, text
    assert machine.records()[: len(before)] == before
    assert sorted(machine.verdicts()) == sorted((f"slot{i}", "ok") for i in range(14))
    assert machine.records("out/done.jsonl") == machine.records()
    # Each was said once at most, and none that has no record.
    reported = [line.split()[1] for line in (said + text).splitlines() if line.startswith("ok ")]
    assert len(set(reported)) == len(reported)
    ends = (machine.folder / "ends").read_text().split()
    assert {f"end{i}" for i in range(14)} == set(ends)


def test_a_second_queue_is_refused(machine):
    first = machine.start([row("waits", "sleep 20")])
    while not (machine.folder / "ran").exists():
        time.sleep(0.05)
    status, text = machine.run([row("waits")])
    assert status == 2 and "another queue runs" in text
    first.terminate()
    first.communicate()
    assert machine.run([row("waits", "true")])[0] == 0
    assert machine.verdicts() == [("waits", "ok")]


def test_a_torn_record_is_none(machine):
    rows = [row("one"), row("two")]
    assert machine.run(rows)[0] == 0
    done = machine.folder / "state/done.jsonl"
    whole = done.read_bytes()
    done.write_bytes(whole[:-40])
    machine.ran()
    assert machine.run(rows)[0] == 0 and machine.ran() == ["two"]
    assert machine.verdicts() == [("one", "ok"), ("two", "ok")]
    # Rows are added to the file of the repository, none twice.
    add = [sys.executable, SCRIPTS / "slots.py", "--add", machine.folder / "all.jsonl", done, machine.folder / "out/done.jsonl"]
    for _ in range(2):
        subprocess.run(add, check=True)
        assert machine.records("all.jsonl") == machine.records()


@pytest.mark.parametrize(
    "said, verdict",
    [
        ("SKIP: ncu is not installed", "failed"),
        ("SKIP: tests/suite is not in this bundle", "failed"),
        ("SKIP: the CUDA engine is left out: no driver", "failed"),
        ("SKIPPED [3] tests/test_gpu_libraries.py:7: could not import 'cupy': No module named 'cupy'", "failed"),
        ("SKIPPED [1] tests/test_torch_workers.py:74: SKIP: this needs the simulated driver (WINDROW_CUDA_DRIVER)", "ok"),
        ("SKIPPED [1] tests/test_gpu_libraries.py:9: SKIP: jax is not installed", "failed"),
        ("SKIPPED [1] tests/gpu_harness.py:190: SKIP: this torch was built without green contexts", "ok"),
        ("SKIPPED [1] tests/gpu_harness.py:190: SKIP: this torch has no green contexts", "ok"),
        ("SKIPPED [1] tests/test_torch_grad.py:17: SKIP: torch 2.9 has no C exchange API; 2.10 has", "ok"),
        ("SKIPPED [1] tests/test_arrow.py:12: SKIP: pyarrow is not installed", "ok"),
        ("SKIP: avx512 is not there; the best of the others runs in its place", "ok"),
    ],
)
def test_a_skip_of_what_is_there_fails(machine, said, verdict):
    rows = [row("skips", "cat said; echo 4 passed")]
    (machine.folder / "said").write_text(said + "\n")
    assert machine.run(rows)[0] == (verdict == "failed")
    assert machine.verdicts() == [("skips", verdict)]
    assert verdict == "ok" or machine.records()[0]["note"] == "SKIP: " + said.split(": ", 1)[1]
    shutil.rmtree(machine.folder / "state")
    assert machine.run(rows, "--simulate")[0] == 0 and machine.verdicts() == [("skips", "ok")]


def test_what_is_skipped_on_the_simulator_has_no_record(machine):
    rows = [row("skips", "echo SKIP: no cupy"), row("gpu", simulator="-"), row("rest", simulator="all")]
    status, text = machine.run(rows, "--simulate", "--short")
    assert status == 0 and machine.verdicts() == [] and machine.ran() == ["skips"], text
    assert machine.run(rows, "--simulate")[0] == 0 and machine.verdicts() == [("rest", "ok")]


def test_a_change_runs_again_what_depends_on_it(machine):
    rows = [row("facts", depends="machine"), row("order"), row("figures", depends="kernels")]

    def rerun(**files):
        for name, text in files.items():
            (machine.bundle / name).write_text(text + "\n")
        assert machine.run(rows)[0] == 0
        return machine.ran()

    assert rerun() == ["facts", "order", "figures"]
    assert rerun(KERNELS="80 other\n90 k90\nptx other") == []
    assert rerun(KERNELS="80 k80\n90 other") == ["figures"]
    assert rerun(ENGINE="e2") == ["order"]
    assert rerun(COMMIT="def") == []
    # Figures are of one card.
    (machine.folder / "gpu").write_text("NVIDIA H200")
    assert rerun() == ["figures"]
    # The driver compiles what has no machine code here; an earlier one of the major number is executed.
    assert rerun(KERNELS="80 k80\nptx kptx") == ["figures"] and machine.records()[-1]["kernels"] == "kptx"


def test_a_simulated_driver_does_not_answer_for_a_gpu(machine):
    rows = [row("facts", depends="machine"), row("!needed"), row("order"), row("figures", depends="kernels")]
    names = ["facts", "needed", "order", "figures"]
    # The rows run with one folder of records, and by records of elsewhere.
    assert machine.run(rows, "--simulate")[0] == 0 and machine.ran() == names
    assert machine.run(rows)[0] == 0 and machine.ran() == names
    assert machine.run(rows, "--simulate")[0] == 0 and machine.ran() == []
    gpus = {"simulated driver", "NVIDIA H100"}
    assert {record["gpu"] for record in machine.records()} == gpus
    for gpu, options in (("simulated driver", []), ("NVIDIA H100", ["--simulate"])):
        only = [record for record in machine.records() if record["gpu"] == gpu]
        (machine.folder / "other.jsonl").write_text("".join(json.dumps(record) + "\n" for record in only))
        (machine.bundle / "done.jsonl").write_text((machine.folder / "other.jsonl").read_text())
        shutil.move(machine.folder / "state", machine.folder / f"before {gpu}")
        assert machine.run(rows, "--done", "other.jsonl", *options)[0] == 0 and machine.ran() == names
        shutil.rmtree(machine.folder / "state")
        shutil.copytree(machine.folder / f"before {gpu}", machine.folder / "state")


def test_a_simulated_driver_of_the_environment_is_not_a_gpus(machine):
    rows = [row("driver", 'echo "driver:${WINDROW_CUDA_DRIVER-none}:" >>said')]
    assert machine.run(rows, WINDROW_CUDA_DRIVER="/elsewhere/libcudasim.so")[0] == 0
    assert (machine.folder / "said").read_text() == "driver:none:\n"


def lists_of_the_bundle():
    """The names in bundle.sh: what it takes of tests and of benches."""
    lines = [line for line in (GPU / "bundle.sh").read_text().splitlines() if re.match(r"(helpers|tests|benches)\+?=\(", line)]
    said = subprocess.run(["bash"], input="\n".join([*lines, 'echo "${helpers[@]}"; echo "${tests[@]}"; echo "${benches[@]}"']), capture_output=True, text=True)
    helpers, tests, benches = (line.split() for line in said.stdout.splitlines())
    return {*helpers, *(f"test_{name}" for name in tests)}, set(benches)


def imported(path):
    """The names that a file imports, wherever in it."""
    return set(re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.M))


def test_the_bundle_has_what_its_queue_runs():
    python, folder = GPU.parents[1] / "python/tests", GPU.parents[1] / "benches/gather"
    tests, benches = lists_of_the_bundle()
    queue = [line for line in (GPU / "slots.sh").read_text().splitlines() if re.match(r"!?[\w-]+\|\d", line)]
    asked = {name for line in queue for name in re.findall(r"\b(test_\w+)\.py", line)}
    assert asked and asked <= tests
    for names, place in ((tests, python), (benches, folder)):
        there = {path.stem for path in place.glob("*.py")}
        assert names <= there
        for name in names:
            assert imported(place / f"{name}.py") & there <= names, name
    assert "bench_torch" in benches
    # Tests that try a real driver's means on the simulated one also run on a real one.
    (order,) = re.findall(r"^ORDER = .*? in \(([^)]*)\)", (python / "test_cuda_harness.py").read_text(), re.M)
    (streams,) = [line for line in queue if line.startswith("streams|")]
    assert {f"test_{name}.py" for name in re.findall(r'"(\w+)"', order)} <= set(streams.split())


def test_workloads_that_hang_leave_time_for_the_others():
    text = (GPU / "slots.sh").read_text()
    ((limit, command),) = re.findall(r"^stalls\|\d+\|(\d+)\|[^|]*\|[^|]*\|stalls (.*)$", text, re.M)
    ((grace, each),) = re.findall(r'timeout -k (\d+) (\d+) "\$ncu"', text)
    assert len(re.findall('"[^"]*"', command)) * (int(grace) + int(each)) < int(limit)


def engine_of(folder):
    """The hash of the engine by bundle.sh, in a folder that is laid out as a checkout."""
    (function,) = re.findall(r"^engine_hash\(\) \{\n.*?^\}\n", (GPU / "bundle.sh").read_text(), re.M | re.S)
    script = f"set -euo pipefail; cd {folder}; to=out/gpu-check; {function} engine_hash"
    return subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True).stdout.strip()


def test_the_hash_of_the_engine_covers_tests_and_benches(tmp_path):
    files = ["src/lib.rs", "python/src/lib.rs", "Cargo.lock", "out/gpu-check/python/tests/test_cuda.py", "out/gpu-check/python/bench_torch.py"]
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for name in [*files, "docs/x.md", "out/gpu-check/ENGINE"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / ".gitignore").write_text("out/\n")
    seen = [engine_of(tmp_path)]
    for name in [*files, "python/python/new.py", "out/gpu-check/python/tests/test_new.py"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("changed")
        seen.append(engine_of(tmp_path))
    assert len(set(seen)) == len(seen) and all(re.fullmatch("[0-9a-f]{12}", one) for one in seen)
    for name in ("docs/x.md", "out/gpu-check/ENGINE"):
        (tmp_path / name).write_text("changed")
    assert engine_of(tmp_path) == seen[-1]
    # One that is gone, and was committed.
    subprocess.run(["git", "-C", tmp_path, "add", "src"], check=True)
    (tmp_path / "src/lib.rs").unlink()
    assert engine_of(tmp_path) not in seen


def test_the_queue_is_in_the_order_of_worth(machine):
    status, text = machine.run(None, "--list")
    names = [line.split()[0] for line in text.splitlines()[1:]]
    assert status == 0 and names[:3] == ["facts", "!load", "!wheel"], text
    worth = ["small", "torch", "streams", "order", "graphs", "peek", "matrix", "peers", "stalls", "counts", "memcheck", "policy", "bench", "sweep"]
    assert [name for name in names if name in worth] == worth


def test_the_first_failure_runs_again_alone_after_a_sticky_error(machine):
    program(
        machine.bundle / "tests/suite",
        'echo "$@" >>ran; echo "test one ... ok"; echo "test far::two ... FAILED"; echo "test three ... FAILED"\n'
        'echo "thread panicked: CUDA_ERROR_MISALIGNED_ADDRESS (716)"; exit 101',
    )
    status, text = machine.run(None, "--only", "small")
    assert status == 1 and machine.ran() == ["small::", "--exact", "far::two"]
    assert "FAILED: test small, far::two alone: status 101" in (machine.folder / "out/slots.txt").read_text()


def ncu_of(machine, canned):
    """A profiler that notes how it was called, and a bench to run it on."""
    (machine.folder / "canned.csv").write_text(canned)
    program(machine.bin / "ncu", f'echo "$*" >>{machine.folder}/called; while [[ $1 != --log-file ]]; do shift; done; cp {machine.folder}/canned.csv "$2"')
    program(machine.bundle / "bench/gather", "true")


def test_the_profiler_leaves_the_clocks_alone(machine):
    ncu_of(
        machine,
        "==PROF== Connected\n"
        '"ID","Kernel Name","gpu__time_duration.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed",'
        '"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio","smsp__average_warps_issue_stalled_wait_per_issue_active.ratio"\n'
        '"","","ns","%","",""\n'
        '"0","void other(int)","5","6","7","8"\n'
        '"1","windrow_assemble_small(Params<2048>, int)","12,345","81.5","9.25","1.5"\n',
    )
    status, text = machine.run(None, "--only", "stalls")
    assert status == 0, text
    rows = machine.records()[0]["figures"]
    assert len(rows) == 8 and rows[0]["workload"] == "W6" and rows[0]["ns"] == 12345 and rows[0]["dram %"] == 81.5
    assert rows[0]["stalls"] == {"long_scoreboard": 9.25, "wait": 1.5} and "warps stalled: long_scoreboard 9.25, wait 1.50" in text
    shutil.copy(GPU.parents[1] / "benches/device-instructions.json", machine.bundle)
    assert machine.run(None, "--only", "counts")[0] == 1
    called = (machine.folder / "called").read_text().splitlines()
    # Twice in one call would be an error.
    assert len(called) == 14 and all(line.count("--clock-control none ") == line.count("--clock-control") == 1 for line in called)


def test_gvisor_has_no_tools(machine):
    program(machine.bin / "uname", "echo 4.4.0")
    status, text = machine.run(None, "--only", "stalls counts memcheck")
    assert status == 0 and text.count("gVisor") == 3 and machine.records() == []
