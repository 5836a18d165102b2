"""Batches of worker processes in memory that is used again, by way of other libraries' loaders and collators."""

import functools
import os
import resource
import subprocess
import sys

import numpy as np
import pytest

import windrow as wr
from test_torch_collate import same
from test_torch_pools import SIDE, Painted, counted, first_of, in_pools, loader_of

torch = pytest.importorskip("torch")

import windrow.torch as wt  # noqa: E402
from torch.utils.data import DataLoader, default_collate  # noqa: E402
from windrow import sequence  # noqa: E402
from windrow.hf import collate_columns  # noqa: E402
from windrow.torch import _workers  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _workers.is_available(), reason="SKIP: only Linux has such memory"),
]
TEXTS = [{"input_ids": list(range(1, 2 + i % 5)), "label": i % 2} for i in range(32)]


def are_in_pools(batch):
    return all(in_pools({"x": tensor}) for tensor in batch.values())


class Wrapped:
    """A wrapper like that of transformers for a collator, which removes columns."""

    def __init__(self, collate):
        self.collate = collate

    def __call__(self, features):
        return self.collate(features)


@pytest.mark.parametrize("name", ["DataCollatorWithPadding", "DataCollatorForSeq2Seq", "DataCollatorWithFlattening", "pad_tokens"])
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_collators_of_sequences(name, is_wrapped):
    made = getattr(sequence, name)
    collate = {"DataCollatorWithFlattening": made, "pad_tokens": lambda: made}.get(name, lambda: made(sequence.TokenizerNumbers()))()
    texts = TEXTS if name == "DataCollatorWithPadding" else [{"input_ids": text["input_ids"], "labels": text["input_ids"]} for text in TEXTS]
    loader = DataLoader(texts, 8, num_workers=2, collate_fn=Wrapped(collate) if is_wrapped else collate)
    for index, batch in enumerate(loader):
        want = collate(texts[8 * index : 8 * index + 8])
        assert type(batch) is type(want)
        same(dict(batch), dict(want))
        assert are_in_pools(batch)


def test_arrays_travel_as_before():
    collate = functools.partial(sequence.pad_tokens, return_tensors="np")
    batches = list(DataLoader(TEXTS, 8, num_workers=1, collate_fn=collate))
    assert all(type(value) is np.ndarray for batch in batches for value in batch.values())


def test_tables():
    pa = pytest.importorskip("pyarrow", reason="SKIP: pyarrow is not installed")
    tables = [pa.table({"ids": [[i, i], [i]], "y": [i, i + 1], "text": ["a", "b"]}) for i in range(8)]
    collate = functools.partial(collate_columns, spec={"ids": wr.Pad(mask="real")})
    loader = DataLoader(tables, batch_size=None, num_workers=2, collate_fn=collate)
    for table, batch in zip(tables, loader):
        same(batch, collate(table))
        assert batch.pop("text") == ["a", "b"] and are_in_pools(batch)


def installed(samples):
    wt.install()
    return default_collate(samples)


def test_default_collate_with_windrow_behind_it():
    images = [torch.full((3, 100, 100), float(index)) for index in range(64)]
    for index, batch in enumerate(DataLoader(images, 16, num_workers=2, collate_fn=installed)):
        assert in_pools({"x": batch}) and batch[:, 0, 0, 0].tolist() == list(range(16 * index, 16 * index + 16))


def test_stateful_loaders_of_torchdata():
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="SKIP: torchdata is not installed")
    loader = stateful.StatefulDataLoader(Painted(128), 8, num_workers=2, collate_fn=wt.collate_fn())
    iterator = iter(loader)
    for index in range(5):
        batch = next(iterator)
        assert first_of(batch) == 8 * index and in_pools(batch)
    state = loader.state_dict()
    again = stateful.StatefulDataLoader(Painted(128), 8, num_workers=2, collate_fn=wt.collate_fn())
    again.load_state_dict(state)
    assert [first_of(batch) for batch in again] == list(range(40, 128, 8))


def test_nodes_of_torchdata():
    """Their processes are no workers of a loader: batches go torch's way."""
    nodes = pytest.importorskip("torchdata.nodes", reason="SKIP: torchdata is not installed")
    source = nodes.IterableWrapper([[Painted(64)[i] for i in range(first, first + 8)] for first in range(0, 64, 8)])
    loader = nodes.Loader(nodes.ParallelMapper(source, wt.collate_fn(), num_workers=2, method="process"))
    assert [first_of(batch) for batch in loader] == list(range(0, 64, 8))


def test_loaders_of_accelerate():
    accelerate = pytest.importorskip("accelerate", reason="SKIP: accelerate is not installed")
    loader = accelerate.Accelerator(cpu=True).prepare(loader_of(128))
    for _ in range(2):
        for index, batch in enumerate(loader):
            assert first_of(batch) == 8 * index and in_pools(batch)


class Model(torch.nn.Module):
    """The Trainer takes the names of columns from its arguments."""

    def forward(self, input_ids=None, attention_mask=None, label=None):
        raise NotImplementedError


def test_the_trainer_of_transformers(tmp_path):
    """It wraps the collator."""
    transformers = pytest.importorskip("transformers", reason="SKIP: transformers is not installed")
    pytest.importorskip("accelerate", reason="SKIP: accelerate is not installed")
    arguments = transformers.TrainingArguments(
        str(tmp_path), dataloader_num_workers=2, use_cpu=True, report_to=[], per_device_train_batch_size=8
    )
    collate = sequence.DataCollatorWithPadding(sequence.TokenizerNumbers())
    trainer = transformers.Trainer(Model(), arguments, data_collator=collate, train_dataset=TEXTS, eval_dataset=TEXTS)
    for index, batch in enumerate(trainer.get_eval_dataloader()):
        same(dict(batch), dict(collate(TEXTS[8 * index : 8 * index + 8])))
        assert are_in_pools(batch)
    assert sum(len(batch["labels"]) for batch in trainer.get_train_dataloader()) == 32


def test_the_trainer_of_lightning(tmp_path):
    lightning = pytest.importorskip("lightning", reason="SKIP: lightning is not installed")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight, self.firsts = torch.nn.Parameter(torch.zeros(())), []

        def training_step(self, batch, index):
            self.firsts.append(first_of(batch))
            return self.weight * batch["x"].mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    module = Module()
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, default_root_dir=tmp_path)
    trainer.fit(module, loader_of(64))
    assert module.firsts == 2 * list(range(0, 64, 8))


def test_batches_ahead_of_use():
    for index, batch in enumerate(wt.Prefetcher(loader_of(256), min_bytes=0)):
        assert first_of(batch) == 8 * index and in_pools(batch)


MANY = """
import resource, windrow.torch
from torch.utils.data import DataLoader
from test_torch_pools import Painted, first_of
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
loader = DataLoader(Painted(1024, side=32), 8, num_workers=48, collate_fn=windrow.torch.collate_fn())
assert [first_of(batch) for batch in loader] == list(range(0, 1024, 8))
"""


def test_many_workers_with_few_descriptors_and_little_shared_memory():
    """A container's /dev/shm, and fewer descriptors than torch needs for a batch of each."""
    script = f"mount -t tmpfs -o size=16m tmpfs /dev/shm && exec {sys.executable} -c \"$1\""
    folder = os.path.dirname(__file__)
    paths = os.pathsep.join([folder, os.path.dirname(os.path.dirname(wr.__file__))])
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("SKIP: this needs a mount namespace of its own (unshare --mount, as root)")
    command = ["unshare", "--mount", "sh", "-c", script, "sh", MANY]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def faults():
    """Page faults of this process and of its workers that have ended."""
    return sum(resource.getrusage(who).ru_minflt for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def test_batches_need_no_new_pages():
    """Below 2 % of a batch's pages in the loop; workers are counted by the system when they have ended."""
    image, per_batch = 3 * SIDE * SIDE * 4, 32

    def epochs(count):
        loader = loader_of(1024, per_batch, persistent_workers=True)
        begin = faults()
        for _ in range(count):
            for batch in loader:
                pass
        del batch, loader
        return faults() - begin

    epochs(1)
    few, many, before = epochs(1), epochs(6), counted()
    pages = 5 * 32 * per_batch * image / resource.getpagesize()
    assert many - few < 0.02 * pages, (few, many, pages)
    assert counted(before)["blocks"] == 0
