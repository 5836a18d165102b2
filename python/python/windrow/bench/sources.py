"""Workloads of what people hold: Arrow columns, rows of datasets, a tokenizer's lists, lengths to plan by."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import numpy as np

import windrow as wr
from windrow import plan, sequence
from windrow._measure import Array, numpy_padded, torch_padded
from windrow.bench.lengths import Padded, all_padded, padded_parts
from windrow.bench.samples import Samples, Setting, torch, unequal_rows
from windrow.bench.workload import HOST_ONLY, Workload, missing, module, require
from windrow.hf import collate_columns

# Columns of lists


class Column(NamedTuple):
    """A library's list column, made of arrays; windrow's way to a padded batch of it, and those of others to its rows as tensors."""

    make: Callable[[List[Array]], Any]
    ours: Callable[[Any, Any], Padded]
    peers: Dict[str, Callable[[Any], List[Any]]]


def padded(column: Any, engine: Any) -> Padded:
    return padded_parts(wr.pad(column, dtype="int64", mask="real", engine=engine))


def pyarrow_lists(arrays: List[Array]) -> Any:
    pa = module("pyarrow")
    return pa.array(arrays, pa.list_(pa.int32()))


def polars_lists(arrays: List[Array]) -> Any:
    pl = module("polars")
    return pl.Series(arrays, dtype=pl.List(pl.Int32))


def datasets(arrays: List[Array]) -> Any:
    """A Hugging Face dataset, and the same that gives tensors."""
    plain = module("datasets").Dataset.from_dict({"ids": arrays})
    return plain, plain.with_format("torch")


SPEC = {"ids": wr.Pad(dtype="int64", mask="real")}


def padded_dataset(column: Any, engine: Any) -> Padded:
    batch = collate_columns(column[0], SPEC, engine=engine)
    return batch["ids"], batch["ids_mask"], batch["ids_lengths"]


COLUMNS = {
    "pyarrow": Column(pyarrow_lists, padded, {
        "to_numpy, pad_sequence, mask": lambda column: [torch.from_numpy(row.copy()) for row in column.to_numpy(zero_copy_only=False)],
        "to_pylist, pad_sequence, mask": lambda column: [torch.tensor(row) for row in column.to_pylist()],
    }),
    "polars": Column(polars_lists, padded, {
        "to_torch of each row, pad_sequence, mask": lambda column: [row.to_torch() for row in column],
        "to_list, pad_sequence, mask": lambda column: [torch.tensor(row) for row in column.to_list()],
    }),
    "datasets": Column(datasets, padded_dataset, {'with_format("torch"), pad_sequence, mask': lambda column: list(column[1][:]["ids"])}),
}  # fmt: skip


def list_column(setting: Setting, library: str, seed: int, shortest: int, longest: int, num_samples: int) -> Workload:
    """A list column of int32 of a library, padded to int64 with mask and lengths."""
    require(setting, library, "torch", host_only=HOST_ONLY)
    make_column, ours, peers = COLUMNS[library]

    def column(s: Samples) -> Any:
        return s.whole(library, lambda s: make_column(s.arrays))

    def by_torch(rows_of: Callable[[Any], List[Any]]) -> Callable[[Samples], Padded]:
        return lambda s: torch_padded(rows_of(column(s)), "int64")

    made = Workload(setting, unequal_rows(seed, shortest, longest, num_samples, "int32", setting), lambda s: all_padded(s, "int64"))
    made.add("windrow", "windrow", lambda s: ours(column(s), setting.engine))
    for peer, rows_of in peers.items():
        made.add("torch", peer, by_torch(rows_of))
    return made


def token_lists(setting: Setting, shortest: int, longest: int, num_samples: int) -> Workload:
    """Lists of ints as a tokenizer gives them, padded with an attention mask."""
    require(setting, "transformers", "torch", host_only=HOST_ONLY)
    tokenizers = module("tokenizers")
    model = tokenizers.models.WordLevel({"[PAD]": 0}, unk_token="[PAD]")
    tokenizer = module("transformers").PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(model), pad_token="[PAD]")

    def by(collate: Any) -> Callable[[Samples], Any]:
        parts = itemgetter("input_ids", "attention_mask")
        return lambda s: parts(collate(s.converted("lists", lambda row: {"input_ids": row.tolist()})))

    def expected(s: Samples) -> Tuple[Array, ...]:
        data, mask = numpy_padded(s.arrays, "int64")
        return data, mask.astype(np.int64)

    made = Workload(setting, unequal_rows(25, shortest, longest, num_samples, "uint8", setting), expected)
    made.add("windrow", "windrow", by(sequence.DataCollatorWithPadding(tokenizer)))
    made.add("transformers", "DataCollatorWithPadding", by(module("transformers").DataCollatorWithPadding(tokenizer)))
    return made


# Lengths to plan by


@dataclass
class Packed:
    """Rows of sample indices, or a table of trl's, which are put in order for the comparison outside of the clock."""

    made: Any
    lengths: Array
    max_tokens: int

    def rows(self) -> List[Array]:
        if isinstance(self.made, list):
            return [np.asarray(row, np.int64) for row in self.made]
        columns = (self.made[name].to_numpy() for name in ("ids", "seq_lengths"))
        return [ids[np.cumsum(lengths) - lengths] for ids, lengths in zip(*columns)]

    def waste(self) -> float:
        """The share of padding if every row is padded to the limit."""
        return 1 - int(self.lengths.sum()) / (self.max_tokens * max(len(self.rows()), 1))

    def cpu(self) -> Array:
        """Every index once, in order; -1 for those of a row that is too long."""
        return np.sort(np.concatenate([row if self.lengths[row].sum() <= self.max_tokens else [-1] for row in self.rows()]))


def first_fit(lengths: Array, max_tokens: int) -> List[List[int]]:
    """First fit decreasing by NumPy: one search through the rows for each sample, none of which is longer than a row."""
    rows: List[List[int]] = []
    room = np.full(len(lengths), max_tokens)
    for index in np.argsort(-lengths, kind="stable").tolist():
        row = int(np.argmax(room >= lengths[index]))
        if row == len(rows):
            rows.append([])
        rows[row].append(index)
        room[row] -= lengths[index]
    return rows


def tokens_table(s: Samples) -> Any:
    """The table that trl packs, whose tokens it joins too. Here each token is the index of its sample."""
    pa, lengths = module("pyarrow"), s.arrays[0]
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.table({"ids": pa.ListArray.from_arrays(ends, pa.array(np.repeat(np.arange(len(lengths)), lengths)))})


def plans(setting: Setting, num_samples: int, most: int, compared: bool = True) -> Workload:
    """Rows of at most this many tokens, from lengths; the title has the padding of each contender."""
    require(setting, host_only=HOST_ONLY)
    rng, count = np.random.default_rng(26), setting.count(num_samples)
    lengths = rng.lognormal(5.5, 0.9, count).clip(1, most).astype(np.int64)
    made = Workload(setting, [Samples([lengths], [])], lambda s: np.arange(count))
    padding = []

    def add(library: str, name: str, way: Callable[[Samples], Any], cannot: str = "") -> None:
        made.add(library, name, lambda s: Packed(way(s), lengths, most), cannot=cannot)
        if name in made.calls:
            padding.append(f"{name} {made.calls[name](made.sets[0]).waste():.2%}")

    def by_binpacking(s: Samples) -> List[List[int]]:
        bins = module("binpacking").to_constant_volume(dict(enumerate(lengths.tolist())), most)
        return [list(row) for row in bins]

    add("windrow", "windrow", lambda s: plan.pack(lengths, most))
    if compared:
        add("windrow", "windrow, best fit", lambda s: plan.pack(lengths, most, "best_fit_decreasing"))
        add("NumPy", "NumPy, first fit decreasing", lambda s: first_fit(lengths, most))
        add("binpacking", "binpacking", by_binpacking)
        cannot = "" if missing("trl", setting) or hasattr(module("trl"), "_pack_bfd") else "trl before 0.20 does not pack so"
        add("trl", "trl, best fit, tokens too", lambda s: module("trl")._pack_bfd(s.whole("trl", tokens_table), most), cannot)
    made.remark = f"; padding: {'; '.join(padding)}"
    return made
