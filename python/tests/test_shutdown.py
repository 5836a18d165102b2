"""The end of a process, with batches alive wherever they can be. It ends by itself, with its own exit code, and no deleter
runs into a torn-down interpreter."""

import sys
import sysconfig

import pytest

import isolated

pytestmark = pytest.mark.slow

ALIVE = {
    "module globals": """
base = paint((6, 4), "float32")
batches = [wr.stack(list(base)), wr.stack(list(base), copy=False), wr.ragged([base]), wr.pad([base[0], base[0, :2]], mask="real")]
fields = [(batch.data, batch.lengths, batch.mask, batch[0]) for batch in batches]
samples = wr.SampleList([*base, Producer(base[0])])
engine = wr.Engine(threads=2)
large = wr.stack([paint(1 << 20)] * 4, engine=engine)
explained, errors = wr.explain(list(base)), []
try:
    wr.stack([paint(1), paint(2)])
except wr.ShapeError as error:
    errors.append(error)
""",
    "builtins and other modules": """
import builtins
base = paint((6, 4), "float32")
builtins.kept = wr.stack(list(base), copy=False), wr.stack([Producer(base)], copy=False), wr.Engine(threads=2)
sys.kept = np.kept = [wr.stack([base]), wr.SampleList([base]), builtins.kept]
""",
    "foreign memory": """
base = paint((6, 4), "float32")
producers = [Producer(base) for _ in range(4)]
views = [wr.stack([producer], copy=False) for producer in producers]
exports = [view.numpy() for view in views], [view.__dlpack__(max_version=(1, 0)) for view in views], [memoryview(v) for v in views]
del producers, views
""",
    "exports to NumPy": """
base = paint((6, 4), "float32")
def exports():
    batch = wr.stack(list(base))
    return [batch.numpy(), np.from_dlpack(batch), memoryview(batch), batch.__dlpack__(), np.asarray(batch)]
kept = [exports() for _ in range(3)]
np.kept = exports()
""",
    "exports to torch": """
import torch
base = paint((6, 4), "float32")
kept = [wr.stack(list(base)).torch(), torch.from_dlpack(wr.stack(list(base), copy=False)), wr.stack([Producer(base)], copy=False).torch()]
torch.kept = [wr.stack(list(base)).torch(), wr.stack([Producer(base)], copy=False).torch()]
""",
    "reference cycles": """
class Node:
    pass
for n in range(3):
    node = Node()
    node.base = paint((6, 4), "float32")
    node.batch = wr.stack(list(node.base), copy=False)
    node.array = node.batch.numpy()
    node.self = node
del node
""",
    "thread locals": """
local = threading.local()
done, end = threading.Event(), threading.Event()
def work():
    local.kept = wr.stack([paint(1 << 20)] * 4), wr.stack([Producer(paint(9))], copy=False)
    done.set()
    end.wait()
thread = threading.Thread(target=work, daemon=True)
thread.start()
done.wait()
""",
    "a running thread": """
def work():
    rows = [paint(1 << 18, seed=i) for i in range(8)]
    for _ in range(50):
        wr.stack(rows)
    print("worked")
threading.Thread(target=work).start()
""",
    "daemon threads that assemble": """
def work():
    rows = [paint(1 << 20, seed=i) for i in range(8)]
    trees = [{"x": row[:1000], "y": i} for i, row in enumerate(rows)]
    while True:
        wr.stack(rows)
        wr.collate(trees)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
""",
    "atexit": """
import atexit
kept = wr.stack([paint(1 << 20)] * 4)
def late():
    assert_tensor(wr.stack([paint(1 << 20)] * 4), kept.numpy())
    wr.empty_cache()
    print("late")
atexit.register(late)
""",
    "finalizers": """
class Late:
    def __init__(self):
        self.rows = [paint(1 << 20)] * 4
        self.stack, self.write = wr.stack, os.write
    def __del__(self):
        batch = self.stack(self.rows)
        self.write(1, b"late %d\\n" % len(batch))
late = Late()
other = Late()
other.self = other
""",
}

SAYS = {"a running thread": "worked", "atexit": "late", "finalizers": "late 4"}


@pytest.mark.parametrize("code", [0, 7])
@pytest.mark.parametrize("alive", ALIVE)
def test_the_process_ends_well(alive, code):
    if "import torch" in ALIVE[alive]:
        pytest.importorskip("torch")
    if "daemon" in alive and sysconfig.get_config_var("Py_GIL_DISABLED") and sys.version_info < (3, 14):
        pytest.skip("SKIP: PyO3 0.28, the last for 3.13t, cannot stand that CPython unwinds threads")
    script = f"{ALIVE[alive]}\nsys.exit({code})\n"
    said = isolated.run(script, code=code)
    assert SAYS.get(alive, "") in said


def test_deleters_run_once_or_never_at_the_end():
    """A deleter that is written in Python is not called when there is no Python left."""
    script = """
import dlpack_harness
base = paint((6, 4), "float32")
producer = Producer(base)
kept = wr.stack([producer], copy=False)
capsule = kept.__dlpack__(max_version=(1, 0))
class Last:
    def __init__(self):
        self.write, self.handle, self.frees = os.write, producer.handles[0], dlpack_harness.double_frees
    def __del__(self):
        self.write(1, b"deleted %d, twice %d\\n" % (self.handle.deleted, len(self.frees())))
last = Last()
"""
    said = isolated.run(script)
    assert said in ("deleted 0, twice 0\n", "deleted 1, twice 0\n")


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="SKIP: from 3.14 on such threads hang instead")
def test_what_cannot_be_promised():
    """Before Python 3.14 a daemon thread in Python code that native code has called is ended by unwinding its stack when the
    interpreter goes, which no native code survives that must not be unwound. Join such threads."""
    script = """
class Slow(Producer):
    def __dlpack__(self, **kwargs):
        time.sleep(0.01)
        return super().__dlpack__(**kwargs)
stop = False
def work():
    rows = [Slow(paint(10)) for _ in range(5)]
    while not stop:
        wr.stack(rows)
thread = threading.Thread(target=work, daemon=True)
thread.start()
time.sleep(0.2)
stop = True
thread.join()
"""
    isolated.run(script)
