"""The page of GPU figures, from made-up records: none of these figures was ever measured, and none is committed."""

import json
import math
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLOTS = ROOT / "scripts/gpu/plots.py"

pytestmark = pytest.mark.skipif(not PLOTS.exists(), reason="SKIP: needs a checkout")

H100, H200 = "NVIDIA H100 80GB HBM3 (made up)", "NVIDIA H200 (made up)"
# Bytes a microsecond of a copy, and what all times of a GPU end with: whose they are.
SPEED, MARK = {H100: 3.0e6, H200: 4.2e6}, {H100: 0.1, H200: 0.2}
SHARES = {
    "windrow": 0.9, "windrow, take(device ids)": 0.88, "torch.stack": 0.55, "torch._foreach_copy_(out)": 0.5, "torch.index_select of one table": 0.92,
    "CUB batched memcpy, tables kept": 0.8, "Triton gather, addresses kept": 0.84, "cuMemcpyBatchAsync, addresses kept": 0.1, "plain copy": 1.0,
}  # fmt: skip


def marked(gpu, us):
    """Microseconds that tell whose they are."""
    return math.floor(us) + MARK[gpu]


def rows_of(gpu, name, title, layout, samples, num_bytes, shares):
    found = []
    for contender, share in shares.items():
        device = 2 + num_bytes / SPEED[gpu] / share + (samples / 4000 if contender != "plain copy" else 0)
        host = 6 + samples * {"windrow": 0.02, "plain copy": 0.0}.get(contender, 0.12)
        times = {("device", "cold"): device, ("device", "warm"): 0.7 * device, ("host", "cold"): host, ("wall", "cold"): host + device, ("graph", "cold"): device}
        for (clock, cache), us in times.items():
            us = marked(gpu, us)
            found.append({
                "workload": name, "title": title, "layout": layout, "samples": samples, "bytes": num_bytes, "contender": contender, "clock": clock,
                "cache": cache, "median_us": us, "p10": us, "p90": us, "gbps": None if clock == "host" else num_bytes / us / 1e3,
                "share_of_copy": None if clock == "host" else share, "runs": 25, "late": 20 if host > 5000 else 0, "right": True, "problem": "", "tolerance": 0.0,
            })  # fmt: skip
    return found


def torch_run(gpu):
    """A record as bench_torch.py writes it."""
    rows = []
    for size in (64 << 2 * i for i in range(9)):
        samples = min((64 << 20) // size, 65_536)
        for layout, factor in (("scattered", size / (size + 200)), ("contiguous", size / (size + 150))):
            shares = {name: share if "copy" in name and "plain" in name else share * factor for name, share in SHARES.items()}
            rows += rows_of(gpu, f"size {size}", f"stack {samples} x {size} B float32", layout, samples, 2 * size * samples, shares)
    for samples in (4**i for i in range(9)):
        rows += rows_of(gpu, f"count {samples}", f"stack {samples} x 512 B float32", "scattered", samples, 1024 * samples, SHARES)
    images = {"windrow": 0.87, "torch.stack, eager chain": 0.09, "torch.stack, addcmul": 0.2, "torch.stack, torch.compile": 0.4,
              "torch.stack, torchvision v2": 0.11, "Triton, addresses kept": 0.6, "plain copy": 1.0}  # fmt: skip
    rows += rows_of(gpu, "W1", "256 x 224 x 224 x 3 uint8 HWC to float16 CHW, normalised", "scattered", 256, 115_605_504, images)
    wrong = {**rows[-1], "contender": "torch.stack, broken", "right": False, "problem": "5 of 9 bytes differ"}
    absent = [{"workload": "W1", "layout": "scattered", "contender": "cupy.stack", "reason": "made up"}]
    machine = {"gpu": gpu, "L2 bytes": 52428800}
    return {"bench": "torch", "dry": False, "machine": machine, "versions": {"torch": "2.11"}, "rows": [*rows, wrong], "absent": absent, "failed": [], "left": []}


def gather_run(gpu, families=("size", "W1", "W2", "one"), trials=()):
    """A record as bench/gather writes it."""
    workloads = []

    def series(name, us, cold=True):
        return {"name": name, "is_batch": True, "cold": cold, "runs": 9, "late": 0, "device_us": [us, us, us], "host_us": [marked(gpu, 9)] * 3, "of_roof": 0.8, "over_windrow": 1.0}

    for family in families:
        for lie in ("scattered", "contiguous"):
            us = marked(gpu, 64e6 / SPEED[gpu])
            others = ["one cuMemcpyDtoD of as many bytes", *(["cub::DeviceMemcpy::Batched"] if lie == "scattered" else []), *trials]
            found = [series(name, us) for name in ("windrow", *others)]
            workloads.append({"family": family, "title": f"64 MiB of {family}", "lie": lie, "samples": 4096, "bytes": 1 << 27, "source_bytes": 1 << 26, "launches": 1, "series": found})
    targets = [{"workload": "W2", "found": 0.7, "what": "of a copy", "at_least": True, "bound": 0.75, "verdict": "MISSED"}]
    return {"times_mean_nothing": False, "machine": {"gpu": gpu, "driver": "580"}, "workloads": workloads, "targets": [] if trials else targets}


def record(gpu, slot, verdict="ok", figures=None, **more):
    facts = {"status": 0, "seconds": 9, "commit": "abc123", "driver": "580-x", "when": "2099-01-01T00:00:00Z", "note": "made\nup", **more}
    return {"slot": slot, "verdict": verdict, "gpu": gpu, **facts, "figures": figures}


def all_records():
    found = [record("cudasim simulated device", "load"), record("", "wheel")]
    for gpu in (H100, H200):
        trials = {**gather_run(gpu, ("W1", "W2"), ("run-8", "windrow, again")), "trials": [{"name": "run-8", "flags": "-", "policy": "run=8"}], "skipped": []}
        found += [record(gpu, "load"), record(gpu, "peek", figures=gather_run(gpu, ("W1",))), record(gpu, "bench", figures=gather_run(gpu))]
        found += [record(gpu, "peers", figures=torch_run(gpu)), record(gpu, "policy", figures=trials)]
        found += [record(gpu, "stalls", figures=[{"workload": "W1", "dram %": 88.125, "us": marked(gpu, 5)}, {"workload": "W2", "note": "a | b"}])]
    timed = [{"name": name, "quartiles": [t] * 3, "share": 0.5, "problem": "", "against": "windrow", "host": [1e-6] * 3, "device": [t / 2] * 3} for name, t in (("windrow", 3e-6), ("torch.stack", 3e-5))]
    entry = {"name": "W5", "title": "made up", "layout": "scattered", "device": "cuda", "bytes": 66_600, "bytes_read": 33_300, "bytes_written": 33_300, "results": timed, "targets": []}
    found.append(record(H200, "pythonbench", figures={"schema": 2, "machine": {"device": H200}, "options": {"device": "cuda"}, "workloads": [entry], "sweeps": []}))
    # Newer, and no figures: what was ok before stays. The other is of a run on the host.
    found += [record(H100, "peers", "failed", note="made up: ended by signal 9"), record(H200, "later", figures={**torch_run(H100), "dry": True})]
    return found


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def plots(*arguments):
    return subprocess.run([sys.executable, PLOTS, *map(str, arguments)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    done = plots("--records", write(folder / "done.jsonl", all_records()), "--to", folder)
    assert done.returncode == 0, done.stderr
    return folder, (folder / "gpu-figures.md").read_text()


def test_each_gpu_has_tables_of_its_own(site):
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", site[1], re.S | re.M))
    assert list(sections) == [H100, H200]
    for gpu, other in ((H100, H200), (H200, H100)):
        text = sections[gpu]
        assert other not in text
        times = re.findall(r"(?<=\| )\d+\.\d(?=\*? \|)", text)
        assert len(times) > 500 and {time[-1] for time in times} == {str(MARK[gpu])[-1]}
        assert f"gpu: {gpu}" in text
        assert set(re.findall(r"plots/gpu/(h[12]00)", text)) == {"h100" if gpu == H100 else "h200"}


def test_the_page_has_everything_of_a_gpu(site):
    text = site[1].split(f"## {H200}")[0]
    headings = re.findall(r"^### (.*)$", text, re.M)
    assert headings == ["What was run", "Ceilings", "Batches from Rust", "Batches from Python", "Faster than windrow", "All contenders",
                        "Trials of tuning numbers: policy", "Stalls"]  # fmt: skip
    assert "| peers | failed | 9 | 2099-01-01T00:00:00Z | abc123 | 580-x | made up: ended by signal 9 |" in text
    # The newest ok figures stay, and those of the run with the most workloads.
    assert "**stack 4096 x 512 B float32, scattered**, 4.2 MB moved" in text and "| 64 MiB of size, scattered |" in text
    assert "- stack 65536 x 64 B float32, scattered, device: torch.index_select of one table 0." in text
    assert "cuMemcpyBatchAsync" in text and "- cupy.stack: made up" in text and "a \\| b" in text
    assert "torch.stack, broken: 5 of 9 bytes differ" in text and "| torch.stack, broken |" not in text
    assert "- W2: 0.7 of a copy, wanted at least 0.75" in text
    assert "| run-8 | 1.000 |" in text


def test_the_bench_of_the_package_is_shown(site):
    text = site[1].split(f"## {H200}")[1]
    assert "### `python -m windrow bench`, times of the wall" in text
    assert "| torch.stack | 30 us | 30 us | 30 us | 2.2 | 0.50 | 10.00 | 1 us | 15 us |" in text


def test_runs_of_other_workloads_are_put_together(tmp_path):
    run, again = torch_run(H100), torch_run(H100)
    parts = [[row for row in run["rows"] if row["workload"].startswith(begin)] for begin in ("size", "count")]
    late = [{**row, "gbps": 77_777.0} for row in again["rows"] if row["workload"] == "count 64"]
    runs = {"peers": {**run, "rows": parts[0] + parts[1]}, "peers-2": {**run, "rows": late, "versions": {"torch": "2.99"}}}
    records = [record(H100, slot, figures=figures) for slot, figures in runs.items()]
    assert plots("--records", write(tmp_path / "done.jsonl", records), "--to", tmp_path).returncode == 0
    text = (tmp_path / "gpu-figures.md").read_text()
    assert "torch: 2.11" in text and "torch: 2.99" in text
    by_workload = dict(re.findall(r"^\*\*stack (\d+) x 512 B float32, scattered\*\*(.*?)(?=^\*\*|\Z)", text, re.S | re.M))
    assert "| 77777 |" in by_workload["64"] and "| 77777 |" not in by_workload["256"]
    assert len(re.findall(r"^\| stack 64 x 512 B float32, scattered \|", text, re.M)) == 1


def test_tables_are_whole(site):
    for block in re.findall(r"(?:^\|.*\|$\n?)+", site[1], re.M):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block


def test_pictures_are_well_formed_and_named(site):
    named = set(re.findall(r"\(plots/gpu/(\S+)\)", site[1]))
    files = {path.name: path for path in (site[0] / "plots/gpu").iterdir()}
    assert named == set(files) and len(named) == 16
    for path in files.values():
        words = [text.text for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
        assert any("share" in word or word == "microseconds" for word in words), path


def test_a_check_notices_another_text(tmp_path):
    file = write(tmp_path / "done.jsonl", all_records())
    options = ("--records", file, "--to", tmp_path)
    assert plots(*options).returncode == 0 and plots(*options, "--check").returncode == 0
    write(file, all_records()[:4])
    assert "run scripts/gpu/plots.py" in plots(*options, "--check").stderr
    assert plots(*options).returncode == 0
    assert [path.name for path in (tmp_path / "plots/gpu").iterdir()] == ["h100-80gb-hbm3-made-up-contiguous.svg", "h100-80gb-hbm3-made-up-peers.svg"]


def test_without_records_no_gpu_has_run_it(tmp_path):
    assert plots("--records", tmp_path / "none.jsonl", "--to", tmp_path).returncode == 0
    assert (tmp_path / "gpu-figures.md").read_text() == "# Figures of GPUs\n\nThere are no records yet: [Checking on a GPU](gpu-runner.md).\n"


def test_what_is_no_record_is_named(tmp_path):
    file = tmp_path / "done.jsonl"
    file.write_text(json.dumps(record(H100, "load")) + '\n{"slot": "load"}\n')
    done = plots("--records", file, "--to", tmp_path)
    assert done.returncode == 1 and f"{file}:2: not a record" in done.stderr


def test_files_in_no_record_are_shown(tmp_path):
    (tmp_path / "g.json").write_text(json.dumps({**gather_run(H100), "times_mean_nothing": True}))
    options = ("--figures", f"bench={tmp_path / 'g.json'}", "--to", tmp_path)
    assert "simulated driver" in plots(*options).stderr
    assert plots(*options, "--simulated").returncode == 0
    assert "**Simulated: these times mean nothing.**" in (tmp_path / "gpu-figures.md").read_text()


def test_the_readme_says_what_the_records_hold(tmp_path):
    names = ["README.md", "python/README.md", "scripts/docs/readme_table.py", "scripts/gpu", "docs/gpu-runner.md", "docs/performance.md", "docs/performance-method.md", "docs/scale.md", "docs/plots", "benches/instructions.json", "benches/results", "python/python/windrow/bench"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    records = tmp_path / "benches/results/gpu/done.jsonl"
    records.unlink(missing_ok=True)
    command = [sys.executable, str(tmp_path / "scripts/docs/readme_table.py")]

    def lines():
        subprocess.run(command, check=True)
        subprocess.run([*command, "--check"], check=True)
        pages = ("README.md", "docs/gpu-runner.md", "python/README.md", "docs/performance.md")
        return [" ".join((tmp_path / name).read_text().split()) for name in pages]

    assert all("**No GPU has run it yet**: the CUDA engine is tested on a " in text for text in lines()[:3])
    write(records, all_records())
    readme, runner, package, performance = lines()
    h100 = f"{H100} (5 of 6 slots passed, not peers, driver 580-x, commit abc123, 2099-01-01)"
    said = f"**On a GPU** it ran on {h100} and {H200} (8 of 8 slots passed, driver 580-x, commit abc123, 2099-01-01): "
    assert f"{said}[figures](docs/gpu-figures.md)." in readme and f"{said}[figures](gpu-figures.md)." in runner and f"{said}figures." in package
    assert "No GPU has run it" not in readme + runner + package
    table = performance.split("<!-- gpu: begin -->")[1].split("<!-- gpu: end -->")[0]
    of_h100, of_h200 = table.split(f"**{H200}")
    assert of_h100.count("| 256 x 224 x 224 x 3 uint8") == of_h200.count("| 256 x 224 x 224 x 3 uint8") == 1
