"""The benchmark's own code, where it could be wrong: statistics, contenders, the report, the page."""

import json
import re
import shutil
import statistics
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from windrow._measure import difference, interleave, quartiles
from windrow.bench import chart, command, page, plots, results, samples, workload
from windrow.bench.catalogue import WORKLOADS
from windrow.bench.measure import Budget, Pace, Result, judge, measure
from windrow.bench.samples import Setting
from windrow.bench.sweeps import SWEEPS
from windrow.bench.workload import Case, Skip, Target, Workload

import isolated

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
QUICK = Setting(scale=1 / 512, quick=True, warm=True)
PACE = Pace(0.0, 2, 2)


def workload_of(**calls):
    """Eight rows to stack, by contenders of the given names."""
    rng = np.random.default_rng(0)
    sets = [samples.samples_of([(4,)] * 8, "float32", QUICK, rng)]
    made = Workload(QUICK, sets, lambda s: (np.stack(s.arrays),))
    for name, call in calls.items():
        made.add("windrow" if name == "windrow" else "someone", name, call)
    return made


def right(s):
    return np.stack(s.arrays)


# Statistics


def test_quartiles_are_those_of_statistics():
    values = [5.0, 1.0, 4.0, 2.0, 3.0, 9.0]
    assert quartiles(values) == pytest.approx(tuple(np.percentile(values, [25, 50, 75])))
    assert quartiles(values)[1] == statistics.median(values)


def test_calls_take_turns():
    order = []
    times = interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 0.0, (3, 5))
    assert order == ["a", "b"] * 4, "one call of each before the clock starts, then three rounds"
    assert [len(values) for values in times.values()] == [3, 3]


def test_repeated_calls_are_divided():
    calls = []
    made = replace(workload_of(windrow=lambda s: (calls.append(1), right(s))[1]), repeat=10)
    found, _ = measure(made, PACE)
    assert len(calls) == 1 + 3 * 10, "verified once; one round before the clock and two by it"
    assert next(r for r in found if r.name == "windrow").quartiles[1] < 0.01


def test_other_forms_of_the_samples_are_made_before_the_clock_starts():
    made, seen = [], []
    form = {"lists": lambda row: (made.append(1), row.tolist())[1]}

    def call(s):
        seen.append(len(made))
        return np.stack([np.array(row, "float32") for row in s.converted("lists", form["lists"])])

    bench = workload_of(windrow=call)
    bench = replace(bench, sets=[replace(bench.sets[0], others={}, makers={}) for _ in range(3)])
    measure(bench, PACE)
    assert seen[0] == 0 and set(seen[1:]) == {len(made)} and len(made) == 3 * 8


def test_a_target_takes_the_fastest_peer():
    timed = [Result(name, [0.0, seconds, 9.0], None) for name, seconds in (("windrow", 2.0), ("a", 6.0), ("b", 3.0))]
    assert judge(Target("windrow", ("a", "b", "c"), 2.0), timed) == {
        "ours": "windrow",
        "peer": "b",
        "at_least": 2.0,
        "ratio": 1.5,
    }
    assert judge(Target("windrow", ("c",), 2.0), timed)["ratio"] is None


# Contenders


@pytest.mark.parametrize(
    "broken, text",
    [
        (lambda s: right(s) + 1, "32 of 32 elements differ"),
        (lambda s: right(s)[::-1], "elements differ"),
        (lambda s: right(s).astype("float64"), "float64 (8, 4) instead of float32 (8, 4)"),
        (lambda s: right(s)[:7], "float32 (7, 4) instead of float32 (8, 4)"),
        (lambda s: (right(s), right(s)), "2 tensors instead of 1"),
    ],
)
def test_wrong_output_is_reported_and_not_timed(broken, text):
    found, _ = measure(workload_of(windrow=right, broken=broken), PACE)
    result = next(r for r in found if r.name == "broken")
    assert result.quartiles is None and result.share is None
    assert result.problem.startswith("WRONG: ") and text in result.problem
    assert next(r for r in found if r.name == "windrow").quartiles


def test_nan_is_wrong_with_a_tolerance_too():
    want = np.zeros(4, np.float32)
    assert difference(np.full(4, np.nan, np.float32), want, 0.1) == "4 of 4 elements differ"
    assert difference(np.full(4, 0.05, np.float32), want, 0.1) == ""


def test_a_contender_that_raises_is_reported_and_the_run_goes_on():
    def fails(s):
        raise MemoryError("no room\nfor this")

    found, _ = measure(workload_of(windrow=right, fails=fails), PACE)
    assert next(r for r in found if r.name == "fails").problem == "FAILED: MemoryError: no room"
    assert next(r for r in found if r.name == "windrow").quartiles


def test_a_slow_contender_is_not_waited_for():
    found, _ = measure(workload_of(windrow=right), replace(PACE, slow_seconds=-1.0))
    assert re.fullmatch(r"slow: 0\.0 s for one batch, timed no further", found[-1].problem)


def test_a_missing_library_is_reported_and_the_run_goes_on(monkeypatch):
    monkeypatch.setitem(workload.LIBRARIES, "DALI", "no_such_module")
    found, _ = measure(WORKLOADS["H3"]("H3", QUICK), PACE)
    assert next(r for r in found if r.name == "DALI as_batch").problem == "no_such_module is not installed"
    assert next(r for r in found if r.name == "np.stack").quartiles


def test_windrow_giving_a_wrong_batch_ends_with_1(monkeypatch, capsys):
    made = Case("a test", lambda setting: workload_of(windrow=lambda s: right(s) + 1, other=right))
    monkeypatch.setitem(WORKLOADS, "T", made)
    assert command.main(["--quick", "--only", "T"]) == 1
    assert "windrow: WRONG: 32 of 32 elements differ" in capsys.readouterr().out


# Workloads


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("layout", samples.LAYOUTS)
def test_every_workload_is_right(name, layout):
    try:
        made = WORKLOADS[name](name, replace(QUICK, layout=layout))
    except Skip as reason:
        if "is not installed" in str(reason):
            pytest.skip(f"SKIP: {reason}")
        assert name == "W8" and "needs a GPU" in str(reason)
        return
    found, num_bytes = measure(made, PACE)
    assert [r.problem for r in found if r.problem.startswith("WRONG")] == []
    assert next(r for r in found if r.name == "windrow").quartiles
    assert min(num_bytes) > 0


def test_contiguous_samples_follow_one_another_and_scattered_ones_do_not():
    rng = np.random.default_rng(0)
    for layout, adjacent in (("contiguous", 99), ("scattered", 50)):
        made = samples.samples_of([(128,)] * 100, "float32", replace(QUICK, layout=layout), rng)
        addresses = [array.ctypes.data for array in made.arrays]
        found = sum(b - a == 512 for a, b in zip(addresses, addresses[1:]))
        assert found == adjacent if layout == "contiguous" else found < adjacent


def test_odd_samples_begin_at_any_byte():
    made = samples.samples_of([(77,)] * 64, "uint8", QUICK, np.random.default_rng(0), odd=True)
    assert len({array.ctypes.data % 16 for array in made.arrays}) > 8


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("layout", ["contiguous", "scattered"])
def test_what_goes_to_a_device_is_filled_before(layout, odd, monkeypatch, torch):
    monkeypatch.setattr(torch.Tensor, "to", lambda tensor, device: tensor.clone())
    made = samples.samples_of([(7,)] * 9, "uint8", replace(QUICK, layout=layout, device="cuda"), np.random.default_rng(0), odd=odd)
    assert [tensor.tolist() for tensor in made.tensors] == [array.tolist() for array in made.arrays]


# The report


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    options = ["--quick", "--scale", "0.05", "--only", "W2", "--only", "H3", "--only", "W8", "--sweep", "samples", "--commit", "abc"]
    run = isolated.python("-m", "windrow", "bench", *options, "--json", folder / "r.json", "--html", folder / "r.html")
    assert run.returncode == 0, run.stderr
    return run.stdout, json.loads((folder / "r.json").read_text()), (folder / "r.html").read_text(encoding="utf-8")


def test_json_has_what_tables_and_plots_need(report):
    found = report[1]
    assert set(found) == {"schema", "machine", "options", "workloads", "skipped", "sweeps"}
    assert found["machine"]["commit"] == "abc" and found["options"]["quick"]
    assert [(e["name"], e["layout"]) for e in found["workloads"]] == [
        (name, layout) for name in ("W2", "W2b", "H3") for layout in samples.LAYOUTS
    ]
    assert all("needs a GPU" in line for line in found["skipped"]) and len(found["skipped"]) == 2
    for entry in found["workloads"] + [point for sweep in found["sweeps"] for point in sweep["points"]]:
        assert entry["bytes"] == entry["bytes_read"] + entry["bytes_written"] > 0
        for result in entry["results"]:
            assert set(result) == {"name", "quartiles", "share", "problem", "against", "host", "device"}
            assert bool(result["quartiles"]) == (not result["problem"])
            assert not result["quartiles"] or result["quartiles"] == sorted(result["quartiles"])


def test_the_printed_text_names_each_workload_and_each_skip(report):
    text = report[0]
    assert "W2, scattered: pad 4096 int32 rows" in text and "SKIP W8, scattered" in text
    assert "\r" not in text, "a progress bar is for terminals"


def test_an_earlier_run_is_read_again(report, tmp_path, capsys):
    (tmp_path / "r.json").write_text(json.dumps(report[1]))
    assert command.main(["--read", str(tmp_path / "r.json"), "--html", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == report[2]


def test_the_page_is_well_formed_and_has_everything(report):
    text = report[2]
    body = re.sub(r"<style>.*?</style>", "", text.replace("<!DOCTYPE html>", "").replace("&nbsp;", " "), flags=re.S)
    body = re.sub(r"<meta [^>]*>", "", body)
    root = ElementTree.fromstring(body)
    words = "".join(root.itertext())
    for entry in report[1]["workloads"]:
        assert results.heading(entry) in words
    assert len(root.findall(".//{http://www.w3.org/2000/svg}svg")) == len(plots.plots(report[1])) == 4
    assert "http" not in re.sub(r'xmlns="[^"]*"', "", text) and "<script" not in text


def test_losses_are_marked():
    entry = {
        "name": "T",
        "title": "a < b",
        "layout": "scattered",
        "bytes": 2_000_000,
        "bytes_read": 1_000_000,
        "bytes_written": 1_000_000,
        "results": [vars(Result(name, [t, t, t], 0.5, "", against)) for name, t, against in (
            ("memcpy, threads: 1", 0.0005, ""),
            ("windrow", 0.002, ""),
            ("windrow, out=", 0.001, ""),
            ("fast", 0.001, "windrow"),
            ("even(out=)", 0.0015, "windrow, out="),
        )],
        "targets": [],
    }
    assert [loser["name"] for loser in results.losses(entry)] == ["fast"]
    assert results.rows(entry)[3] == ["fast", "1.00 ms", "1.00 ms", "1.00 ms", "2.0", "0.50", "0.50 behind"]
    found = {"machine": {"cpu": "<x>"}, "options": {}, "workloads": [entry], "sweeps": []}
    assert "| a < b | 2.00 ms | 1.00 ms | fast | 0.50 **behind** | 0.50 |" in results.summary(found)
    text = page.render(found)
    assert 'class="loss"' in text and "a &lt; b" in text and "<x>" not in text


def test_plots_of_any_values_are_well_formed():
    series = [chart.Series("a & b", [(1, 1e-3), (1024, 40.0)], 0), chart.Series("one", [(1, 1.0)], 1, "dashed")]
    for powers in (True, False):
        picture = ElementTree.fromstring(chart.lines("t", series, "x (B)", "y", True, True, standalone=True, powers=powers))
        words = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
        assert {"a & b", "x (B)", "y"} <= set(words)
    rows = [chart.Row("W1", [0.5, None]), chart.Row("W2", [1.5, 0.1])]
    ElementTree.fromstring(chart.bars("t", [("a", 0), ("b", 1)], rows, "share"))
    notes = [chart.Row("W1", [0.5], "0.5 x <peer>"), chart.Row("W2", [70.0], "70.0 x peer"), chart.Row("W3", [None])]
    picture = ElementTree.fromstring(chart.ratios("t", notes, "multiple", standalone=True))
    words = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"W1", "0.5 x <peer>", "W2", "70.0 x peer", "1 x", "multiple"} <= set(words) and "W3" not in words
    ElementTree.fromstring(chart.dumbbells("t", [("a", 0)], rows, "GB/s"))


@pytest.mark.parametrize("low, high", [(0.001, 40), (3, 4), (1, 1_000_000)])
def test_ticks_lie_on_the_axis(low, high):
    for log in (True, False):
        axis = chart.Axis.around([low, high], 0, 100, log)
        assert len(axis.ticks()) <= 13
        assert all(0 <= axis.at(tick) <= 100 for tick in axis.ticks())


# Options


def test_listing_names_all(capsys):
    assert command.main(["--list"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in [*WORKLOADS, *(sweep.name for sweep in SWEEPS), *workload.LIBRARIES])


def test_a_number_is_not_the_beginning_of_another():
    def chosen(*only):
        return list(command.selected(command.parser().parse_args([f"--only={name}" for name in only])))

    assert chosen("W1") == ["W1", "W1-f32"]
    assert chosen("W4", "H1") == ["W4a", "W4b", "W4c", "H1"]
    assert chosen("H") == ["H1", "H3"]


def test_unknown_names_and_arguments_are_refused(capsys):
    with pytest.raises(SystemExit, match="no workload begins with W99"):
        command.main(["--quick", "--only", "W99"])
    for arguments, text in [
        *((["--size", size], "two numbers above 0, such as 4096x512") for size in ("x", "0x5", "4096", "1x2x3")),
        *((["--scale", scale], "a number above 0") for scale in ("-1", "nan")),
        (["--device", "foo"], "cpu, cuda or cuda:N, got 'foo'"),
        (["--read", "there/is/none.json"], "No such file"),
        (["--json", "there/is/none.json"], "nothing is measured"),
        *((["--threads", threads], "a number from 1 to 1024") for threads in ("0", "-1", "99999999")),
    ]:
        with pytest.raises(SystemExit):
            command.main(arguments)
        assert text in capsys.readouterr().err


def test_a_size_of_ones_own(capsys):
    assert command.main(["--quick", "--size", "64x100", "--layout", "scattered", "--threads", "1"]) == 0
    text = capsys.readouterr().out
    assert "64x100, scattered: stack 64 x 100 B" in text and "memcpy, threads: 2" not in text


def test_a_limit_is_shared_by_what_is_left(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    budget = Budget(8.0, 4)
    assert budget.workload_pace().end == 102.0
    now[0] = 105.0
    assert budget.point_pace() is None, "the first part took 5 s, and 3 are left"
    budget = Budget(8.0, 4)
    assert [budget.workload_pace().end, budget.point_pace().slow_seconds] == [107.0, 8 / 3 / 10]
    unlimited = Budget(None, 1)
    assert [unlimited.workload_pace().seconds_left, unlimited.workload_pace().seconds_left] == [3.0, 3.0]


def test_contenders_without_time_left_are_named():
    found, _ = measure(workload_of(windrow=right, other=right), replace(PACE, end=0.0))
    assert {r.name: r.problem for r in found if not r.name.startswith("memcpy")} == {
        "windrow": "",
        "other": "not timed: no time was left",
    }


def test_workloads_without_time_left_are_named(capsys, tmp_path):
    assert command.main(["--seconds", "0", "--only", "H3", "--sweep", "leaves", "--json", str(tmp_path / "r.json")]) == 0
    text = "the 0 s of --seconds are spent: H3, scattered; H3, contiguous; 6 points of the sweep leaves"
    told = "2 cases (2 of H); 6 points of the sweep leaves not measured; --json or --html names each"
    assert f"SKIP the 0 s of --seconds are spent: {told}\n" in capsys.readouterr().out
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["skipped"] == [text] and not report["workloads"] and not report["sweeps"]


def test_a_device_that_is_not_there_is_skipped_with_the_reason(capsys):
    torch = samples.torch
    if torch is not None and torch.cuda.is_available():
        pytest.skip("SKIP: there is a device")
    assert command.main(["--quick", "--device", "cuda"]) == 0
    assert re.match(r"SKIP device cuda: torch (finds no CUDA device|is not installed)", capsys.readouterr().out)


def test_sources_stand_for_others_where_a_report_has_them():
    def entry(name):
        timed = [{"name": contender, "quartiles": [t, t, t]} for contender, t in (("windrow", 1e-3), ("peer", 3e-3))]
        return {"name": name, "title": name, "contiguous": False, "bytes_read": 1, "bytes_written": 1, "results": timed}

    report = {"workloads": [entry(name) for name in plots.HEADLINE], "sweeps": []}
    assert plots.headline_titles(report) == plots.HEADLINE
    report["workloads"].append(entry("source-tokens"))
    titles = plots.headline_titles(report)
    assert list(titles) == ["W1", "W2", "source-tokens", "W5", "W3", "small"]
    rows = results.short_summary(report, titles).splitlines()[2:]
    assert len(rows) == 6 and rows[2].startswith("| 64 token lists of a tokenizer") and rows[2].endswith("| 3.00 |")
    ElementTree.fromstring(plots.headline(report, standalone=True))


def test_the_tables_and_plots_of_the_repository_are_those_of_the_newest_result():
    subprocess.run([sys.executable, str(ROOT / "scripts/docs/readme_table.py"), "--check"], check=True)


def test_groups_are_taken_from_the_newest_run_that_has_them(tmp_path):
    for name in ("README.md", "python/README.md", "scripts/docs/readme_table.py", "scripts/gpu", "docs/gpu-runner.md", "docs/performance.md", "docs/performance-method.md", "docs/scale.md", "docs/plots", "benches/instructions.json", "benches/results", "python/python/windrow/bench"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)

    def publish(**changes):
        (tmp_path / "run.json").write_text(json.dumps({**full, **changes}))
        command = [sys.executable, str(tmp_path / "scripts/docs/readme_table.py")]
        subprocess.run([*command, "--publish", str(tmp_path / "run.json")], check=True)
        subprocess.run([*command, "--check"], check=True)
        text = (tmp_path / "docs/performance.md").read_text()
        return {name: text.split(f"<!-- {name}: begin -->")[1].split(f"<!-- {name}: end -->")[0] for name in ("short", "table", "losses", "groups", "groups-losses", "moves")}

    def entry(name, theirs):
        timed = [{"name": contender, "quartiles": [t, t, t]} for contender, t in (("windrow", 2e-3), ("peer", theirs))]
        return {"name": name, "title": f"<{name}>", "bytes": 2, "results": timed}

    full = {"machine": {"cpu": "x", "cores": "2", "date": "2099-01-01"}, "schema": 2, "sweeps": []}
    found = publish(workloads=[entry("W1", 1e-3), entry("small-pad", 1e-3), entry("source-tokens", 3e-3)])
    assert all("2099-01-01-host-x-2core.json" in found[name] for name in ("short", "table", "losses", "groups", "groups-losses"))
    for own, other in (("table", "groups"), ("losses", "groups-losses")):
        assert "<W1>" in found[own] and "<small-pad>" not in found[own]
        assert "<W1>" not in found[other] and "<small-pad>" in found[other]
    assert "64 token lists of a tokenizer" in found["short"]
    # A later run without groups leaves theirs as they are.
    full["machine"]["date"] = "2099-01-02"
    later = publish(workloads=[entry("W1", 1e-3)])
    assert "2099-01-02" in later["table"] and later["groups"] == found["groups"]
    # One that has them takes the place of both.
    full["machine"]["date"] = "2099-01-03"
    publish(workloads=[entry("W1", 1e-3), entry("small-pad", 1e-3)])
    assert [path.name for path in (tmp_path / "benches/results").glob("*-x-*")] == ["2099-01-03-host-x-2core.json"]
    # Moves have a table of their own, and leave the others as they are.
    full["machine"]["date"] = "2099-01-04"
    last = publish(workloads=[entry("move-copy64", 1e-3)])
    assert "2099-01-03-host-x-2core.json" in last["groups"] and "<move-copy64>" not in last["table"] + last["groups"]
    assert "<move-copy64>" in last["moves"] and "2099-01-04-moves-x-2core.json" in last["moves"] and "0.50 of windrow's time" in last["moves"]
