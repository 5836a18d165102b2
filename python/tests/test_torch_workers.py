"""windrow.torch.collate_fn in the workers of a DataLoader: processes, with shared memory, and threads."""

import multiprocessing
import pickle
import types

import numpy as np
import pytest

import windrow as wr
from test_torch_collate import f32, rows, same

torch = pytest.importorskip("torch")

import windrow.torch as wt  # noqa: E402
from torch.utils.data import DataLoader, default_collate  # noqa: E402
from windrow import _windrow  # noqa: E402
from windrow.torch import _collate, _shared, _transfer, _workers  # noqa: E402
from windrow.torch._transfer import tensors_of  # noqa: E402

pytestmark = pytest.mark.slow


class Samples(torch.utils.data.Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def is_shared(tensor):
    """Whether another process reads it where it is: in the pool of this worker, which torch knows nothing of, or in torch's own."""
    return tensor.is_shared() or (_workers.is_available() and _windrow._Parcel().add(tensor, False) is not None)


class Shared:
    """Says whether what a collate_fn gave is in shared memory already."""

    def __init__(self, collate):
        self.collate = collate

    def __call__(self, batch):
        tree = self.collate(batch)
        tree["shared"] = torch.tensor([is_shared(tree[name]) for name in ("x", "f", "big")])
        return tree


START = [m for m in ("fork", "spawn", "forkserver") if m in multiprocessing.get_all_start_methods()]


# Start methods other than fork import torch in each worker.
WORKERS = {"fork": 2, "spawn": 1, "forkserver": 1}


@pytest.mark.parametrize("start", START)
@pytest.mark.parametrize("threads", [None, 2])
def test_workers(start, threads):
    samples = [
        {"x": f32(i, 3), "big": torch.full((20, 1000), i), "y": i, "f": i / 2, "a": np.full(4, i), "s": f"s{i}",
         "e": torch.empty(0), "p": (i, np.float32(i))}
        for i in range(8)
    ]  # fmt: skip
    # The function runs once in this process, so that a forked one inherits what was made for it.
    collate = wt.collate_fn(threads=threads)
    collate(samples)
    loader = DataLoader(
        Samples(samples), batch_size=4, num_workers=WORKERS[start], collate_fn=Shared(collate), multiprocessing_context=start
    )
    batches = list(loader)
    assert len(batches) == 2
    for index, batch in enumerate(batches):
        assert batch.pop("shared").tolist() == [True, True, True]
        same(batch, default_collate(samples[4 * index : 4 * index + 4]))


def is_one_piece(tensors):
    """Whether tensors lie one behind the other: in a pool each has a storage of its own."""
    places = [(tensor.data_ptr(), tensor.nbytes) for tensor in tensors if tensor.numel()]
    begin, end = min(place for place, _ in places), max(place + nbytes for place, nbytes in places)
    return end - begin <= sum(nbytes + 63 for _, nbytes in places)


class Told:
    """Says whether the tensors of a batch are one piece of memory, and whether all are shared."""

    def __init__(self, collate):
        self.collate = collate

    def __call__(self, batch):
        tree = self.collate(batch)
        tensors = tensors_of(tree)
        shared = all(is_shared(tensor) for tensor in tensors if tensor.numel())
        return {"told": (is_one_piece(tensors), shared), "tree": tree}


SEVERAL = [
    {"x": f32(i, 3), "big": torch.full((20, 1000), i), "y": i, "f": i / 2, "a": np.full(4, i), "s": f"s{i}",
     "e": torch.empty(0), "p": (i, f32(i, 2).bfloat16()), "none": torch.empty(0, 3)}
    for i in range(8)
]  # fmt: skip


@pytest.mark.parametrize("start", START)
def test_one_segment_for_a_batch(start):
    collate = wt.collate_fn(arena=True)
    same(collate(SEVERAL), default_collate(SEVERAL))
    loader = DataLoader(
        Samples(SEVERAL), batch_size=4, num_workers=WORKERS[start], collate_fn=Told(collate), multiprocessing_context=start
    )
    for index, batch in enumerate(loader):
        assert batch["told"] == (True, True)
        same(batch["tree"], default_collate(SEVERAL[4 * index : 4 * index + 4]))
        assert is_one_piece(tensors_of(batch["tree"]))


def test_one_segment_with_specs():
    samples = [{"ids": rows(i), "v": rows(i).float(), "y": i, "w": rows(0)} for i in range(4)]
    spec = {"ids": wr.Pad(mask="real"), "v": wr.Ragged(batch_index=True), "w": wr.Stack(dtype="int32")}
    loader = DataLoader(
        Samples(samples), batch_size=4, num_workers=1, collate_fn=Told(wt.collate_fn(spec, arena=True))
    )  # fmt: skip
    (batch,) = loader
    assert batch["told"] == (True, True)
    plain = wt.collate_fn(spec)(samples)
    same(batch["tree"], plain)
    here = wt.collate_fn(spec, arena=True)(samples)
    same(here, plain)
    places = sorted(tensor.data_ptr() for tensor in tensors_of(here))
    assert places[-1] - places[0] < 64 * 16 and all(place % 64 == places[0] % 64 for place in places)
    with pytest.raises(wr.ShapeError):
        wt.collate_fn({**spec, "ids": wr.Stack()}, arena=True)(samples)
    assert "arena=True" in repr(pickle.loads(pickle.dumps(wt.collate_fn(arena=True))))


@pytest.mark.parametrize("start", START[:2])
def test_spec_in_workers(start):
    samples = [{"ids": rows(i), "v": rows(i)} for i in range(4)]
    spec = {"ids": wr.Pad(mask="real"), "v": wr.Ragged()}
    loader = DataLoader(
        Samples(samples), batch_size=2, num_workers=1, collate_fn=wt.collate_fn(spec), multiprocessing_context=start
    )
    batch = list(loader)[1]
    assert type(batch["ids"]) is wt.TorchBatch
    assert batch["ids"].data.tolist() == [[0, 1, 2, 0], [0, 1, 2, 3]]
    assert batch["ids"].mask.sum().item() == 7
    assert batch["v"].offsets.tolist() == [0, 3, 7] and batch["v"].max_length == 4


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "pinned"])
def test_a_device_in_a_worker_is_refused(device):
    loader = DataLoader(
        Samples([1.0, 2.0]), batch_size=2, num_workers=1, collate_fn=wt.collate_fn(device=device)
    )  # fmt: skip
    with pytest.raises(wr.CudaUnavailable, match="must not touch CUDA.*Prefetcher"):
        list(loader)


@pytest.fixture
def worker(monkeypatch):
    """`get_worker_info()` in a worker whose method is this, as torch has it; torch that knows no threads has no `worker_method`."""

    def set_worker(method):
        real, fields = torch.utils.data._utils.worker.WorkerInfo, {"id": 0, "num_workers": 2, "seed": 0, "dataset": None}
        if method is not None and "worker_method" in getattr(real, "__dataclass_fields__", ()):
            info = real(**fields, worker_method=method)
        else:
            info = types.SimpleNamespace(**fields, **({} if method is None else {"worker_method": method}))
        monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: info)

    return set_worker


@pytest.mark.parametrize("method, is_thread", [("thread", True), ("multiprocessing", False), (None, False)])
def test_workers_that_are_threads(worker, method, is_thread):
    """They are no processes: nothing is written to shared memory, threads may be several, devices are allowed."""
    worker(method)
    samples = [torch.ones(1 << 18)] * 4
    made = {"collate_fn": wt.collate_fn()(samples), "arena": wt.collate_fn(arena=True)(samples)}
    wt.install()
    try:
        made["default_collate"] = default_collate(samples)
    finally:
        wt.uninstall()
    assert {name: is_shared(batch) for name, batch in made.items()} == dict.fromkeys(made, not is_thread)
    rules = _collate.Rules(wt.collate_fn(), _shared.in_worker_process())
    assert ("engine" in rules.common) is not is_thread  # one of a single thread
    assert _transfer_error("cuda") == (None if is_thread else "in a worker process")
    placed = wt.collate_fn(device="pinned")
    if is_thread:
        assert _collate.Rules(placed, _shared.in_worker_process()).common["device"] == "pinned"
    else:
        with pytest.raises(wr.CudaUnavailable, match="in a worker process"):
            placed(samples)


def _transfer_error(device):
    """Whether moving batches is refused for being in a worker process."""
    try:
        _transfer.transfer_to(device, 1)
    except wr.CudaUnavailable as error:
        return "in a worker process" if "in a worker process" in str(error) else None
    return None


def test_the_host_in_a_worker():
    loader = DataLoader(Samples([1.0, 2.0]), batch_size=2, num_workers=1, collate_fn=wt.collate_fn(device="cpu"))
    assert next(iter(loader)).tolist() == [1.0, 2.0]


def test_errors_of_workers_name_the_leaf():
    samples = [{"x": torch.ones(2)}, {"x": torch.ones(3)}]
    with pytest.raises(RuntimeError, match=r'(?s)sample 1 at "x".*stack expects each tensor'):
        list(DataLoader(Samples(samples), batch_size=2, num_workers=1, collate_fn=wt.collate_fn()))


def test_gradients_in_a_worker_are_refused_as_by_torch():
    samples = [torch.ones(2, requires_grad=True)] * 2
    for collate in (None, wt.collate_fn()):
        with pytest.raises(RuntimeError, match="automatic differentiation"):
            list(DataLoader(Samples(samples), batch_size=2, num_workers=1, collate_fn=collate))
