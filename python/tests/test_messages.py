"""Texts of errors: what is wrong, of what, and the cure in the words of the caller."""

import ctypes
import itertools

import numpy as np
import pytest

import windrow as wr
from helpers import paint, poisoned, refusal

CALLS = [wr.stack, wr.concat, wr.pad, wr.ragged, wr.collate]
DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"),
]


def text(call, kind):
    return str(refusal(call, kind))


# cures in the words of the caller


@pytest.mark.parametrize(
    ("samples", "spec", "of_call", "of_tree"),
    [
        ([paint(2), paint(3)], wr.Stack, "wr.pad takes samples of different shapes", "wr.Pad() takes samples of different shapes"),
        ([paint(()), paint(())], wr.Ragged, "wr.stack takes samples without dims", "wr.Stack() takes samples without dims"),
        ([paint(2), paint(2, "int8")], wr.Concat, "dtype= casts on the way", "wr.Concat(dtype=...) casts on the way"),
        ([paint(2), paint(2, "int8")], wr.Stack, "dtype= casts on the way", "wr.Stack(dtype=...) casts on the way"),
    ],
)
def test_cures_name_the_call_or_the_spec(samples, spec, of_call, of_tree):
    call = getattr(wr, spec.form)
    where, cure = of_tree.split("(", 1)
    for run in (lambda: call(samples), lambda: wr.explain(samples, spec.form)):
        assert text(run, (ValueError, TypeError)).endswith("; " + of_call)
    trees = [{"a": {"b": sample}} for sample in samples]
    for run in (lambda: wr.collate(trees, {"a.b": spec()}), lambda: wr.explain(trees, "collate", spec={"*": spec()})):
        assert text(run, (ValueError, TypeError)).endswith('; spec={"a.b": ' + where + "(" + cure.replace(") ", ")} ", 1))
    # The only leaf of a tree that is one.
    root = text(lambda: wr.collate(samples, spec()), (ValueError, TypeError))
    assert root.endswith("; spec=" + of_tree)


def test_cures_of_windrow_torch():
    torch = pytest.importorskip("torch")
    import windrow.torch

    rows = [{"t": torch.zeros(2)}, {"t": torch.zeros(3)}]
    cure = '; spec={"t": wr.Pad()} takes samples of different shapes'
    assert text(lambda: windrow.torch.collate_fn({"t": wr.Stack()})(rows), wr.ShapeError).endswith(cure)
    assert text(lambda: windrow.torch.collate_fn({"t": wr.Stack()}, arena=True)(rows), wr.ShapeError).endswith(cure)
    assert str(refusal(lambda: windrow.torch.collate_fn()(rows), RuntimeError).__cause__).endswith(cure)
    pixels = windrow.torch.collate_fn({"t": wr.Stack(transform=wr.Transform(scale=1 / 255))})
    assert 'dtype="float32"' in text(lambda: pixels([{"t": torch.zeros(2, dtype=torch.uint8)}]), wr.DTypeError)


def test_root_errors_name_no_path():
    for samples in ([(1, 2), (1,)], [{"a": 1}, [1]], [[1], {"a": 1}], [{"a": 1}, {"b": 1}], [object(), object()]):
        error = refusal(lambda: wr.collate(samples), (ValueError, TypeError, KeyError))
        assert 'at ""' not in str(error) and "sample " in str(error)


# out


@pytest.mark.parametrize("out", ["text", object(), [1, 2], np.zeros((2, 3), ">i4"), np.zeros((2, 3), "U1"), np.zeros((2, 3), "M8[s]")])
def test_an_unfit_out_is_called_out(out):
    for call in (
        lambda: wr.stack([paint(3)] * 2, out=out),
        lambda: wr.explain([paint(3)] * 2, out=out),
        lambda: wr.collate([paint(3)] * 2, out=out),
    ):
        assert text(call, (TypeError, BufferError)).startswith("out: expected ")
    error = refusal(lambda: wr.collate([{"a": [paint(3)]}] * 2, out={"a": [out]}), (TypeError, BufferError))
    assert str(error).startswith('out at "a.0": expected ')
    assert getattr(error, "index", None) is None


def test_out_that_is_no_tree_like_the_samples():
    out = poisoned((2, 3))
    trees = [{"a": [paint(3), paint(3)]}] * 2
    for tree, path, kind in (
        ({}, "a", KeyError),
        ({"b": [out, out]}, "a", KeyError),
        ([out], "a", TypeError),
        (out, "a", TypeError),
        ({"a": [out]}, "a.1", TypeError),
        ({"a": 3}, "a.0", TypeError),
    ):
        assert f'out at "{path}": there is no such entry in ' in text(lambda: wr.collate(trees, out=tree), kind)
    for tree, words, kind in (
        ({"a": [out, out.copy()], "b": out}, 'out at "b": the samples have no such key', KeyError),
        ({"a": [out, out.copy(), out]}, 'out at "a": expected 2 entries, got 3', ValueError),
        ({"a": (out, out.copy(), None)}, 'out at "a": expected 2 entries, got 3', ValueError),
    ):
        assert words in text(lambda: wr.collate(trees, out=tree), kind)
    assert (out == 0xA5).all()
    again = {"a": [out, out.copy()], "text": wr.collate([{"text": "t"}] * 2)["text"]}
    wr.collate([{**tree, "text": "t"} for tree in trees], out=again)  # The tree has the text as a result has it.
    assert (out == paint(3)).all()


def test_other_arguments_have_their_names():
    swapped, dates, rows = np.zeros(3, ">i8"), np.zeros(3, "M8[s]"), wr.SampleList([paint(3)] * 3)
    for call, name in (
        (lambda x: wr.asarray(x), "x"),
        (lambda x: rows.take(x), "indices"),
        (lambda x: wr.SampleList.split(x, [0]), "values"),
        (lambda x: wr.SampleList.split(paint(3), x), "offsets"),
        (lambda x: wr.stack(x), "samples"),
    ):
        assert text(lambda: call(dates), BufferError).startswith(f"{name}: expected ")
        if name == "x":
            assert text(lambda: call(swapped), BufferError).startswith(f"{name}: expected native byte order")


def test_arguments_of_another_kind_have_their_names():
    rows = wr.SampleList([paint(3)] * 3)
    for call, kind, words in (
        (lambda: rows.take([0, 1.5]), TypeError, "indices[1]=1.5; indices are ints"),
        (lambda: rows.take([True]), TypeError, "indices[0]=True; indices are ints"),
        (lambda: rows.take([2**63]), IndexError, "indices[0] is beyond 63 bits"),
        (lambda: rows.take(np.ones(2)), TypeError, "indices are integers of one dim, not float64 of shape (2,)"),
        (lambda: rows.take(np.ones(2, bool)), TypeError, "indices are integers of one dim, not bool of shape (2,)"),
        (lambda: wr.SampleList.split(paint(3), [0, "1"]), TypeError, "offsets[1]='1'; offsets are ints"),
        (lambda: wr.explain([{"a": 1}], "collate", sep=3), TypeError, "sep must be a string, got 3"),
        (lambda: wr.explain([{"a": 1}], "collate", arena=3), TypeError, "arena must be a bool, got 3"),
        (lambda: wr.collate([{"a": 1}], sep=3), TypeError, "sep must be a string, got 3"),
        (lambda: wr.collate([{"a": 1}], arena=3), TypeError, "arena must be a bool, got 3"),
        (lambda: wr.explain([paint(3)], stream=5), ValueError, "stream= is for batches on a CUDA device; host memory has no streams"),
        (lambda: wr.pad([paint(3)], value=1e300), ValueError, "value=1e300 is not representable in uint8"),
        (lambda: wr.pad([paint(3)], value=-2e-6), ValueError, "value=-2e-6 is not representable in uint8"),
        (lambda: wr.pad([paint(3)], value=1e15), ValueError, "value=1000000000000000 is not representable in uint8"),
    ):
        assert text(call, kind) == words


def test_what_is_added_to_a_list_has_the_position_that_it_would_have():
    rows = wr.SampleList([paint(3)] * 3)
    for call, kind, index, cause in (
        (lambda: rows.append("x"), TypeError, 3, "expected an array-like, got str"),
        (lambda: rows.append([1, None]), TypeError, 3, "expected a Python number, got NoneType at position 1"),
        (lambda: rows.append(np.zeros(3, "M8[s]")), BufferError, 3, "expected "),
        (lambda: rows.extend([paint(3), None]), TypeError, 4, "expected an array-like, got NoneType"),
        (lambda: rows.extend([[], (), "x"]), TypeError, 5, "expected an array-like, got str"),
        (lambda: rows.extend([[], 1 << 64]), TypeError, 4, "expected int64, got "),
    ):
        error = refusal(call, kind, index=index)
        assert str(error).startswith(f"sample {index}: {cause}")
    assert len(rows) == 3


# names


@pytest.mark.parametrize("device", ["gpu", "mps", "cuda:x", "cuda:+0", "cpu:1", "", 0])
def test_unknown_devices_list_the_choices(device):
    shown = f'device must be "cpu", "pinned", "cuda" or "cuda:N", got "{device}"'
    for call in (lambda: wr.stack([paint(3)], device=device), lambda: wr.Engine(device=device), lambda: wr.Pad(device=device)):
        assert text(call, ValueError) == shown


def test_the_first_cpu_is_the_cpu():
    torch = pytest.importorskip("torch", reason="SKIP: torch is not installed")
    for device in ("cpu:0", torch.device("cpu", 0), torch.device("cpu:0")):
        for batch in (wr.stack([paint(3)], device=device), wr.collate([{"x": paint(3)}], wr.Pad(device=device))["x"], wr.stack([paint(3)], engine=wr.Engine(device=device))):
            assert batch.device == "cpu"


class DataType:
    """A dtype that says what it is by DLPack's code, bits and lanes alone, as those of an array library of any name do."""

    def __init__(self, *words):
        self.words = words

    def __dlpack_data_type__(self):
        return self.words


def test_dtypes_that_say_what_they_are_for_dlpack():
    for name, words in {
        "int8": (0, 8, 1), "uint16": (1, 16, 1), "float16": (2, 16, 1), "float32": (2, 32, 1), "float64": (2, 64, 1), "bfloat16": (4, 16, 1),
        "bool": (6, 8, 1), "float8_e4m3fn": (10, 8, 1), "float8_e5m2": (12, 8, 1),
    }.items():  # fmt: skip
        assert wr.stack([paint(3)], dtype=DataType(*words)).dtype == name
        assert wr.collate([{"x": paint(3)}], {"x": wr.Stack(dtype=DataType(*words))})["x"].dtype == name
        assert wr.pad([paint(3)], mask="real", mask_dtype=DataType(1, 8, 1)).mask.dtype == "uint8"
    for name, words in {"float8_e4m3": (8, 8, 1), "float8_e8m0fnu": (14, 8, 1), "complex64": (5, 64, 1)}.items():
        refusal(lambda: wr.stack([paint(3)], dtype=DataType(*words)), wr.DTypeError, f"a cast to {name}")
    for words in ((0, 4, 1), (2, 32, 2), (9, 9, 1)):
        refusal(lambda: wr.stack([paint(3)], dtype=DataType(*words)), TypeError, "dtype must be one of .*DataType")
    refusal(lambda: wr.stack([paint(3)], dtype=DataType("float32")), (TypeError, ValueError))
    assert wr.stack([paint(3)], dtype=pytest.importorskip("tvm_ffi", reason="SKIP: tvm_ffi is not installed").dtype("float16")).dtype == "float16"


@pytest.mark.parametrize("dtype", ["fp16", "flaot32", "", "<half", "f12", "longdouble", "torch.float", "U3", str, 3, np.dtype("U3")])
def test_unknown_dtypes_list_the_choices(dtype):
    got = text(lambda: wr.stack([paint(3)], dtype=dtype), TypeError)
    assert got.startswith(f"dtype must be one of {', '.join(DTYPES)}, float8_e3m4") and '"<f4", got ' in got


@pytest.mark.parametrize("dtype", [">f4", ">i8", np.dtype(">f4"), np.dtype(">c16")])
def test_big_endian_dtypes_say_why_not(dtype):
    assert "is big-endian" in text(lambda: wr.stack([paint(3)], dtype=dtype), TypeError)


def numpy_names():
    characters = [code for code in np.typecodes["All"] if np.dtype(code).kind in "biufc"] + ["n", "N"]
    sized = [f"{kind}{size}" for kind in "biufc" for size in (1, 2, 3, 4, 8, 16, 32)]
    codes = ["".join(parts) for parts in itertools.product(["", "<", ">", "=", "|"], [*characters, *sized])]
    aliases = "byte short intc int_ long longlong intp ubyte ushort uintc uint ulong ulonglong uintp half single double"
    aliases += " float int bool bool_ complex csingle cdouble longdouble clongdouble str object void float32 int64"
    return [*codes, *aliases.split(), "Float32", "f4 ", " f4", "f4,f4", "2f4", "(2,)f4", "<half", "<float32"]


def test_dtype_strings_mean_what_they_mean_to_numpy():
    taken = 0
    for name in numpy_names():
        try:
            want = np.dtype(name)
        except TypeError:
            want = None
        if want is not None and want.isnative and want.name in DTYPES:
            taken += 1
            assert wr.stack([paint(3, want.name)], dtype=name).dtype == want.name, name
        elif name not in ("n", "N") and name[1:] not in ("n", "N"):  # NumPy 2 alone has n and N.
            refusal(lambda: wr.stack([paint(3)], dtype=name), TypeError)
    assert taken > 100


def test_dtypes_of_others_keep_their_meaning():
    """pyarrow prints the type of four bytes as `float`."""
    arrow = pytest.importorskip("pyarrow")
    assert wr.stack([paint(3)], dtype=arrow.int64()).dtype == "int64"
    for dtype in (arrow.float32(), arrow.float64(), arrow.string()):
        refusal(lambda: wr.stack([paint(3)], dtype=dtype), TypeError)
    for scalar, name in ((np.longlong, "int64"), (np.half, "float16"), (float, "float64"), (complex, "complex128"), (bool, "bool")):
        samples = [paint(3, "complex128")] if name == "complex128" else [paint(3)]
        assert wr.stack(samples, dtype=scalar).dtype == name
    assert wr.stack([paint(3)], dtype=np.dtype(ctypes.c_int16)).dtype == "int16"


PEERS = [
    (wr.concat, "axis", "use dim="),
    (wr.pad, "axis", "use dims="),
    (wr.stack, "axis", "dim 0 is always that of the samples"),
    (wr.ragged, "axis", "samples are joined along dim 0"),
    (wr.pad, "pad_value", "use value="),
    (wr.pad, "padding_value", "use value="),
    (wr.pad, "padding_side", "use side="),
    (wr.pad, "pad_to_multiple_of", "use multiple_of="),
    (wr.pad, "max_length", "use size="),
    (wr.stack, "pad_value", "wr.pad takes value="),
    (wr.collate, "pad_value", "use spec= with wr.Pad(value=...)"),
    (wr.collate, "offsets_dtype", "use spec= with wr.Ragged(offsets_dtype=...)"),
    (wr.pad, "batch_first", "dim 0 is always that of the samples"),
    (wr.stack, "mean", "use transform=wr.Transform(mean=...)"),
    (wr.stack, "num_threads", "use engine=wr.Engine(threads=...)"),
    (wr.stack, "pin_memory", 'use device="pinned"'),
    (wr.Transform, "axis", "use channel_dim="),
    (wr.Transform, "order", "use permute="),
    (wr.Engine, "num_threads", "use threads="),
    (wr.Pad, "pad_value", "use value="),
]


@pytest.mark.parametrize(("call", "key", "cure"), PEERS)
def test_words_of_peers_name_ours(call, key, cure):
    samples = () if isinstance(call, type) else ([paint(3)],)
    got = text(lambda: call(*samples, **{key: 1}), TypeError)
    assert f"got an unexpected keyword argument '{key}'; " in got and got.endswith(cure)


def test_unknown_keywords_list_the_choices():
    common = "dtype, device, out, stream, transform, saturate, copy, engine"
    for call, own in zip(CALLS, ["", "dim, ", "value, side, dims, size, multiple_of, truncate, mask, mask_dtype, ", "offsets_dtype, batch_index, ", "spec, sep, arena, "]):
        want = f"{call.__name__}() got an unexpected keyword argument 'colour'; it takes {own}{common}"
        assert text(lambda: call([paint(3)], colour=1), TypeError) == want
    assert text(lambda: wr.explain([paint(3)], "heap"), ValueError) == 'form must be "stack", "concat", "pad", "ragged", "collate" or "copy_many", got "heap"'
    assert text(lambda: wr.ragged([paint(3)], offsets_dtype="int16"), ValueError) == "offsets_dtype must be \"int32\" or \"int64\", got 'int16'"
    assert text(lambda: wr.pad([paint(3)], mask=True), ValueError) == 'mask must be None, "real" or "pad", got True'


def test_specs_that_are_none():
    for spec in (3, wr.Pad, "pad"):
        assert "must be wr.Stack(...), wr.Concat(...), wr.Pad(...), wr.Ragged(...) or wr.List(...), got " in text(lambda: wr.collate([{"a": 1}], {"a": spec}), TypeError)
    assert 'a key of spec must be a path, such as "image" or "tokens.*", got 0' in text(lambda: wr.collate([{"a": 1}], {0: wr.Pad()}), TypeError)


# engines


@pytest.mark.parametrize("threads", [-1, 0, 4097, 2**63, 2**64, -(2**70)])
def test_threads_out_of_range(threads):
    assert text(lambda: wr.Engine(threads=threads), ValueError) == f"threads must be an int from 1 to 4096, got {threads}"
    torch = pytest.importorskip("windrow.torch")
    assert text(lambda: torch.collate_fn(threads=threads), ValueError) == f"threads must be an int from 1 to 4096, got {threads}"


@pytest.mark.parametrize("threads", [True, False, 2.0, "4", [1], object()])
def test_threads_that_are_no_int(threads):
    assert text(lambda: wr.Engine(threads=threads), TypeError) == f"threads must be an int from 1 to 4096, got {threads!r}"


def test_other_arguments_of_engines():
    assert wr.Engine(threads=np.int64(2)).threads == 2 and wr.Engine(threads=4096).threads == 4096
    for pool_bytes, kind in ((-1, ValueError), (2**64, ValueError), (True, TypeError), (1e9, TypeError)):
        want = f"pool_bytes must be an int from 0 to {2**64 - 1}, got {pool_bytes!r}"
        assert text(lambda: wr.Engine(pool_bytes=pool_bytes), kind) == want


def test_ints_beyond_64_bits():
    assert text(lambda: wr.concat([paint(3)], dim=2**70), ValueError) == f"dim={2**70} is beyond 64 bits"
    assert text(lambda: wr.concat([paint(3)], dim="x"), TypeError) == "dim must be an int, got 'x'"


@pytest.mark.parametrize("name, what", [
    ("dims", "an int or ints"), ("size", "an int, or an int or None for each dim"), ("multiple_of", "an int, or one for each dim"),
])  # fmt: skip
def test_a_bool_is_no_int(name, what):
    for value in (True, (True,), [2, False]):
        assert text(lambda value=value: wr.pad([paint(3)], **{name: value}), TypeError) == f"{name} must be {what}, got {value!r}"
    assert text(lambda: wr.concat([paint(3)], dim=False), TypeError) == "dim must be an int, got False"
    for of_transform in ("scale", "mean", "std", "channel_dim", "permute"):
        value = (True, False) if of_transform == "permute" else True
        with pytest.raises(TypeError, match=of_transform):
            wr.Transform(**{of_transform: value})
