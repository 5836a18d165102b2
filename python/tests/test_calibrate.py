"""`python -m windrow calibrate`, and who decides which outputs are written around the caches."""

import json
import os
import sys

import numpy as np
import pytest

import windrow as wr
from windrow import _windrow, calibrate

import isolated

ALL = "copies=0,padded=0,computed=0"
NONE = "copies=never,padded=never,computed=never"


def chosen(**environment):
    """The policy of a new process."""
    program = "from windrow import _windrow; print(*_windrow._streaming_stores(), sep='|')"
    done = isolated.python("-c", program, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().split("|")


@pytest.mark.slow
def test_measurements_are_kept_and_obeyed(tmp_path):
    path = tmp_path / "new" / "machine.json"
    environment = {**os.environ, "WINDROW_CALIBRATION": str(path)}
    done = isolated.python("-m", "windrow", "calibrate", "--seconds", "0.01", env=environment)
    assert done.returncode == 0 and str(path) in done.stderr, done.stderr
    found = json.loads(path.read_text())
    assert set(found["host"]["milliseconds"]) == {"copies", "padded", "computed"}
    assert chosen(WINDROW_CALIBRATION=str(path)) == [found["host"]["streaming_stores"], str(path)]
    # The variable is nearer.
    assert chosen(WINDROW_CALIBRATION=str(path), WINDROW_STREAMING_STORES=NONE) == [NONE, "WINDROW_STREAMING_STORES"]
    path.write_text("[1, 2")
    own = chosen(WINDROW_CALIBRATION=str(tmp_path / "nothing"))
    broken = chosen(WINDROW_CALIBRATION=str(path))
    assert broken[0] == own[0] and f"{path} is not read" in broken[1]
    assert "is not read" in chosen(WINDROW_STREAMING_STORES="always")[1]


@pytest.mark.slow
def test_a_file_of_the_user_has_the_name_of_the_processor(tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    environment.pop("WINDROW_CALIBRATION", None)
    done = isolated.python("-c", "from windrow import _windrow; print(_windrow._calibration_file())", env=environment)
    path = done.stdout.strip()
    assert path.startswith(str(tmp_path)) and path.endswith(".json")
    if sys.platform == "linux":
        assert os.path.dirname(path) == str(tmp_path / "windrow")


OBEYED = """
import numpy as np, windrow as wr
from windrow import _windrow
host = wr.SampleList(wr.stack([bytes(4096)] * 64, device="pinned"))
device = wr.SampleList(wr.stack([bytes(4096)] * 64, device="cuda"))
print(_windrow._page_copies(0))
for count in (4, 40):
    ids = list(range(0, count, 2))
    print(*wr.explain(host.take(ids), "copy_many", dsts=device.take(ids)).paths)
    wr.copy_many(device.take(ids), host.take(ids))
"""


@pytest.mark.slow
@pytest.mark.simulated("which is measured in a moment")
def test_pages_go_to_a_device_as_was_measured(sim, tmp_path):
    path = tmp_path / "machine.json"
    environment = {**os.environ, "WINDROW_CALIBRATION": str(path)}
    done = isolated.python("-m", "windrow", "calibrate", "--seconds", "0.01", env=environment)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(path.read_text())["gpus"]
    assert "driver" in found["gpu"] and "16 x 512" in found["microseconds"] and "1024 x 32768" in found["microseconds"]
    assert [pair.split("=")[0] for pair in found["page_copies"].split(",")] == ["16", "128", "1024"]

    def obeyed():
        done = isolated.python("-c", OBEYED, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.split("\n")[:3]

    assert obeyed()[0] == found["page_copies"]
    # The fewer of them by a kernel, and the more by copies.
    path.write_text(json.dumps({"gpus": [{"page_copies": "1=never,16=4096"}]}))
    assert obeyed() == ["1=never,16=4096", "direct pinned", "copied pinned"]
    for text in ("{}", '{"page_copies": "always"}', "[1, 2"):
        path.write_text(text)
        assert obeyed() == ["None", "direct pinned", "direct pinned"]


@pytest.mark.slow
@pytest.mark.simulated("whose name is known")
def test_each_gpu_has_a_file_of_its_own(sim, tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    environment.pop("WINDROW_CALIBRATION", None)
    done = isolated.python("-m", "windrow", "calibrate", "--seconds", "0.01", env=environment)
    assert done.returncode == 0, done.stderr
    first, second = sorted((tmp_path / "windrow").iterdir(), key=lambda file: "driver" in file.name)
    assert "host" in json.loads(first.read_text()) and "page_copies" in json.loads(second.read_text())
    done = isolated.python("-c", OBEYED, env=environment)
    assert done.stdout.split("\n")[0] == json.loads(second.read_text())["page_copies"], done.stderr


def test_an_engine_is_told():
    samples = [np.random.default_rng(i).integers(0, 255, (64, 64, 3), "u1") for i in range(20)]
    uneven = [sample[: 40 + i % 5] for i, sample in enumerate(samples)]
    transform = wr.Transform(scale=1 / 255, permute=(2, 0, 1))
    calls = [
        lambda engine: wr.stack(samples, engine=engine),
        lambda engine: wr.stack(samples, dtype="float32", transform=transform, engine=engine),
        lambda engine: wr.pad(uneven, dims=0, dtype="int32", engine=engine),
        lambda engine: wr.ragged(uneven, engine=engine),
    ]
    around, plain = wr.Engine(streaming_stores=ALL), wr.Engine(streaming_stores=NONE)
    for call in calls:
        for _ in range(3):  # The first is in new memory, which is written as it comes.
            assert call(around).numpy().tobytes() == call(plain).numpy().tobytes()
    for bad in ("", "always", "copies=1", "copies=1,padded=2,computed=x"):
        with pytest.raises(ValueError, match="copies=BYTES,padded=BYTES,computed=BYTES"):
            wr.Engine(streaming_stores=bad)
    with pytest.raises(TypeError, match="streaming_stores must be a str"):
        wr.Engine(streaming_stores=1)


def test_explain_says_which_leaves():
    sample, count = np.zeros(1 << 20, "f4"), 9
    plan = wr.explain([sample] * count, dtype="float16")
    stores, source = _windrow._streaming_stores()
    computed = stores.rpartition("computed=")[2]
    large = wr.explain([sample] * 40, dtype="float16")
    assert plan.around_caches == [computed != "never" and int(computed) <= count << 21]
    assert large.around_caches == [computed != "never" and int(computed) <= 40 << 21]
    assert (f"{stores} ({source})" in str(large)) == large.around_caches[0]
    for engine, is_around in ((wr.Engine(streaming_stores=ALL), True), (wr.Engine(streaming_stores=NONE), False)):
        one, moved = np.zeros(6 << 20, "f4"), np.zeros(6 << 20)
        for plan in (wr.explain([one] * 2, engine=engine), wr.explain([one], "copy_many", dsts=[moved], engine=engine)):
            assert plan.around_caches == [is_around] and ("(engine)" in str(plan)) == is_around
    mixed = wr.explain([{"x": one, "y": one}] * 2, "collate", spec={"x": wr.Stack(engine=wr.Engine(streaming_stores=NONE))}, engine=wr.Engine(streaming_stores=ALL))
    assert mixed.around_caches == [False, True] and str(mixed).count("(engine)") == 1


@pytest.mark.parametrize("seconds", ["inf", "nan", "-1", "0", "x"])
def test_seconds_that_are_none(seconds, capsys):
    for arguments in (["--seconds", seconds], [f"--seconds={seconds}"]):
        with pytest.raises(SystemExit) as ended:
            calibrate.main(arguments)
        assert ended.value.code == 2 and repr(seconds) in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_named_before_measuring(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(calibrate, "measure", lambda seconds: pytest.fail("it measures"))
    (tmp_path / "file").write_text("kept")
    for path, text in (
        (None, "there is no cache folder; let WINDROW_CALIBRATION name a file"),
        (tmp_path, str(tmp_path)),
        (tmp_path / "file" / "machine.json", str(tmp_path / "file")),
    ):
        monkeypatch.setattr(_windrow, "_calibration_file", lambda: path and str(path))
        assert calibrate.main([]) == 1
        error = capsys.readouterr().err
        assert error.startswith("cannot write: ") and text in error and error.endswith("; --print measures and writes nothing\n")
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.parametrize("print_only", [False, True])
def test_a_file_that_cannot_be_written_keeps_no_other_from_it(print_only, monkeypatch, tmp_path, capsys):
    (tmp_path / "first.json").mkdir()
    monkeypatch.setattr(_windrow, "_calibration_file", lambda name="host": str(tmp_path / "new" / f"{name}.json"))
    monkeypatch.setattr(calibrate, "measure", lambda seconds: {"host": seconds})
    monkeypatch.setattr(calibrate, "gpus", lambda seconds: {"../first": {}, "second": {"gpu": "second"}})
    assert calibrate.main(["--seconds=2", *["--print"][:print_only]]) == (not print_only)
    out, error = capsys.readouterr()
    assert '"host": 2.0' in out and '"gpu": "second"' in out
    if print_only:
        assert not error and not (tmp_path / "new").exists()
    else:
        assert "cannot write: " in error and "first.json" in error
        assert sorted(file.name for file in (tmp_path / "new").iterdir()) == ["host.json", "second.json"]
