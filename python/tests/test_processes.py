"""The process around windrow: signals, forks, interpreters."""

import os
import sys

import pytest

import isolated

pytestmark = pytest.mark.slow


# signals


INTERRUPT = """
rows = [paint(1 << 20, seed=i) for i in range(8)] * 8
want = np.stack(rows)
out = np.empty_like(want)
wr.stack(rows)
interrupted = 0
for n in range(12):
    wr.empty_cache()
    begun = threading.Event()
    def interrupt():
        begun.wait()
        time.sleep(0.001 * (n % 4))
        os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        begun.set()
        if n % 2:
            kept = wr.stack(rows)
        else:
            kept = wr.collate([{"x": row, "y": i} for i, row in enumerate(rows)])
        while True:
            pass
    except KeyboardInterrupt:
        interrupted += 1
    thread.join()
    kept = None
    settle()
    assert wr.stats()["pool_used_bytes"] == 0, wr.stats()
assert interrupted == 12
assert (wr.stack(rows, out=out).numpy() == want).all() and (out == want).all()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SKIP: no SIGINT by os.kill")
def test_interrupted_in_the_middle():
    """A signal is looked at by Python code, of which none runs while windrow moves bytes: the call ends, then
    KeyboardInterrupt is raised and the batch is released."""
    isolated.run(INTERRUPT)


# forks


FORK = """
big = [paint(1 << 20, seed=i) for i in range(2)]
rows = [paint(1 << 15, seed=i) for i in range(3)]
if sys.argv[1] == "threads":
    # Starts the threads of engines, one after the other.
    engine = wr.Engine(threads=6)
    def work():
        global engine
        engine = wr.Engine(threads=6)
        wr.stack(big, engine=engine)
else:
    # Takes blocks of the pool and gives them back; with so many free ones that takes its time.
    engine = None
    many = [wr.stack(rows) for _ in range(2000)]
    del many
    def work():
        wr.stack(rows)
want = np.stack(rows)
stop = False
def busy():
    while not stop:
        work()
threads = [threading.Thread(target=busy) for _ in range(3)]
for thread in threads:
    thread.start()
kept = wr.stack(rows, engine=wr.Engine(threads=2))
view = wr.stack(rows[:1], copy=False)
try:
    for n in range(int(sys.argv[2])):
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            code = 1
            try:
                assert (wr.stack(big, engine=engine).numpy() == np.stack(big)).all()
                assert (wr.stack(rows).numpy() == want).all()
                assert (wr.stack(big).numpy() == np.stack(big)).all()
                assert (wr.stack(big, engine=wr.Engine(threads=2)).numpy() == np.stack(big)).all()
                assert wr.stats()["pool_used_bytes"] >= 0
                wr.empty_cache()
                del kept, view
                gc.collect()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"child {n}: status {status:#x}"
finally:
    stop = True
for thread in threads:
    thread.join()
assert (wr.stack(rows).numpy() == want).all() and (kept.numpy() == want).all()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="SKIP: no fork on this system")
@pytest.mark.parametrize("busy", ["pool", "threads"])
def test_a_fork_while_other_threads_assemble(busy):
    isolated.run(FORK, busy, 60, timeout=300)


# interpreters


SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
script = f'''
import sys
sys.path[:] = {sys.path!r}
try:
    import windrow
except ImportError as error:
    assert "subinterpreter" in str(error), error
else:
    raise SystemExit("windrow was imported")
'''
for _ in range(2):
    one = interpreters.create()
    failed = interpreters.run_string(one, script)
    assert failed is None, failed
    interpreters.destroy(one)
assert_tensor(wr.stack([paint(3)]), paint((1, 3)))
"""


def test_subinterpreters_are_refused():
    try:
        __import__("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
    except ImportError:
        pytest.skip("SKIP: this Python has no subinterpreters")
    isolated.run(SUBINTERPRETER)
