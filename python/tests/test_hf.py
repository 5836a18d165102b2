"""`windrow.hf.collate_columns` on tables of Hugging Face datasets, beside what transformers pads from their rows."""

import functools
import pickle

import numpy as np
import pytest

import windrow as wr
from helpers import assert_same, refusal
from windrow.hf import collate_columns

pytest.importorskip("datasets", reason="SKIP: datasets is not installed")
torch = pytest.importorskip("torch")
pa = pytest.importorskip("pyarrow", reason="SKIP: pyarrow is not installed")
import datasets  # noqa: E402

RNG = np.random.default_rng(0)
ROWS = [
    {
        "input_ids": RNG.integers(1, 99, n).tolist(),
        "image": RNG.random((2, 3), np.float32).tolist(),
        "label": int(n % 2),
        "weight": float(n),
        "text": f"row {n}",
        "flag": bool(n % 3),
    }
    for n in RNG.integers(0, 12, 40)
]
FEATURES = datasets.Features(
    {
        "input_ids": datasets.List(datasets.Value("int32")),
        "image": datasets.List(datasets.List(datasets.Value("float32"), length=3), length=2),
        "label": datasets.ClassLabel(names=["no", "yes"]),
        "weight": datasets.Value("float64"),
        "text": datasets.Value("string"),
        "flag": datasets.Value("bool"),
    }
)
SPEC = {"input_ids": wr.Pad(value=-1, mask="real", dtype="int64")}


@pytest.fixture(scope="module")
def dataset():
    return datasets.Dataset.from_list(ROWS, features=FEATURES)


def expected(rows):
    """The batch that torch's own functions make of Python rows."""
    ids = [torch.tensor(row["input_ids"], dtype=torch.int64) for row in rows]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=-1)
    lengths = torch.tensor([len(row) for row in ids])
    return {
        "input_ids": padded,
        "input_ids_lengths": lengths,
        "input_ids_mask": torch.arange(padded.shape[1]) < lengths[:, None],
        "image": torch.tensor([row["image"] for row in rows]),
        "label": torch.tensor([row["label"] for row in rows]),
        "weight": torch.tensor([row["weight"] for row in rows], dtype=torch.float64),
        "text": [row["text"] for row in rows],
        "flag": torch.tensor([row["flag"] for row in rows]),
    }


def assert_batch(got, rows):
    want = expected(rows)
    assert list(got) == list(want)
    for name, value in want.items():
        if isinstance(value, list):
            assert got[name] == value
        else:
            assert_same(np.asarray(got[name]), value.numpy())


def test_tables_of_a_dataset(dataset):
    table = dataset.with_format("arrow")
    assert_batch(collate_columns(table[:], SPEC), ROWS)
    assert_batch(collate_columns(table[3:7], SPEC), ROWS[3:7])
    assert_batch(collate_columns(table[[5, 1, 5]], SPEC), [ROWS[i] for i in (5, 1, 5)])
    for start, part in zip(range(0, 40, 16), table.iter(batch_size=16)):
        assert_batch(collate_columns(part, SPEC, return_tensors="np"), ROWS[start : start + 16])
    shuffled = dataset.shuffle(seed=1)
    assert_batch(collate_columns(shuffled.with_format("arrow")[:9], SPEC), shuffled[:9] and list(shuffled.select(range(9))))
    joined = datasets.concatenate_datasets([dataset, dataset])
    assert_batch(collate_columns(joined.with_format("arrow")[:], SPEC), ROWS + ROWS)


def variants(dataset, folder):
    """Datasets whose rows are elsewhere than their numbers say, by what makes them so."""
    joined = datasets.concatenate_datasets([dataset, dataset.select(range(7, 20))])
    shuffled = joined.shuffle(seed=2)
    joined.save_to_disk(str(folder / "joined"), num_shards=3)
    shuffled.save_to_disk(str(folder / "shuffled"))
    return {
        "in one piece": dataset,
        "joined": joined,
        "a part": joined.select(range(5, 31)),
        "picked": joined.select([50, 3, 3, 41, 0, 12, 39, 8]),
        "shuffled": shuffled,
        "shuffled twice": shuffled.select(range(4, 44)).shuffle(seed=3),
        "joined after": datasets.concatenate_datasets([shuffled, dataset.shuffle(seed=4)]),
        "of files": datasets.load_from_disk(str(folder / "joined")),
        "of files, shuffled": datasets.load_from_disk(str(folder / "shuffled")),
    }


ROWS_OF = [None, slice(2, 7), slice(None, None, 3), slice(6, 1, -2), slice(-3, None), range(1, 6), range(5, 0, -1), [4, 0, 4, -1], np.array([1, -2]), (3,), range(7, 8)]


def test_datasets_as_they_are(dataset, tmp_path):
    """Row by row as the dataset itself has them, whatever its format."""

    def check(whole, rows, numbers):
        got = collate_columns(whole, SPEC, rows=rows)
        # Files have their columns in another order.
        assert_batch({name: got.pop(name) for name in expected(ROWS[:1])}, [plain[i] for i in numbers])
        assert not got

    for name, whole in variants(dataset, tmp_path).items():
        plain = list(whole.with_format(None))
        for form in (None, "arrow", "torch"):
            formed = whole.with_format(form)
            for rows in ROWS_OF:
                numbers = range(len(plain)) if rows is None else np.arange(len(plain))[rows if isinstance(rows, slice) else list(rows)]
                check(formed, rows, numbers)
        rng = np.random.default_rng(len(name))
        for _ in range(5):
            rows = rng.integers(-len(plain), len(plain), 9)
            check(whole, rows, rows)


def test_rows_and_columns_of_a_dataset(dataset):
    formed = dataset.with_format("torch", columns=["label", "weight"])
    assert list(collate_columns(formed, rows=slice(2))) == ["label", "weight"]
    assert list(collate_columns(formed, columns=["flag"], rows=[0])) == ["flag"]
    for rows, text in (([0, 40], r"rows\[1\]: row 40 of a dataset of 40 rows"), ([-41], "row -41"), (range(39, 41), "row 40")):
        refusal(lambda: collate_columns(dataset, SPEC, rows=rows), IndexError, text)
    for rows in ([1.0], "ab", 3, [[0]], [True, False], ["label"]):
        refusal(lambda: collate_columns(dataset, SPEC, rows=rows), TypeError, "rows must be a slice or indices")
    for rows in ([], slice(5, 5), slice(40, None)):
        refusal(lambda: collate_columns(dataset, SPEC, rows=rows), ValueError, "an empty list")
    refusal(lambda: collate_columns(dataset.with_format("arrow")[:], SPEC, rows=[0]), TypeError, "rows= are those of a datasets.Dataset, got Table")
    refusal(lambda: collate_columns(dataset.with_transform(lambda rows: rows), SPEC), TypeError, "the dataset has a transform")
    refusal(lambda: collate_columns(datasets.DatasetDict({"train": dataset}), SPEC), TypeError)
    nulls = datasets.Dataset.from_dict({"a": [1, None, 3, 4]})
    assert collate_columns(nulls, rows=[3, 0])["a"].tolist() == [4, 1]
    refusal(lambda: collate_columns(nulls, rows=[3, 0, 1]), wr.DTypeError, "got null", index=2, path="a")


ARRAYS = {
    "Array2D": datasets.Array2D((2, 3), "int32"),
    "Array3D": datasets.Array3D((2, 1, 3), "float32"),
    "Array4D": datasets.Array4D((1, 2, 1, 2), "uint8"),
    "Array5D": datasets.Array5D((1, 2, 1, 2, 1), "int64"),
    "of several lengths": datasets.Array2D((None, 3), "float64"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_datasets(name):
    feature = ARRAYS[name]
    shapes = [tuple(n if extent is None else extent for extent in feature.shape) for n in RNG.integers(0, 5, 20)]
    arrays = [RNG.integers(0, 99, shape).astype(feature.dtype) for shape in shapes]
    features = datasets.Features({"id": datasets.Value("int64"), "x": feature})
    whole = datasets.Dataset.from_dict({"id": range(20), "x": [array.tolist() for array in arrays]}, features=features)
    joined, spec = datasets.concatenate_datasets([whole, whole.select(range(3, 9))]), {"x": wr.Pad(value=-1)} if None in feature.shape else None
    arrays += arrays[3:9]
    for rows in (None, slice(2, 24), [25, 0, 7, 7], slice(20, 1, -3)):
        numbers = list(range(26))[rows] if isinstance(rows, slice) else rows or range(26)
        wanted = [arrays[i] for i in numbers]
        for got in (collate_columns(joined, spec, rows=rows), collate_columns(joined.with_format("arrow")[list(numbers)], spec)):
            if spec is None:
                assert_same(got["x"].numpy(), np.stack(wanted))
            else:
                assert got["x_lengths"].tolist() == [len(array) for array in wanted]
                for array, padded in zip(wanted, got["x"].numpy()):
                    assert_same(padded[: len(array)], array)
                    assert (padded[len(array) :] == -1).all()
            assert got["id"].tolist() == [joined[int(i)]["id"] for i in numbers]


def test_arrays_of_datasets_that_are_refused():
    feature = datasets.Array2D((2, 2), "int32")

    def table(values):
        storage = pa.array(values, feature().storage_dtype)
        return pa.table({"x": pa.ExtensionArray.from_storage(feature(), storage)})

    good = [[1, 2], [3, 4]]
    assert collate_columns(table([good, good]))["x"].shape == (2, 2, 2)
    for bad, kind, text in (
        (None, wr.DTypeError, 'sample 1 at "x": expected a value, got null'),
        ([[1, 2], None], wr.DTypeError, "sample 1 .*got null"),
        ([[1, 2], [3, None]], wr.DTypeError, "got null"),
        ([[1, 2]], wr.ShapeError, 'sample 1 at "x": expected 2 entries in dim 0, got 1'),
        ([[1, 2, 3], [4]], wr.ShapeError, "sample 1 .*expected 2 entries in dim 1, got 3"),
    ):
        refusal(lambda: collate_columns(table([good, bad, good])), kind, text, index=1, path="x")
    refusal(lambda: collate_columns(pa.table({"x": pa.array([b"0" * 16], pa.uuid())})), wr.DTypeError, "arrow.uuid")


def test_a_loader_over_the_rows_of_a_dataset(dataset):
    from torch.utils.data import DataLoader

    shuffled = dataset.shuffle(seed=1)
    collate = functools.partial(collate_columns, shuffled, SPEC)
    loader = DataLoader(range(len(shuffled)), batch_size=16, collate_fn=lambda rows: collate(rows=rows))
    for start, batch in zip(range(0, 40, 16), loader):
        assert_batch(batch, list(shuffled)[start : start + 16])


def test_a_stream_of_a_dataset(dataset):
    stream = dataset.to_iterable_dataset(num_shards=2).with_format("arrow")
    tables = list(stream.iter(batch_size=20))
    assert_batch(collate_columns(tables[0], SPEC), ROWS[:20])


def test_a_collate_fn_of_a_loader(dataset):
    from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

    collate = pickle.loads(pickle.dumps(functools.partial(collate_columns, spec=SPEC)))
    sampler = BatchSampler(SequentialSampler(dataset), 16, drop_last=False)
    loader = DataLoader(dataset.with_format("arrow"), sampler=sampler, batch_size=None, collate_fn=collate)
    for start, batch in zip(range(0, 40, 16), loader):
        assert_batch(batch, ROWS[start : start + 16])


def test_columns_structs_and_arguments(dataset):
    table = dataset.with_format("arrow")[:4]
    got = collate_columns(table, columns=["label", "weight"], dtype="float32")
    assert list(got) == ["label", "weight"] and got["label"].dtype == torch.float32
    nested = pa.table({"outer": pa.array([{"ids": [1, 2], "n": 1}, {"ids": [3], "n": 2}])})
    got = collate_columns(nested, {"outer.ids": wr.Ragged()})
    assert got["outer"]["ids_offsets"].tolist() == [0, 2, 3] and got["outer"]["n"].tolist() == [1, 2]


def test_what_is_refused(dataset):
    table = dataset.with_format("arrow")[:4]
    refusal(lambda: collate_columns(table), wr.ShapeError, 'at "input_ids"', index=1, path="input_ids")
    refusal(lambda: collate_columns(table, {"ids": wr.Pad()}), ValueError, '"ids" matches no leaf')
    refusal(lambda: collate_columns(table["label"]), TypeError, "a single one")
    refusal(lambda: collate_columns(table, SPEC, return_tensors="tf"), ValueError, "return_tensors must be 'pt' or 'np', got 'tf'")
    clash = pa.table({"a_lengths": [1, 2], "a": [[1], [2]]})
    refusal(lambda: collate_columns(clash, {"a": wr.Pad()}), ValueError, "two results are named 'a_lengths'")
    for given in ([{"a": 1}], [], "a", dataset.to_iterable_dataset(), datasets.DatasetDict({"train": dataset})):
        text = f"expected an Arrow table or a datasets.Dataset, got {type(given).__name__}; wr.collate takes a list of rows"
        refusal(lambda: collate_columns(given), TypeError, text)
    for given in (table, dataset):
        refusal(lambda: collate_columns(given, columns="label"), TypeError, r"columns must be a list of names, got 'label'; give \['label'\]")
    null = pa.table({"a": [1, None]})
    refusal(lambda: collate_columns(null), wr.DTypeError, "got null", index=1, path="a")


def test_a_row_beyond_int64(dataset):
    refusal(lambda: collate_columns(dataset, rows=np.array([2**64 - 1], "u8")), IndexError, "row 18446744073709551615 of a dataset")
