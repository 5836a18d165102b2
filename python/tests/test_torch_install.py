"""windrow.torch.install: default_collate itself, with windrow behind it."""

import logging
import multiprocessing
import os

import numpy as np
import pytest

import windrow as wr

torch = pytest.importorskip("torch")

import windrow.torch as wt  # noqa: E402
from test_torch_collate import ACCEPTED, REFUSED, same  # noqa: E402
from test_torch_workers import Samples  # noqa: E402
from torch.utils.data import DataLoader, default_collate  # noqa: E402
from torch.utils.data._utils import collate as torch_collate  # noqa: E402

TABLE = torch_collate.default_collate_fn_map


@pytest.fixture
def before():
    """The table before the test: libraries add their own entries when they are imported."""
    return list(TABLE.items())


@pytest.fixture
def installed(monkeypatch, before):
    monkeypatch.setattr("windrow.torch._install.MIN_TENSOR_BYTES", 0)
    wt.install()
    yield
    wt.uninstall()
    assert list(TABLE.items()) == before


@pytest.mark.parametrize("name", ACCEPTED)
def test_results_are_the_same(name, monkeypatch):
    theirs = default_collate(ACCEPTED[name])
    monkeypatch.setattr("windrow.torch._install.MIN_TENSOR_BYTES", 0)
    wt.install()
    try:
        same(default_collate(ACCEPTED[name]), theirs)
    finally:
        wt.uninstall()


@pytest.mark.parametrize("name", [name for name, batch in REFUSED.items() if isinstance(batch, list)])
def test_errors_are_the_same(name):
    with pytest.raises(Exception) as theirs:
        default_collate(REFUSED[name])
    wt.install()
    try:
        with pytest.raises(type(theirs.value)) as ours:
            default_collate(REFUSED[name])
    finally:
        wt.uninstall()
    assert str(ours.value).split(" 0x")[0] == str(theirs.value).split(" 0x")[0]


def batches_of(call):
    wr.reset_stats()
    call()
    return wr.stats()["batches"]


def test_the_engine_does_it(installed):
    assert batches_of(lambda: default_collate([{"x": torch.ones(9), "y": np.ones(3)}] * 3)) == 2


def test_small_tensors_are_left_to_torch():
    wt.install()
    try:
        assert batches_of(lambda: default_collate([torch.ones(9)] * 3)) == 0
        assert batches_of(lambda: default_collate([torch.ones(9)] * 128)) == 1
        assert batches_of(lambda: default_collate([torch.ones(1 << 18)] * 3)) == 1
    finally:
        wt.uninstall()


def test_twice_is_once(before):
    wt.install()
    first = list(TABLE.items())
    wt.install()
    assert list(TABLE.items()) == first and [key for key, _ in first] == [key for key, _ in before]
    wt.uninstall()
    assert list(TABLE.items()) == before
    wt.uninstall()
    assert list(TABLE.items()) == before


def test_a_block_ends_with_torchs_own_functions(before):
    with pytest.raises(KeyError), wt.install():
        assert list(TABLE.items()) != before
        with wt.install():
            pass
        assert list(TABLE.items()) != before, "the outer block has not ended"
        raise KeyError
    assert list(TABLE.items()) == before
    wt.install()
    with wt.install():
        pass
    assert list(TABLE.items()) != before, "installed before the block"
    wt.uninstall()
    assert list(TABLE.items()) == before


def test_blocks_overlap(before):
    first, second = wt.install(), wt.install()
    with first:
        second.__enter__()
    assert list(TABLE.items()) != before
    second.__exit__(None, None, None)
    assert list(TABLE.items()) == before
    # The same object again.
    with first:
        assert list(TABLE.items()) != before
    assert list(TABLE.items()) == before
    # An install for good in a block holds until it is undone.
    with wt.install():
        wt.install()
    assert list(TABLE.items()) != before
    with wt.install():
        wt.uninstall()
        assert list(TABLE.items()) == before
        later = wt.install()
    assert list(TABLE.items()) != before
    with later:
        pass
    assert list(TABLE.items()) == before


def test_a_log_line_says_what_is_replaced(caplog, before):
    with caplog.at_level(logging.INFO, "windrow"), wt.install(), wt.install():
        pass
    (record,) = caplog.records
    assert record.name == "windrow.torch" and record.levelno == logging.INFO
    assert "collate_tensor_fn" in record.getMessage() and f"replaced in process {os.getpid()}, for every caller" in record.getMessage()
    assert "for\n    the whole process" in wt.install.__doc__


def test_what_others_installed_stays(before):
    def theirs(batch, *, collate_fn_map=None):
        return "theirs"

    wt.install()
    try:
        TABLE[float] = theirs
        wt.install()
        assert default_collate([0.5]) == "theirs"
    finally:
        wt.uninstall()
        assert TABLE[float] is theirs
        TABLE[float] = dict(before)[float]
    assert list(TABLE.items()) == before


def test_a_table_of_the_caller_rules(installed):
    def tensors(batch, *, collate_fn_map=None):
        return len(batch)

    table = {**TABLE, torch.Tensor: tensors}
    assert torch_collate.collate([np.ones(2)] * 3, collate_fn_map=table) == 3


def test_collate_fn_and_install_together(installed):
    batch = [{"x": torch.ones(3), "y": (np.float64(1), "s")}] * 2
    same(wt.collate_fn()(batch), default_collate(batch))


def test_an_unfit_torch_is_refused_with_its_reason(monkeypatch):
    monkeypatch.delattr(torch_collate, "default_collate_fn_map")
    with pytest.raises(RuntimeError, match="no table of collate functions.*default_collate_fn_map"):
        wt.install()


@pytest.mark.parametrize("start", [m for m in ("fork", "spawn") if m in multiprocessing.get_all_start_methods()])
def test_workers(start):
    samples = [{"x": torch.full((1 << 18,), i), "y": i / 2, "z": np.full(2, i)} for i in range(4)]
    expected = default_collate(samples)
    wt.install()
    try:
        loader = DataLoader(
            Samples(samples),
            batch_size=4,
            num_workers=1,
            multiprocessing_context=start,
            worker_init_fn=wt.install if start == "spawn" else None,
        )
        for batch in loader:
            same(batch, expected)
    finally:
        wt.uninstall()


def test_default_collate_of_a_spawned_worker_is_replaced():
    loader = DataLoader(
        Samples([1.0, 2.0]), num_workers=1, collate_fn=Installed(), multiprocessing_context="spawn", worker_init_fn=wt.install
    )
    assert list(loader) == [True, True]


class Installed:
    def __call__(self, batch):
        from windrow.torch._collate import replaced

        return TABLE[torch.Tensor] in replaced
