"""Small batches beside ten lines of NumPy or torch: requests of a server, token rows, a replay buffer, dicts, what `collate_fn` takes."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

import windrow as wr
from windrow._measure import Array, normalised, numpy_normalised, numpy_padded, numpy_ragged, transform
from windrow.bench.pixels import TOLERANCE
from windrow.bench.samples import LAYOUTS, Setting, noise, opaque, torch
from windrow.bench.workload import Case, Workload, over, require
from windrow.sequence import pack_tokens, pad_tokens


def case(title: str, count: int, peer: str, goal: float, add: Callable[..., None], *args: Any) -> Case:
    """A case that asks `goal` of windrow against a peer. `add` adds the contenders to a workload, the last of which is right
    unless it says what is."""
    library = "torch" if peer.startswith("torch") else "NumPy"

    def make(setting: Setting) -> Workload:
        require(setting, library, host_only="small batches are compared on the host")
        made = Workload(setting, [opaque(64 * count)], lambda s: list(made.calls.values())[-1](s), repeat=max(1, 1024 // count))
        add(made, np.random.default_rng(20), count, *args)
        return made

    return Case(title, make, targets=[over(goal, peer)], layouts=LAYOUTS[:1])


def rows(rng: np.random.Generator, count: int, shortest: int, longest: int, row: Callable[[int], Array]) -> List[Array]:
    """Rows of random lengths, both ends included."""
    return [row(int(length)) for length in rng.integers(shortest, longest + 1, count)]


def tokens(rng: np.random.Generator, count: int) -> List[Array]:
    return rows(rng, count, 8, 256, lambda length: rng.integers(0, 50_000, length))


def features(samples: List[Any]) -> List[Dict[str, Any]]:
    """Each as the ``input_ids`` of a dict."""
    return [{"input_ids": row} for row in samples]


def padded(made: Workload, rng: np.random.Generator, count: int) -> None:
    """Requests of a server: data and mask."""
    samples, engine = rows(rng, count, 4, 64, lambda length: noise(length * 16, "float32", rng).reshape(length, 16)), made.setting.engine

    def by_windrow(_: Any) -> Tuple[Array, Array]:
        batch: Any = wr.pad(samples, dims=0, mask="real", engine=engine)
        return batch.numpy(), batch.mask.numpy()

    made.add("windrow", "windrow", by_windrow)
    made.add("NumPy", "NumPy loop", lambda _: numpy_padded(samples, "float32"))


def stacked(made: Workload, rng: np.random.Generator, count: int, width: int) -> None:
    samples, engine = [torch.rand(width) for _ in range(count)], made.setting.engine
    made.add("windrow", "windrow", lambda _: wr.stack(samples, engine=engine).torch())
    made.add("torch", "torch.stack", lambda _: torch.stack(samples))
    made.add("torch", "torch.cat, view", lambda _: torch.cat(samples).view(len(samples), -1))
    made.add("torch", "torch default_collate", lambda _: torch.utils.data.default_collate(samples))


def ragged(made: Workload, rng: np.random.Generator, count: int) -> None:
    """Token rows: values and offsets."""
    samples, engine = tokens(rng, count), made.setting.engine

    def by_windrow(_: Any) -> Tuple[Array, Array]:
        batch: Any = wr.ragged(samples, engine=engine)
        return batch.numpy(), batch.offsets.numpy()

    made.add("windrow", "windrow", by_windrow)
    made.add("NumPy", "np.concatenate, offsets", lambda _: numpy_ragged(samples))


def packed(made: Workload, rng: np.random.Generator, count: int) -> None:
    """Token rows: ids, labels, positions and offsets."""
    given = features(tokens(rng, count))
    parts = itemgetter("input_ids", "labels", "position_ids", "cu_seqlens")

    def by_numpy(_: Any) -> Tuple[Array, ...]:
        samples = [feature["input_ids"] for feature in given]
        lengths = [len(row) for row in samples]
        offsets = np.zeros(len(samples) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        ids = np.concatenate(samples)
        labels = ids.copy()
        labels[offsets[:-1]] = -100
        return ids[None], labels[None], (np.arange(len(ids)) - np.repeat(offsets[:-1], lengths))[None], offsets

    made.add("windrow", "windrow", lambda _: parts(pack_tokens(given, return_tensors="np")))
    made.add("NumPy", "NumPy, a few lines", by_numpy)


def lists(made: Workload, rng: np.random.Generator, count: int) -> None:
    """Token rows as lists: ids and mask."""
    given = features([row.tolist() for row in tokens(rng, count)])
    parts = itemgetter("input_ids", "attention_mask")

    def by_numpy(_: Any) -> Tuple[Array, Array]:
        samples = [feature["input_ids"] for feature in given]
        data = np.zeros((len(samples), max(map(len, samples))), np.int64)
        mask = np.zeros_like(data)
        for i, row in enumerate(samples):
            data[i, : len(row)] = row
            mask[i, : len(row)] = 1
        return data, mask

    made.add("windrow", "windrow", lambda _: parts(pad_tokens(given, return_tensors="np")))
    made.add("NumPy", "NumPy loop", by_numpy)


def replayed(made: Workload, rng: np.random.Generator, count: int) -> None:
    """A replay buffer: rows of a table by index."""
    table, engine = noise(200_000 * 17, "float32", rng).reshape(-1, 17), made.setting.engine
    listed, indices = wr.SampleList(table), rng.integers(0, len(table), count)
    made.add("windrow", "windrow", lambda _: listed.stack(indices, engine=engine).numpy())
    made.add("NumPy", "np.take", lambda _: np.take(table, indices, axis=0))


def by_field(trees: List[Dict[str, Any]], make: Callable[[List[Any]], Array] = np.stack) -> Tuple[Array, ...]:
    """An array for each key."""
    return tuple(make([tree[key] for tree in trees]) for key in trees[0])


def transitions(made: Workload, rng: np.random.Generator, count: int) -> None:
    """Dicts of five arrays."""

    def one() -> Dict[str, Array]:
        first, action, second = (noise(17, "float32", rng) for _ in range(3))
        return {"state": first, "action": action[:6].copy(), "reward": np.array(1.5, "f4"), "next": second, "done": np.array(False)}

    trees, engine = [one() for _ in range(count)], made.setting.engine
    made.add("windrow", "windrow", lambda _: tuple(batch.numpy() for batch in wr.collate(trees, engine=engine).values()))
    made.add("NumPy", "np.stack for each field", lambda _: by_field(trees))


def scalars(made: Workload, rng: np.random.Generator, count: int) -> None:
    """Dicts of two of NumPy's scalars, and the same of Python's numbers."""
    trees: List[Any] = [{"reward": reward, "done": np.bool_(reward > 0.5)} for reward in rng.random(count, np.float32)]
    numbers = [{"reward": float(tree["reward"]), "done": bool(tree["done"])} for tree in trees]
    engine = made.setting.engine
    made.add("windrow", "windrow", lambda _: tuple(wr.collate(trees, engine=engine).values()))
    made.add("NumPy", "windrow, Python's numbers", lambda _: tuple(wr.collate(numbers, {"reward": wr.Stack(dtype="float32")}).values()))
    made.add("NumPy", "np.array for each field", lambda _: by_field(trees, np.array))


def wide(made: Workload, rng: np.random.Generator, count: int, out: bool) -> None:
    """One dict of many arrays; `out`: to arrays that are there."""
    tree, engine = {f"leaf{i}": row for i, row in enumerate(noise(count * 16, "float32", rng).reshape(count, 16))}, made.setting.engine
    ours, theirs = ({key: np.empty((1, 16), np.float32) for key in tree} for _ in range(2))
    if out:
        made.add("windrow", "windrow", lambda _: tuple(wr.collate([tree], out=ours, engine=engine).values()))
        made.add("NumPy", "np.stack(out=) for each field", lambda _: tuple(np.stack([array], out=theirs[key]) for key, array in tree.items()))
    else:
        made.add("windrow", "windrow", lambda _: tuple(wr.collate([tree], engine=engine).values()))
        made.add("NumPy", "np.stack for each field", lambda _: by_field([tree]))


OWN: Any = type("Own", (torch.Tensor,), {}) if torch else None
LEAVES: Dict[str, Callable[[int], Any]] = {
    "ints": lambda i: i,
    "floats": lambda i: i / 2,
    "bytes": lambda i: b"%d" % i,
    "texts": str,
    "tensors that require grad": lambda i: torch.full((64,), float(i), requires_grad=True),
    "tensors of a subclass": lambda i: torch.full((64,), float(i)).as_subclass(OWN),
}
"""Leaves that torch's own functions make a batch of."""


def leaves(made: Workload, rng: np.random.Generator, count: int, kind: str) -> None:
    from windrow.torch import collate_fn

    samples, collate = [LEAVES[kind](i) for i in range(count)], collate_fn(threads=made.setting.threads)

    def without_gradient(batch: Any) -> Any:
        return batch.detach() if isinstance(batch, torch.Tensor) else batch

    made.add("windrow", "windrow", lambda _: without_gradient(collate(samples)))
    made.add("torch", "torch default_collate", lambda _: without_gradient(torch.utils.data.default_collate(samples)))


def images(made: Workload, rng: np.random.Generator, count: int) -> None:
    samples, normal, engine = list(rng.integers(0, 256, (count, 32, 32, 3), np.uint8)), transform(), made.setting.engine
    made.add("windrow", "windrow", lambda _: wr.stack(samples, dtype="float32", transform=normal, engine=engine).numpy())
    made.add("NumPy", "NumPy eager", lambda _: numpy_normalised(np.stack(samples), "float32"))
    made.expected, made.tolerance = lambda _: np.stack(normalised(samples, "float32")), TOLERANCE


def cases() -> Dict[str, Case]:
    found: Dict[str, Case] = {}
    for count, goal in ((1, 0.8), (8, 1.5), (32, 2.5)):
        found[f"small-pad{count}"] = case(f"pad {count} x (4..64, 16) float32, mask, as NumPy arrays", count, "NumPy loop", goal, padded)
    for count, width, goal in ((8, 64, 1.1), (64, 64, 1.6), (256, 64, 2.2), (1024, 17, 2.5), (4096, 128, 4.0)):
        title = f"stack {count} x {width} float32 tensors, as a torch tensor"
        found[f"small-stack{count}"] = case(title, count, "torch.stack", goal, stacked, width)
    for count, of_pack, of_lists in ((8, 1.2, 1.5), (32, 2.0, 2.5), (256, 2.0, 3.0)):
        title, peer = f"ragged {count} rows of 8..256 int64, as NumPy arrays", "np.concatenate, offsets"
        found[f"small-ragged{count}"] = case(title, count, peer, 1.2, ragged)
        found[f"small-pack{count}"] = case(f"pack_tokens of {count} arrays of 8..256", count, "NumPy, a few lines", of_pack, packed)
        found[f"small-lists{count}"] = case(f"pad_tokens of {count} lists of 8..256 ints", count, "NumPy loop", of_lists, lists)
    for count, goal in ((256, 0.9), (1024, 1.2)):
        found[f"small-replay{count}"] = case(f"{count} of 200 000 x 17 float32 by indices", count, "np.take", goal, replayed)
    found["small-dicts"] = case("collate 256 dicts of 5 small arrays", 256, "np.stack for each field", 2.5, transitions)
    found["small-scalars"] = case("collate 256 dicts of 2 scalars of NumPy's", 256, "windrow, Python's numbers", 0.3, scalars)
    found["small-wide"] = case("collate one dict of 4096 arrays", 4096, "np.stack for each field", 1.0, wide, False)
    found["small-wide-out"] = case("collate one dict of 4096 arrays, out=", 4096, "np.stack(out=) for each field", 1.0, wide, True)
    for kind in LEAVES:
        found[f"small-{kind.split()[-1]}"] = case(f"collate_fn of 256 {kind}", 256, "torch default_collate", 1 / 1.2, leaves, kind)
    for count in (8, 32):
        title = f"normalise {count} x (32, 32, 3) uint8 to float32 planes, as a NumPy array"
        found[f"small-normalise{count}"] = case(title, count, "NumPy eager", 10.0, images)
    return found
