"""The harness of the tests on a GPU: those that run in another process, which needs none."""

import os

import pytest

import windrow as wr
from gpu_harness import Other, new_process, own_process, torch

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
def test_a_test_has_a_process_of_its_own(monkeypatch):
    monkeypatch.setattr("gpu_harness.need_gpu", lambda: None)
    reads(name="NAME_OF_NOTHING", value="3")


def named(name, value):
    return {name: value}


@new_process(env=named)
def reads(name, value):
    assert os.environ[name] == value and not DONE
