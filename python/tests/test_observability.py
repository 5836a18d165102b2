"""explain, stats and records of logging: they say what was done, all of it, and never cost a batch."""

import copy
import json
import logging
import os
import pickle
import re
import signal
import sys
import threading

import numpy as np
import pytest

import windrow as wr
import isolated
from helpers import assert_tensor, paint, pointer, refusal

ROWS = [paint((n, 3), "float32", n) for n in (4, 1, 3, 2)]
EVEN = [paint((4, 3), "float32", n) for n in range(5)]
TABLE = paint((6, 8), "int16")
SAMPLES = [{"x": row, "pair": (even.T, n), "text": "t"} for n, (row, even) in enumerate(zip(ROWS, EVEN))]
SPEC = {"x": wr.Pad(mask="real"), "pair/1": wr.Stack(dtype="float32")}

# form, samples, arguments, path
CASES = {
    "scattered": ("stack", EVEN, {}, "gather"),
    "neighbours": ("stack", list(TABLE), {}, "memcpy"),
    "neighbours but for one": ("stack", [*TABLE[:4], TABLE[5]], {}, "gather"),
    "two neighbours": ("stack", list(TABLE[2:4]), {}, "memcpy"),
    "one sample": ("stack", EVEN[:1], {}, "memcpy"),
    "the same again": ("stack", EVEN[:1] * 4, {}, "gather"),
    "nothing in them": ("stack", [paint((0, 3))] * 2, {}, "gather"),
    "large": ("stack", [paint((1024, 1024), "uint8", n) for n in range(3)], {}, "gather"),
    "strided": ("stack", [sample.T for sample in EVEN], {}, "strided"),
    "cast": ("stack", EVEN, {"dtype": "float16"}, "cast"),
    "cast of some": ("concat", [EVEN[0], paint((2, 3), "float64")], {"dtype": "float64"}, "cast"),
    "transform": ("stack", EVEN, {"transform": wr.Transform(scale=2.0)}, "transform"),
    "concat": ("concat", ROWS, {}, "gather"),
    "pad": ("pad", ROWS, {"value": 7, "mask": "pad"}, "strided"),
    "pad more": ("pad", ROWS, {"multiple_of": (8, 4), "side": "left"}, "strided"),
    "ragged": ("ragged", ROWS, {"batch_index": True}, "gather"),
    "view": ("stack", list(TABLE), {"copy": None}, "view"),
    "no view": ("stack", EVEN, {"copy": None}, "gather"),
    "out": ("stack", list(TABLE), {"copy": None, "out": np.empty_like(TABLE)}, "memcpy"),
    "a list": ("stack", wr.SampleList(EVEN).take([3, 1]), {}, "gather"),
}


@pytest.mark.parametrize("case", CASES)
def test_stats_count_what_explain_says(case):
    form, samples, arguments, path = CASES[case]
    plan = wr.explain(samples, form, **arguments).as_dict()
    engine = wr.Engine(threads=2)
    engine.reset_stats()
    batch = getattr(wr, form)(samples, engine=engine, **arguments)
    stats = engine.stats()
    assert plan["path"] == path and plan["paths"] == [path] and plan["names"] == [""]
    assert plan["outputs"] == [(batch.shape, batch.dtype)]
    assert stats["paths"] == {path: 1} and stats["batches"] == 1 and stats["samples"] == plan["samples"]
    assert stats["views"] == (path == "view")
    assert stats["bytes_in"] == plan["bytes_read"]
    assert stats["data_bytes"] == (0 if path == "view" else batch.nbytes)
    assert plan["bytes_written"] == stats["data_bytes"] + sum(field.nbytes for field in (batch.mask, batch.batch_index) if field is not None)
    assert stats["padding_bytes"] == plan["padding_bytes"]
    assert stats["padding_waste"] == plan["padding_waste"]
    assert plan["tiles"] == (0 if path == "view" or not batch.nbytes else max(plan["tiles"], 1))
    assert stats["run_seconds"] > 0 or path == "view"


def test_padding_waste():
    engine = wr.Engine(threads=1)
    rows = [paint(n, "int32") for n in (1, 2, 5)]
    batch = wr.pad(rows, engine=engine, mask="real")
    wasted = int((~batch.mask.numpy()).sum())
    assert wasted == 7
    stats = engine.stats()
    assert (stats["data_bytes"], stats["padding_bytes"], stats["padding_waste"]) == (60, 28, 7 / 15)
    wr.stack(EVEN, engine=engine)
    assert engine.stats()["padding_waste"] == 28 / (60 + 5 * 48)
    engine.reset_stats()
    assert engine.stats()["padding_waste"] == 0


def test_every_stage_of_the_host_has_its_time():
    engine = wr.Engine(threads=1)
    keys = ("import_seconds", "plan_seconds", "run_seconds")
    wr.stack(EVEN, engine=engine)
    assert not any(engine.stats()[key] for key in keys), "not measured yet"
    wr.stack(EVEN, engine=engine)
    before = engine.stats()
    assert before["import_seconds"] > 0 and before["run_seconds"] > 0
    assert before["plan_seconds"] == 0, "small stacks are not planned"
    wr.collate(SAMPLES, SPEC, sep="/", engine=engine)
    after = engine.stats()
    assert all(after[key] > before[key] for key in keys) and after["wait_seconds"] == 0
    refusal(lambda: wr.stack(ROWS, engine=engine), wr.ShapeError)
    refused = engine.stats()
    assert (refused["batches"], refused["paths"]) == (after["batches"], after["paths"])
    engine.reset_stats()
    assert not any(engine.stats()[key] for key in (*keys, "wait_seconds")) and engine.stats()["paths"] == {}


# explain


def test_stats_are_attributes_items_and_a_table():
    wr.reset_stats()
    wr.stack([paint(1500), paint(1500)])
    for stats in (wr.stats(), wr.Engine(threads=1).stats()):
        assert stats.paths is stats["paths"] and {*stats} <= {*dir(stats)}
        assert [getattr(stats, name) for name in stats] == [*stats.values()] and list(dict(stats)) == [*stats]
        declared = re.findall(r"^        (\w+) \(", wr.Stats.__doc__, re.M)
        assert list(stats) == declared
        for copied in (pickle.loads(pickle.dumps(stats)), copy.deepcopy(stats)):
            assert type(copied) is wr.Stats and copied == stats
        assert json.loads(json.dumps(stats)) == json.loads(json.dumps(dict(stats))) == stats
        with pytest.raises(AttributeError, match="'Stats' has no attribute 'sample'"):
            stats.sample
        with pytest.raises(KeyError):
            stats["sample"]
    lines = str(wr.stats()).splitlines()
    assert len(lines) == len(wr.stats()) and "bytes_in           3,000" in lines and "paths              gather 1" in lines
    assert str(wr.stats()).startswith("batches            1\n") and repr(wr.stats()).startswith("Stats({'batches': 1, ")
    assert wr.stats().copy().batches == 1 and wr.Engine(threads=1).stats().workers == {}


SPECS = [wr.Stack(dtype="float32"), wr.Concat(dim=0, device="cpu"), wr.Pad(multiple_of=8, mask="real"), wr.Ragged(batch_index=True)]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.form)
def test_a_spec_explains_its_form(spec):
    samples = [paint(3), paint(3)]
    assert spec.explain(samples).as_dict() == wr.explain(samples, spec.form, **spec.kwargs).as_dict()
    with pytest.raises(TypeError, match="sample 1"):
        spec.explain([paint(3), None])


def test_a_list_spec_explains_itself():
    samples, spec = [paint(3, "float32"), paint(5, "float32")], wr.List(dtype="float64")
    assert spec.explain(samples).as_dict() == wr.explain(samples, "collate", spec=spec).as_dict()
    assert spec.explain(samples).bytes_written == 64


def test_explain_of_a_tree():
    arguments = {"spec": SPEC, "sep": "/"}
    plan = wr.explain(SAMPLES, "collate", **arguments)
    engine = wr.Engine(threads=1)
    tree = wr.collate(SAMPLES, engine=engine, **arguments)
    assert plan.names == ["x", "pair/0", "pair/1"]
    assert plan.paths == ["strided", "strided", "cast"] and plan.path == "mixed"
    leaves = [tree["x"], *tree["pair"]]
    assert plan.outputs == [(leaf.shape, leaf.dtype) for leaf in leaves]
    stats = engine.stats()
    assert stats["paths"] == {"strided": 2, "cast": 1} and stats["batches"] == plan.leaves == 3
    assert (stats["bytes_in"], stats["padding_bytes"]) == (plan.bytes_read, plan.padding_bytes)
    assert stats["padding_waste"] == plan.padding_waste > 0
    assert plan.bytes_written == sum(leaf.nbytes for leaf in leaves) + tree["x"].mask.nbytes
    for line in ("x (4, 4, 3) float32, strided", "pair/1 (4,) float32, cast"):
        assert line in str(plan)
    assert {name: getattr(plan, name) for name in plan.as_dict()} == plan.as_dict() and {*plan.as_dict(), "as_dict"} <= set(dir(plan))


def test_explain_of_a_tree_with_views_and_outputs():
    samples = [{"a": row, "b": even} for row, even in zip(TABLE, EVEN)]
    plan = wr.explain(samples, "collate", copy=None)
    assert plan.paths == ["view", "gather"] and plan.bytes_read == plan.bytes_written == 5 * 48
    out = {"a": np.empty((5, 8), np.int16), "b": np.empty((5, 4, 3), np.float32)}
    assert wr.explain(samples, "collate", copy=None, out=out).paths == ["memcpy", "gather"]
    small = {"a": out["a"], "b": out["b"][:4]}
    assert refusal(lambda: wr.explain(samples, "collate", out=small), wr.ShapeError, path="b")


def test_explain_of_a_tree_refuses_what_collate_refuses():
    for arguments in ({"spec": {"y": wr.Stack()}}, {"sepp": "/"}, {"copy": False}, {"spec": {"x": wr.Stack()}}):
        messages = []
        for call in (lambda **kw: wr.collate(SAMPLES, **kw), lambda **kw: wr.explain(SAMPLES, "collate", **kw)):
            with pytest.raises((ValueError, TypeError, KeyError)) as raised:
                call(**arguments)
            messages.append(f"{type(raised.value).__name__}: {raised.value}")
        assert messages[0] == messages[1]
    with pytest.raises(ValueError):
        wr.explain([], "collate")


def test_explain_refuses_a_view_that_cannot_be():
    assert wr.explain(list(TABLE), copy=False).path == "view"
    refusal(lambda: wr.explain(EVEN, copy=False), ValueError)


@pytest.mark.parametrize(
    "form, arguments, field, want",
    [
        ("pad", {"mask": "real"}, "mask", np.ones((6, 8), bool)),
        ("ragged", {"batch_index": True}, "batch_index", np.repeat(np.arange(6), 8)),
    ],
)
def test_what_has_to_be_written_is_written_though_the_data_could_be_a_view(form, arguments, field, want):
    call = getattr(wr, form)
    batch = call(list(TABLE), copy=None, **arguments)
    assert_tensor(getattr(batch, field), want)
    assert pointer(batch) != pointer(TABLE)
    refusal(lambda: call(list(TABLE), copy=False, **arguments), ValueError)
    assert pointer(call(list(TABLE), copy=None)) == pointer(TABLE)


# logging


@pytest.fixture
def records():
    """The records of the loggers."""
    told = []

    class Told(logging.Handler):
        def emit(self, record):
            told.append(record)

    logger, handler = logging.getLogger("windrow"), Told()
    level, propagate = logger.level, logger.propagate
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    logger.propagate = False
    wr.set_logging()
    yield told
    wr.set_logging(False)
    logger.removeHandler(handler)
    logger.setLevel(level)
    logger.propagate = propagate


def stages(records):
    return [record.name for record in records]


def test_records_of_a_call(records):
    engine = wr.Engine(threads=1)
    wr.pad(ROWS, mask="real", engine=engine)
    assert stages(records) == ["windrow.import", "windrow.run"], "a small batch has no plan"
    run = records[-1]
    stats = engine.stats()
    for name in ("samples", "bytes_in", "bytes_out", "padding_bytes"):
        assert run.windrow[name] == stats[name]
    assert run.windrow["paths"] == "strided" and run.windrow["stage"] == "run" and run.windrow["seconds"] > 0
    assert run.levelno == logging.DEBUG and "padding_bytes 72" in run.getMessage()
    assert os.path.basename(run.pathname) == os.path.basename(__file__), "the line of the call"


def test_records_of_other_calls(records):
    batch = wr.stack(EVEN)
    assert stages(records) == ["windrow.import", "windrow.run"]
    del records[:]
    batch.numpy()
    assert stages(records) == ["windrow.export"]
    del records[:]
    wr.collate(SAMPLES, SPEC, sep="/")
    assert stages(records) == ["windrow.import", "windrow.plan", "windrow.run"]
    assert (records[-1].windrow["paths"], records[-1].windrow["samples"]) == ("strided, strided, cast", 12)
    del records[:]
    with pytest.raises(wr.ShapeError):
        wr.stack(ROWS)
    assert stages(records) == ["windrow.import", "windrow.plan"]
    del records[:]
    with pytest.raises(TypeError):
        wr.stack([object()])
    assert stages(records) == ["windrow.import"]


def test_records_of_torch(records, torch):
    from windrow.torch import collate_fn

    collate_fn()([{"x": torch.arange(3), "y": torch.ones(2)} for _ in range(2)])
    assert stages(records)[:2] == ["windrow.import", "windrow.run"], "small batches have no plan"


def test_off_nothing_is_told(records):
    wr.set_logging(False)
    wr.stack(EVEN).numpy()
    assert records == []
    wr.set_logging(True)
    logging.getLogger("windrow.run").setLevel(logging.INFO)
    try:
        wr.stack(EVEN)
    finally:
        logging.getLogger("windrow.run").setLevel(logging.NOTSET)
    assert stages(records) == ["windrow.import"]


class Filter:
    def __init__(self, what):
        self.what = what

    def filter(self, record):
        self.what()
        return True


@pytest.fixture
def filtered(records):
    """Runs something whenever a record is made."""
    added = []

    def add(what):
        added.append(Filter(what))
        logging.getLogger("windrow.run").addFilter(added[-1])

    yield add
    for one in added:
        logging.getLogger("windrow.run").removeFilter(one)


def test_a_handler_that_raises_costs_no_batch(filtered, monkeypatch):
    def fail():
        raise RuntimeError("a filter of the user's")

    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: unraisable.append(str(args.exc_value)))
    filtered(fail)
    assert_tensor(wr.stack(EVEN), np.stack(EVEN))
    assert unraisable == ["a filter of the user's"]


def test_a_handler_that_assembles_is_not_told_of_it(filtered, records):
    inner = []
    filtered(lambda: inner.append(wr.stack(EVEN)))
    wr.stack(EVEN)
    assert len(inner) == 1 and stages(records) == ["windrow.import", "windrow.run"]
    wr.stack(EVEN)
    assert len(inner) == 2 and len(records) == 4


def test_an_interrupt_in_a_handler_is_not_lost(filtered):
    def interrupt():
        signal.raise_signal(signal.SIGINT)

    filtered(interrupt)
    with pytest.raises(KeyboardInterrupt):
        wr.stack(EVEN)
        for _ in range(1000):
            pass


def test_records_of_many_threads(records):
    large = [paint((1024, 1024), "uint8", n) for n in range(4)]
    engine = wr.Engine(threads=2)
    together = threading.Barrier(4)  # One that ends before another begins leaves it its number.

    def work():
        together.wait()
        for _ in range(5):
            wr.stack(large, engine=engine)
            wr.stack([np.float32(1)] * 3000, engine=engine)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a deadlock"
    assert stages(records).count("windrow.run") == engine.stats()["batches"] == 40
    for thread in threads:
        own = [record.name for record in records if record.thread == thread.ident]
        assert own.count("windrow.import") == own.count("windrow.run") == 10


def python(code, **environment):
    base = {name: value for name, value in os.environ.items() if name not in ("WINDROW_LOG", "WINDROW_NVTX")}
    return isolated.python("-c", code, env={**base, **environment})


@pytest.mark.slow
def test_the_environment_turns_records_on():
    code = "import windrow as wr; wr.stack([b'a', b'b'])"
    on = python(code, WINDROW_LOG="1")
    assert "windrow.run run: " in on.stderr and "paths gather" in on.stderr
    assert python(code).stderr == python(code, WINDROW_LOG="0").stderr == ""
    own = "import logging; logging.basicConfig(format='own %(name)s'); " + code
    assert python(own, WINDROW_LOG="1").stderr.splitlines() == ["own windrow.import", "own windrow.run"]
    assert "logging" not in python("import windrow, sys; print('logging' in sys.modules)").stdout


# doctor


@pytest.mark.slow
def test_doctor_says_what_watches():
    command = "from windrow import doctor; doctor.main(['--json'])"
    facts = json.loads(python(command, WINDROW_LOG="1", WINDROW_NVTX="1").stdout)
    assert facts["logging"] == "on" and "NVTX_INJECTION64_PATH is not set" in facts["nvtx"]
    assert "WINDROW_LOG=1" in facts["variables"] and facts["windrow"].startswith(wr.__version__)
    assert {row["library"] for row in facts["libraries"]} >= {"torch", "numpy", "array"}
    assert all("problem" in row or row["nanoseconds"] > 0 for row in facts["libraries"])
    plain = python("from windrow import doctor; doctor.main([])")
    assert "WINDROW_LOG=1 or wr.set_logging()" in plain.stdout and plain.stderr == ""
    assert python("import sys; from windrow import doctor; sys.exit(doctor.main(['--yaml']))").returncode == 2
