"""Small batches beside ten lines of NumPy or torch: requests of a server, token rows, a replay buffer, dicts, what `collate_fn` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np

import windrow as wr
from windrow._measure import Array, normalised, numpy_normalised, numpy_padded, numpy_ragged, to_numpy, transform
from windrow.bench.pixels import TOLERANCE
from windrow.bench.samples import LAYOUTS, Samples, Setting, noise, torch
from windrow.bench.workload import Contenders, Definition, Target, Workload, require
from windrow.sequence import pack_tokens, pad_tokens

Make = Callable[[np.random.Generator, Setting], Any]


@dataclass
class Anything(Samples):
    """Samples of any kind, which the contenders know; with what counts as their bytes."""

    size: int = 0

    @property
    def num_bytes(self) -> int:
        return self.size


def compared(
    title: str, count: int, make: Make, ours: Any, peer: str, theirs: Any, goal: float,
    others: Optional[Dict[str, Any]] = None, oracle: Any = None, tolerance: float = 0.0,
) -> Definition:  # fmt: skip
    """One case: samples, what windrow makes of them and what a user would write instead, whose result is the right one
    unless `oracle` makes it. `others`: further contenders, by name."""

    library = "torch" if peer.startswith("torch") else "NumPy"

    def build(setting: Setting) -> Workload:
        require(setting, library, host_only="small batches are compared on the host")
        rng, engine = np.random.default_rng(20), setting.engine
        given = make(rng, setting)
        samples = Anything([], [], size=64 * count)
        found = Contenders(setting)
        found.add("windrow", "windrow", lambda _: ours(given, engine))

        def on_given(call: Any) -> Callable[[Samples], Any]:
            return lambda _: call(given)

        for contender, call in {peer: theirs, **(others or {})}.items():
            found.add(library, contender, on_given(call))

        def expected(_: Samples) -> Tuple[Array, ...]:
            result = (oracle or theirs)(given)
            return tuple(to_numpy(value) for value in (result if isinstance(result, tuple) else (result,)))

        targets = [Target("windrow", (peer,), goal)]
        return Workload([samples], expected, found, targets, tolerance, max(1, 1024 // count))

    return Definition(title, build, layouts=LAYOUTS[:1])


def rows(rng: np.random.Generator, count: int, shortest: int, longest: int, rest: Tuple[int, ...], dtype: str) -> List[Array]:
    """Rows of random lengths, both ends included; int64 ones are ids of tokens."""
    made = []
    for length in rng.integers(shortest, longest + 1, count):
        size = int(length) * int(np.prod(rest, dtype=np.int64))
        values = rng.integers(0, 50_000, size) if dtype == "int64" else noise(size, dtype, rng)
        made.append(values.reshape(int(length), *rest))
    return made


# Requests of a server: padded, data and mask


def padded_by_windrow(samples: List[Array], engine: Any) -> Tuple[Array, Array]:
    batch: Any = wr.pad(samples, dims=0, mask="real", engine=engine)
    return batch.numpy(), batch.mask.numpy()


# Token rows: ragged, values and offsets; packed, ids, labels, positions and offsets; padded, ids and mask


def ragged_by_windrow(samples: List[Array], engine: Any) -> Tuple[Array, Array]:
    batch: Any = wr.ragged(samples, engine=engine)
    return batch.numpy(), batch.offsets.numpy()


def features(samples: List[Array]) -> List[Dict[str, Any]]:
    """Each as the ``input_ids`` of a dict."""
    return [{"input_ids": row} for row in samples]


def packed_by_numpy(given: List[Dict[str, Any]]) -> Tuple[Array, ...]:
    samples = [feature["input_ids"] for feature in given]
    lengths = [len(row) for row in samples]
    offsets = np.zeros(len(samples) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    ids = np.concatenate(samples)
    labels = ids.copy()
    labels[offsets[:-1]] = -100
    return ids[None], labels[None], (np.arange(len(ids)) - np.repeat(offsets[:-1], lengths))[None], offsets


def packed_by_windrow(given: List[Dict[str, Any]], engine: Any) -> Tuple[Array, ...]:
    batch = pack_tokens(given, return_tensors="np")
    return batch["input_ids"], batch["labels"], batch["position_ids"], batch["cu_seqlens"]


def lists_by_numpy(given: List[Dict[str, Any]]) -> Tuple[Array, Array]:
    samples = [feature["input_ids"] for feature in given]
    data = np.zeros((len(samples), max(map(len, samples))), np.int64)
    mask = np.zeros_like(data)
    for i, row in enumerate(samples):
        data[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return data, mask


def lists_by_windrow(given: List[Dict[str, Any]], engine: Any) -> Tuple[Array, Array]:
    batch = pad_tokens(given, return_tensors="np")
    return batch["input_ids"], batch["attention_mask"]


# A replay buffer: rows of a table by index


def replay(count: int) -> Make:
    """The table, the same as a list of samples, and `count` indices."""
    def make(rng: np.random.Generator, setting: Setting) -> Any:
        table = noise(200_000 * 17, "float32", rng).reshape(-1, 17)
        return table, wr.SampleList(table), rng.integers(0, len(table), count)

    return make


# Dicts of small arrays


def transitions(rng: np.random.Generator, setting: Setting) -> List[Dict[str, Array]]:
    """256 dicts of five arrays."""
    def one() -> Dict[str, Array]:
        first, action, second = rows(rng, 3, 17, 17, (), "float32")
        return {"state": first, "action": action[:6].copy(), "reward": np.array(1.5, "f4"), "next": second, "done": np.array(False)}

    return [one() for _ in range(256)]


def scalars(rng: np.random.Generator, setting: Setting) -> Any:
    """256 dicts of two of NumPy's scalars, and the same of Python's numbers."""
    rewards = rng.random(256, np.float32)
    numpys = [{"reward": reward, "done": np.bool_(reward > 0.5)} for reward in rewards]
    return numpys, [{"reward": float(tree["reward"]), "done": bool(tree["done"])} for tree in numpys]


def wide(rng: np.random.Generator, setting: Setting) -> Any:
    """One dict of 4096 arrays, and an output for each contender."""
    tree = {f"leaf{i}": row for i, row in enumerate(noise(4096 * 16, "float32", rng).reshape(4096, 16))}
    return [tree], *({key: np.empty((1, 16), np.float32) for key in tree} for _ in range(2))


def by_field(trees: List[Dict[str, Any]], make: Callable[[List[Any]], Array] = np.stack) -> Tuple[Array, ...]:
    """An array for each key."""
    return tuple(make([tree[key] for tree in trees]) for key in trees[0])


# Leaves that torch's own functions make a batch of


OWN: Any = type("Own", (torch.Tensor,), {}) if torch else None
LEAVES: Dict[str, Callable[[int], Any]] = {
    "ints": lambda i: i,
    "floats": lambda i: i / 2,
    "bytes": lambda i: b"%d" % i,
    "texts": str,
    "tensors that require grad": lambda i: torch.full((64,), float(i), requires_grad=True),
    "tensors of a subclass": lambda i: torch.full((64,), float(i)).as_subclass(OWN),
}


def leaves(kind: str) -> Make:
    """256 leaves, and `collate_fn`."""
    def make(rng: np.random.Generator, setting: Setting) -> Any:
        from windrow.torch import collate_fn

        return [LEAVES[kind](i) for i in range(256)], collate_fn(threads=setting.threads)

    return make


def without_gradient(batch: Any) -> Any:
    return batch.detach() if isinstance(batch, torch.Tensor) else batch


# Images, normalised


NORMAL = transform()


def normalised_by_windrow(samples: List[Array], engine: Any) -> Array:
    return wr.stack(samples, dtype="float32", transform=NORMAL, engine=engine).numpy()


# Samples of each, by a function of random numbers and setting


def uneven(count: int, shortest: int, longest: int, rest: Tuple[int, ...], dtype: str) -> Make:
    return lambda rng, setting: rows(rng, count, shortest, longest, rest, dtype)


def tensors(count: int, width: int) -> Make:
    return lambda rng, setting: [torch.rand(width) for _ in range(count)]


def images(count: int) -> Make:
    return lambda rng, setting: list(rng.integers(0, 256, (count, 32, 32, 3), np.uint8))


def arrays_of_tokens(count: int) -> Make:
    return lambda rng, setting: features(rows(rng, count, 8, 256, (), "int64"))


def lists_of_tokens(count: int) -> Make:
    return lambda rng, setting: features([row.tolist() for row in rows(rng, count, 8, 256, (), "int64")])


def cases() -> Dict[str, Definition]:
    found: Dict[str, Definition] = {}
    for count, goal in ((1, 0.8), (8, 1.5), (32, 2.5)):
        title = f"pad {count} x (4..64, 16) float32, mask, as NumPy arrays"
        made = uneven(count, 4, 64, (16,), "float32")
        found[f"small-pad{count}"] = compared(title, count, made, padded_by_windrow, "NumPy loop", lambda given: numpy_padded(given, "float32"), goal)
    for count, width, goal in ((8, 64, 1.1), (64, 64, 1.6), (256, 64, 2.2), (1024, 17, 2.5), (4096, 128, 4.0)):
        found[f"small-stack{count}"] = compared(
            f"stack {count} x {width} float32 tensors, as a torch tensor", count, tensors(count, width),
            lambda given, engine: wr.stack(given, engine=engine).torch(), "torch.stack", lambda given: torch.stack(given), goal,
            others={
                "torch.cat, view": lambda given: torch.cat(given).view(len(given), -1),
                "torch default_collate": lambda given: torch.utils.data.default_collate(given),
            },
        )  # fmt: skip
    for count, of_pack, of_lists in ((8, 1.2, 1.5), (32, 2.0, 2.5), (256, 2.0, 3.0)):
        made, peer = uneven(count, 8, 256, (), "int64"), "np.concatenate, offsets"
        title = f"ragged {count} rows of 8..256 int64, as NumPy arrays"
        found[f"small-ragged{count}"] = compared(title, count, made, ragged_by_windrow, peer, numpy_ragged, 1.2)
        title, made, peer = f"pack_tokens of {count} arrays of 8..256", arrays_of_tokens(count), "NumPy, a few lines"
        found[f"small-pack{count}"] = compared(title, count, made, packed_by_windrow, peer, packed_by_numpy, of_pack)
        title, made = f"pad_tokens of {count} lists of 8..256 ints", lists_of_tokens(count)
        found[f"small-lists{count}"] = compared(title, count, made, lists_by_windrow, "NumPy loop", lists_by_numpy, of_lists)
    for count, goal in ((256, 0.9), (1024, 1.2)):
        found[f"small-replay{count}"] = compared(
            f"{count} of 200 000 x 17 float32 by indices", count, replay(count),
            lambda given, engine: given[1].stack(given[2], engine=engine).numpy(), "np.take", lambda given: np.take(given[0], given[2], axis=0), goal,
        )  # fmt: skip
    found["small-dicts"] = compared(
        "collate 256 dicts of 5 small arrays", 256, transitions,
        lambda given, engine: tuple(batch.numpy() for batch in wr.collate(given, engine=engine).values()),
        "np.stack for each field", by_field, 2.5,
    )  # fmt: skip
    found["small-scalars"] = compared(
        "collate 256 dicts of 2 scalars of NumPy's", 256, scalars, lambda given, engine: tuple(wr.collate(given[0], engine=engine).values()),
        "windrow, Python's numbers", lambda given: tuple(wr.collate(given[1], {"reward": wr.Stack(dtype="float32")}).values()), 0.3,
        others={"np.array for each field": lambda given: by_field(given[0], np.array)}, oracle=lambda given: by_field(given[0], np.array),
    )  # fmt: skip
    found["small-wide"] = compared(
        "collate one dict of 4096 arrays", 4096, wide, lambda given, engine: tuple(wr.collate(given[0], engine=engine).values()),
        "np.stack for each field", lambda given: by_field(given[0]), 1.0,
    )  # fmt: skip
    found["small-wide-out"] = compared(
        "collate one dict of 4096 arrays, out=", 4096, wide,
        lambda given, engine: tuple(wr.collate(given[0], out=given[1], engine=engine).values()),
        "np.stack(out=) for each field", lambda given: tuple(np.stack([array], out=given[2][key]) for key, array in given[0][0].items()), 1.0,
    )  # fmt: skip
    for kind in LEAVES:
        found[f"small-{kind.split()[-1]}"] = compared(
            f"collate_fn of 256 {kind}", 256, leaves(kind), lambda given, engine: without_gradient(given[1](given[0])),
            "torch default_collate", lambda given: without_gradient(torch.utils.data.default_collate(given[0])), 1 / 1.2,
        )  # fmt: skip
    for count in (8, 32):
        found[f"small-normalise{count}"] = compared(
            f"normalise {count} x (32, 32, 3) uint8 to float32 planes, as a NumPy array", count, images(count), normalised_by_windrow,
            "NumPy eager", lambda given: numpy_normalised(np.stack(given), "float32"), 10.0,
            oracle=lambda given: np.stack(normalised(given, "float32")), tolerance=TOLERANCE,
        )  # fmt: skip
    return found
