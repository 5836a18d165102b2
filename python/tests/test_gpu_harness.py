"""The harness of the tests on a GPU: those that run in another process, which needs none."""

import os
import re
import time
from pathlib import Path

import pytest

import windrow as wr
from gpu_harness import LIMIT, Other, new_process, own_process, torch

SLOTS = Path(__file__).resolve().parents[2] / "scripts/gpu/slots.sh"

DONE = []


@own_process
def passes():
    assert wr.stack([torch.ones(3)] * 2).torch().sum() == 6
    DONE.append(1)


@own_process
def passes_alone():
    assert not DONE, "others were here"


@own_process
def dies():
    os.abort()


@own_process
def hangs():
    time.sleep(600)


@own_process
def is_late(seconds):
    time.sleep(seconds)
    raise AssertionError("a late verdict")


@own_process
def skips(why):
    pytest.skip(f"SKIP: {why}")


@pytest.mark.slow
def test_tests_follow_each_other_in_one_process_until_one_fails():
    assert Other.run(passes, {}) is None
    first = Other.process.pid
    assert Other.run(passes, {}) is None and Other.process.pid == first
    with pytest.raises(pytest.skip.Exception, match="no reason"):
        Other.run(skips, {"why": "no reason"})
    assert Other.process.pid == first
    # It is judged alone.
    assert Other.run(passes_alone, {}) is None and Other.process.pid != first
    assert Other.run(dies, {}) == "the process ended with status -6" and Other.process is None


@pytest.mark.slow
def test_a_test_that_hangs_costs_itself_alone(monkeypatch):
    monkeypatch.setattr(Other, "TEST", 1)
    assert Other.run(passes, {}) is None
    first = Other.process
    assert Other.run(hangs, {}) == "not done after 1 s" and Other.process is None and not first.is_alive()
    assert Other.run(passes_alone, {}) is None


@pytest.mark.slow
def test_a_process_that_nobody_waits_for_any_longer_is_ended(monkeypatch):
    """Pytest's limit or an interrupt leaves such a process: what the process would say is not the verdict of the next test."""
    assert Other.run(passes, {}) is None
    first, answer = Other.process, Other.answer

    def interrupted(limit):
        raise KeyboardInterrupt

    monkeypatch.setattr(Other, "answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Other.run(is_late, {"seconds": 0.1})
    assert Other.process is None and not first.is_alive()
    monkeypatch.setattr(Other, "answer", answer)
    assert Other.run(passes_alone, {}) is None


@pytest.mark.skipif(not SLOTS.exists(), reason="SKIP: needs a checkout")
def test_two_runs_of_a_test_are_done_before_pytests_limit():
    (limit,) = re.findall(r"--timeout (\d+)", SLOTS.read_text())
    assert max(LIMIT, Other.START + 2 * Other.TEST + 3 * Other.END) < int(limit)
    # One that hangs takes no more than a fifth of its slot, but for the start of another process.
    (slot,) = re.findall(r"^graphs\|\d+\|(\d+)\|", SLOTS.read_text(), re.M)
    assert 2 * Other.TEST + 2 * Other.END <= int(slot) / 5


def test_what_needs_a_library_starts_no_process_without_it(monkeypatch):
    monkeypatch.setattr("gpu_harness.need_gpu", lambda: None)
    monkeypatch.setattr("isolated.run", None)
    with pytest.raises(pytest.skip.Exception, match="SKIP: no_such_library is not installed"):
        new_process(lambda: None, needs="no_such_library")()


@pytest.mark.slow
def test_a_test_has_a_process_of_its_own(monkeypatch):
    monkeypatch.setattr("gpu_harness.need_gpu", lambda: None)
    reads(name="NAME_OF_NOTHING", value="3")


def named(name, value):
    return {name: value}


@new_process(env=named)
def reads(name, value):
    assert os.environ[name] == value and not DONE
