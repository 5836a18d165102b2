"""scripts/gpu/runner, of which a GPU runner has a copy: its verdicts, and how it reads NVIDIA's profiler."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts/gpu/runner"
WORKLOADS = ["W1 f32", "W2b", "W3 address", "W5b affine", "W10b", "short ragged i32 to i64"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SCRIPTS.exists(), reason="SKIP: needs a checkout"),
    pytest.mark.skipif(sys.platform != "linux", reason="SKIP: the bundle is for Linux"),
]

# As `ncu --csv` writes it: its own lines first, numbers with commas, a name with commas, another metric, a kernel of another library.
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


@pytest.fixture
def bundle(tmp_path):
    """A bundle whose programs are one line each; runs a part of it as on the simulated driver."""
    for name in ("run.sh", "driver.sh", "counts.sh"):
        shutil.copy(SCRIPTS / name, tmp_path)
    for name in ("COMMIT", "GLIBC", "libcudasim.so", "device-instructions.json"):
        (tmp_path / name).write_text("2.17\n")
    for folder in ("tests", "bench"):
        (tmp_path / folder).mkdir()
    for name in ("small", "batch", "errors", "outputs", "sizes"):
        program(tmp_path / "tests" / name, 'echo "test result: ok. 3 passed; 0 failed; 0 ignored"')
    program(tmp_path / "bench/gather", 'while [[ $1 != --json ]]; do shift; done; echo "{}" >"$2"')

    def run(part, **environment):
        environment = {**os.environ, "OUT": str(tmp_path / "out"), **environment}
        done = subprocess.run([tmp_path / "run.sh", "--simulate", *part], env=environment, capture_output=True, text=True)
        steps = {}
        for name in part or ("check", "bench"):
            summary = json.loads((tmp_path / "out" / f"summary-{name}.json").read_text())
            steps.update({step["name"]: (step["verdict"], step["note"]) for step in summary["steps"]})
        return done.returncode, done.stdout, steps

    run.folder = tmp_path
    return run


def test_both_parts_run(bundle):
    status, text, steps = bundle([])
    assert status == 0, text
    assert steps["test small"] == ("ok", "3 passed") and steps["bench gather"][0] == "ok"
    assert steps["device-code counts"] == ("SKIP", "there is no GPU")
    assert steps["test sizes"] == ("SKIP", "make test-simulated runs it on the simulated driver")
    assert {path.name for path in (bundle.folder / "out").iterdir()} == {
        "summary-check.json", "summary-bench.json", "log-check.txt", "log-bench.txt", "gather.json", "gpu-check.tar.gz",
    }  # fmt: skip


def test_a_step_without_time_is_not_run(bundle):
    status, text, steps = bundle(["check"], BUDGET="4")
    assert status == 3 and "Not all steps were run" in text
    assert [steps[f"test {name}"] for name in ("small", "batch", "errors", "outputs")] == [("not run", "no time left")] * 4


def test_a_step_that_the_end_of_the_part_stops_is_not_run(bundle):
    program(bundle.folder / "tests/small", 'echo "thread panicked at here"; exit 101')
    program(bundle.folder / "tests/batch", "exec sleep 60")
    status, _, steps = bundle(["check"], BUDGET="9")
    assert status == 1 and steps["test small"] == ("FAILED", "status 101: thread panicked at here")
    assert steps["test batch"][0] == "not run" and steps["test batch"][1].endswith("s: no time left")
    assert steps["test errors"] == ("not run", "no time left")


def test_a_test_that_skips_fails(bundle):
    program(bundle.folder / "tests/batch", 'echo "SKIP: the CUDA engine is left out"')
    status, _, steps = bundle(["check"])
    assert status == 1 and steps["test batch"] == ("FAILED", "SKIP: the CUDA engine is left out")
