"""Workloads of what people hold: Arrow columns, rows of datasets, TensorDicts, graphs, a tokenizer's lists, lengths to plan by."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

import windrow as wr
from windrow import plan
from windrow._measure import Array, numpy_padded, torch_padded
from windrow.bench.lengths import all_padded
from windrow.bench.samples import Samples, Setting, sets_of, torch, trees_of, unequal_rows
from windrow.bench.trees import by_numpy, equal_trees, joined, joined_by_numpy, joined_by_pyg, leaves, tensordict_stack, tensordicts
from windrow.bench.workload import Contenders, Target, Workload, in_any_setting, missing, module, require

HOST_ONLY = "host memory only"


def pyarrow_lists(arrays: List[Array]) -> Any:
    pa = module("pyarrow")
    return pa.array(arrays, pa.list_(pa.int32()))


def polars_lists(arrays: List[Array]) -> Any:
    pl = module("polars")
    return pl.Series(arrays, dtype=pl.List(pl.Int32))


RowsOf = Callable[[Any], List[Any]]

COLUMNS: Dict[str, Tuple[Callable[[List[Array]], Any], Dict[str, RowsOf]]] = {
    "pyarrow": (
        pyarrow_lists,
        {
            "to_numpy, pad_sequence, mask": lambda column: [torch.from_numpy(row.copy()) for row in column.to_numpy(zero_copy_only=False)],
            "to_pylist, pad_sequence, mask": lambda column: [torch.tensor(row) for row in column.to_pylist()],
        },
    ),
    "polars": (
        polars_lists,
        {
            "to_torch of each row, pad_sequence, mask": lambda column: [row.to_torch() for row in column],
            "to_list, pad_sequence, mask": lambda column: [torch.tensor(row) for row in column.to_list()],
        },
    ),
}
"""The maker of a library's list column, and the ways of others to its rows as tensors."""


@in_any_setting
def list_column(setting: Setting, library: str, shortest: int, longest: int, num_samples: int, targets: List[Target]) -> Workload:
    """A list column of int32 of a library, padded to int64 with mask and lengths."""
    require(setting, library, "torch", host_only=HOST_ONLY)
    make_column, peers = COLUMNS[library]

    def column(s: Samples) -> Any:
        return s.whole(library, lambda s: make_column(s.arrays))

    def by_windrow(s: Samples) -> Tuple[Any, ...]:
        batch = wr.pad(column(s), dtype="int64", mask="real", engine=setting.engine)
        return batch.data, batch.mask, batch.lengths

    def by_torch(rows_of: RowsOf) -> Callable[[Samples], Tuple[Any, ...]]:
        return lambda s: torch_padded(rows_of(column(s)), "int64")

    found = Contenders(setting)
    found.add("windrow", "windrow", by_windrow)
    for peer, rows_of in peers.items():
        found.add("torch", peer, by_torch(rows_of))
    return Workload(unequal_rows(21, shortest, longest, num_samples, "int32", setting), lambda s: all_padded(s, "int64"), found, targets)


@in_any_setting
def dataset_rows(setting: Setting, shortest: int, longest: int, num_samples: int, targets: List[Target]) -> Workload:
    """A batch of rows of a Hugging Face dataset, padded with mask and lengths."""
    require(setting, "datasets", "torch", host_only=HOST_ONLY)
    from windrow.hf import collate_columns

    spec = {"ids": wr.Pad(dtype="int64", mask="real")}

    def dataset(s: Samples) -> Any:
        return s.whole("datasets", lambda s: module("datasets").Dataset.from_dict({"ids": s.arrays}))

    def with_torch(s: Samples) -> Any:
        return s.whole("datasets torch", lambda s: dataset(s).with_format("torch"))

    def by_windrow(s: Samples) -> Tuple[Any, Any, Any]:
        batch = collate_columns(dataset(s), spec, engine=setting.engine)
        return batch["ids"], batch["ids_mask"], batch["ids_lengths"]

    found = Contenders(setting)
    found.add("windrow", "windrow", by_windrow)
    found.add("torch", 'with_format("torch"), pad_sequence, mask', lambda s: torch_padded(list(with_torch(s)[:]["ids"]), "int64"))
    return Workload(unequal_rows(22, shortest, longest, num_samples, "int32", setting), lambda s: all_padded(s, "int64"), found, targets)


@in_any_setting
def tensordict_batch(setting: Setting, num_leaves: int, num_samples: int, targets: List[Target]) -> Workload:
    """TensorDicts of many small leaves, stacked."""
    require(setting, "TensorDict", host_only=HOST_ONLY)
    engine, kinds = setting.engine, leaves(num_leaves, (8,))
    found = Contenders(setting)
    found.add("windrow", "windrow", lambda s: tuple(wr.collate(tensordicts(s), engine=engine).values()))
    found.add("TensorDict", "torch.stack", tensordict_stack)
    sets = equal_trees(23, kinds, setting.count(num_samples), setting)
    return Workload(sets, lambda s: by_numpy(s, kinds), found, targets)


@in_any_setting
def data_objects(setting: Setting, num_samples: int, targets: List[Target]) -> Workload:
    """Graphs as PyTorch Geometric has them, joined to a Batch."""
    require(setting, "PyG", host_only=HOST_ONLY)
    rng, engine = np.random.default_rng(24), setting.engine
    nodes = rng.integers(10, 31, setting.count(num_samples))
    columns = {"x": ([(int(n), 16) for n in nodes], "float32"), "edge_index": ([(2, 4 * int(n)) for n in nodes], "int64")}
    found = Contenders(setting)
    found.add("windrow", "windrow", lambda s: joined(s, lambda graphs: wr.collate(graphs, engine=engine)))
    found.add("PyG", "Batch.from_data_list", joined_by_pyg)
    return Workload(sets_of(lambda: trees_of(columns, setting, rng), setting), joined_by_numpy, found, targets)


@in_any_setting
def token_lists(setting: Setting, shortest: int, longest: int, num_samples: int, targets: List[Target]) -> Workload:
    """Lists of ints as a tokenizer gives them, padded with an attention mask."""
    require(setting, "transformers", "torch", host_only=HOST_ONLY)
    from windrow import sequence

    tokenizers = module("tokenizers")
    model = tokenizers.models.WordLevel({"[PAD]": 0}, unk_token="[PAD]")
    tokenizer = module("transformers").PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(model), pad_token="[PAD]")

    def by(collate: Any) -> Callable[[Samples], Tuple[Any, ...]]:
        def call(s: Samples) -> Tuple[Any, ...]:
            batch = collate(s.converted("lists", lambda row: {"input_ids": row.tolist()}))
            return batch["input_ids"], batch["attention_mask"]

        return call

    def expected(s: Samples) -> Tuple[Array, ...]:
        data, mask = numpy_padded(s.arrays, "int64")
        return data, mask.astype(np.int64)

    found = Contenders(setting)
    found.add("windrow", "windrow", by(sequence.DataCollatorWithPadding(tokenizer)))
    found.add("transformers", "DataCollatorWithPadding", by(module("transformers").DataCollatorWithPadding(tokenizer)))
    return Workload(unequal_rows(25, shortest, longest, num_samples, "uint8", setting), expected, found, targets)


class Packed:
    """Rows of sample indices, or a table of trl's, which are put in order for the comparison outside of the clock."""

    def __init__(self, made: Any, lengths: Array, max_tokens: int) -> None:
        self.made, self.lengths, self.max_tokens = made, lengths, max_tokens

    @property
    def rows(self) -> Sequence[Sequence[int]]:
        return self.made if isinstance(self.made, list) else rows_of_table(self.made)

    def tokens(self) -> List[int]:
        """The tokens of each row."""
        return [int(self.lengths[list(row)].sum()) for row in self.rows]

    def waste(self) -> float:
        """The share of padding if every row is padded to the limit."""
        return 1 - sum(self.tokens()) / (self.max_tokens * max(len(self.rows), 1))

    def cpu(self) -> Array:
        """Every index once, in order; -1 for those of a row that is too long."""
        marked = [row if tokens <= self.max_tokens else [-1] for row, tokens in zip(self.rows, self.tokens())]
        return np.sort(np.concatenate([np.asarray(row, np.int64) for row in marked]))


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


def by_binpacking(lengths: Array, max_tokens: int) -> List[List[int]]:
    """Rows of the package binpacking, whose bins are dicts."""
    bins = module("binpacking").to_constant_volume(dict(enumerate(lengths.tolist())), max_tokens)
    return [list(row) for row in bins]


def by_trl(s: Samples, max_tokens: int) -> Any:
    """Rows of trl 0.20 and later, which joins the tokens of a table too. Here each token is the index of its sample."""
    pa = module("pyarrow")

    def table(s: Samples) -> Any:
        lengths = s.arrays[0]
        ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
        return pa.table({"ids": pa.ListArray.from_arrays(ends, pa.array(np.repeat(np.arange(len(lengths)), lengths)))})

    return module("trl")._pack_bfd(s.whole("trl", table), max_tokens)


def rows_of_table(table: Any) -> List[Array]:
    """The samples of each row of trl's table: one index for each sequence."""
    columns = (table[name].to_numpy() for name in ("ids", "seq_lengths"))
    return [ids[np.cumsum(lengths) - lengths] for ids, lengths in zip(*columns)]


@in_any_setting
def plans(setting: Setting, num_samples: int, max_tokens: int, targets: List[Target], compared: bool = True) -> Workload:
    """Rows of at most this many tokens, from lengths; the title has the padding of each contender."""
    require(setting, host_only=HOST_ONLY)
    rng, count = np.random.default_rng(26), setting.count(num_samples)
    lengths = rng.lognormal(5.5, 0.9, count).clip(1, max_tokens).astype(np.int64)
    sets = [Samples([lengths], [])]
    ways: Dict[str, Tuple[str, Callable[[Samples, int], Any]]] = {"windrow": ("windrow", lambda s, most: plan.pack(s.arrays[0], most))}
    if compared:
        ways["windrow, best fit"] = ("windrow", lambda s, most: plan.pack(s.arrays[0], most, "best_fit_decreasing"))
        ways["NumPy, first fit decreasing"] = ("NumPy", lambda s, most: first_fit(s.arrays[0], most))
        ways["binpacking"] = ("binpacking", lambda s, most: by_binpacking(s.arrays[0], most))
        ways["trl, best fit, tokens too"] = ("trl", by_trl)
    found = Contenders(setting)
    padding = []
    for contender, (library, way) in ways.items():

        def call(s: Samples, way: Callable[[Samples, int], Any] = way) -> Any:
            return Packed(way(s, max_tokens), s.arrays[0], max_tokens)

        has_way = library != "trl" or bool(missing("trl", setting)) or hasattr(module("trl"), "_pack_bfd")
        found.add(library, contender, call, cannot="" if has_way else "trl before 0.20 does not pack so")
        if contender in found.calls:
            padding.append(f"{contender} {found.calls[contender](sets[0]).waste():.2%}")
    return Workload(sets, lambda s: (np.arange(count),), found, targets, remark=f"; padding: {'; '.join(padding)}")
