"""The refusals of windrow.torch.ops: one table, of each operator and each bad input, for real tensors, for traced ones and, in
test_torch_ops_compile.py, for graphs."""

import pytest

import windrow as wr
from helpers import refusal

torch = pytest.importorskip("torch")
if not hasattr(torch.library, "custom_op"):
    pytest.skip("SKIP: operators need PyTorch 2.4", allow_module_level=True)
import windrow.torch.ops as ops  # noqa: E402
from windrow.torch import _op_checks as checks  # noqa: E402

LISTED = {
    "stack": lambda *t: ops.stack(list(t)),
    "concat": lambda *t: ops.concat(list(t)),
    "pad": lambda *t: ops.pad(list(t)),
    "ragged": lambda *t: ops.ragged(list(t)),
    "take": lambda *t: ops.take(list(t), t[0].new_zeros(1, dtype=torch.int64)),
}


def ones(*shape, dtype=torch.float32, device="cpu"):
    return torch.ones(shape, dtype=dtype, device=device)


F32, F64, META, INTS, HALF = ones(2), ones(2, dtype=torch.float64), ones(2, device="meta"), torch.tensor([0, 2]), torch.tensor([1, 1])
GRAD = ones(2).requires_grad_()
LISTS = {
    "another device": ((F32, META), wr.DeviceError, "Expected all tensors to be on the same device, but tensor 0 is on cpu and tensor 1 on meta"),
    "another dtype": ((F32, F64), wr.DTypeError, "tensor 1: expected torch.float32, as tensor 0 has, got torch.float64"),
    "integers beside gradients": ((INTS, GRAD), wr.DTypeError, "tensor 1: expected torch.int64, as tensor 0 has, got torch.float32"),
    "another rank": ((F32, F32[None]), wr.ShapeError, r"tensor 1: expected shape \((2|any),\), got \(1, 2\)"),
    "the third": ((F32, F32, F64), wr.DTypeError, "tensor 2: expected torch.float32"),
    "other dims": ((ones(1, 2), ones(1, 3)), wr.ShapeError, r"tensor 1: expected shape \((1|any), 2\), got \(1, 3\)"),
    "a dtype that windrow has not": ((torch.empty(2, dtype=torch.complex32),), wr.DTypeError, "tensor 0: expected a dtype of whole bytes"),
}
VALUE, SIZE, SIDE = "value=.* is not representable in", "size must be at least 0, got -1", 'side must be "right", "left" or "center", got'
ELSEWHERE, WHOLE = "Expected all tensors to be on the same device, but", "expected integers, got torch"
# Operator, case: function, its tensors, error, text.
BAD = {(op, case): (LISTED[op], *found) for op in LISTED for case, found in LISTS.items()}
BAD |= {
    ("stack", "shapes"): (LISTED["stack"], (F32, ones(3)), wr.ShapeError, r"tensor 1: expected shape \(2,\), got \(3,\); windrow.torch.ops.pad"),
    **{(op, "numbers"): (LISTED[op], (torch.tensor(1.0),), wr.ShapeError, "tensor 0: expected at least one dim") for op in ("concat", "pad", "ragged")},
    ("concat", "dim"): (lambda a, b: ops.concat([a, b], 1), (F32, F32), IndexError, "dim 1 is not a dim of tensors of 1 dims"),
    ("concat", "dim below"): (lambda a: ops.concat(a, -3), (ones(2, 2, 2),), IndexError, "dim -3 is not a dim of tensors of 2 dims"),
    ("pad", "longer than size"): (lambda a, b: ops.pad([a, b], size=2), (F32, ones(3)), wr.ShapeError, "tensor 1: expected at most size=2 rows, got 3"),
    ("pad", "rows longer than size"): (lambda a: ops.pad(a, size=2), (ones(2, 3),), wr.ShapeError, "tensor 0: expected at most size=2 rows, got 3"),
    ("pad", "size"): (lambda a: ops.pad([a], size=-1), (F32,), ValueError, SIZE),
    ("pad", "side"): (lambda a: ops.pad([a], side="top"), (F32,), ValueError, SIDE),
    ("pad", "value"): (lambda a: ops.pad([a], 0.5), (INTS,), ValueError, VALUE + " int64"),
    ("pad", "complex value"): (lambda a: ops.pad([a], 0j), (F32,), ValueError, VALUE + " float32"),
    ("pad", "complex value of rows"): (lambda a: ops.pad(a, 0j), (F32[None],), ValueError, VALUE + " float32"),
    ("pad", "value beyond"): (lambda a: ops.pad([a], 300), (INTS.byte(),), ValueError, VALUE + " uint8"),
    ("pad", "value that is none"): (lambda a: ops.pad([a], float("nan")), (INTS,), ValueError, VALUE + " int64"),
    ("pad", "value of rows"): (lambda a: ops.pad(a, 0.5, size=3), (INTS[None],), ValueError, VALUE + " int64"),
    ("take", "ids of floats"): (ops.take, (ones(2, 2), F32), wr.DTypeError, "ids: " + WHOLE),
    ("take", "ids that require grad"): (ops.take, (ones(2, 2), GRAD), wr.DTypeError, "ids: " + WHOLE),
    ("take", "ids of bools"): (ops.take, (ones(2, 2), F32 > 0), wr.DTypeError, "ids: " + WHOLE),
    ("take", "ids elsewhere"): (ops.take, (ones(2, 2), INTS.to("meta")), wr.DeviceError, ELSEWHERE + " ids is on meta"),
    ("take", "a number"): (ops.take, (torch.tensor(1.0), INTS), wr.ShapeError, "table: expected at least one dim"),
    ("take", "a dtype that windrow has not"): (ops.take, (torch.empty(2, 2, dtype=torch.complex32), INTS), wr.DTypeError, "table: expected a dtype"),
    ("unpad", "one dim"): (ops.unpad, (F32, INTS), wr.ShapeError, "padded: expected at least two dims, got 1"),
    ("unpad", "lengths of floats"): (ops.unpad, (ones(2, 2), F32), wr.DTypeError, "lengths: " + WHOLE),
    ("unpad", "lengths that require grad"): (ops.unpad, (ones(2, 2), GRAD), wr.DTypeError, "lengths: " + WHOLE),
    ("unpad", "lengths elsewhere"): (ops.unpad, (ones(2, 2), INTS.to("meta")), wr.DeviceError, ELSEWHERE + " lengths is on meta"),
    ("unpad", "lengths of two dims"): (ops.unpad, (ones(2, 2), INTS[None]), wr.ShapeError, "lengths: expected 1 dim, got 2"),
    ("unpad", "too few lengths"): (ops.unpad, (ones(3, 2), INTS), wr.ShapeError, "lengths: expected one for each of 3 rows, got 2"),
    ("unpad", "size"): (lambda a, b: ops.unpad(a, b, size=-1), (ones(2, 2), HALF), ValueError, SIZE),
    ("unpad", "side"): (lambda a, b: ops.unpad(a, b, size=2, side="top"), (ones(2, 2), HALF), ValueError, SIDE),
    ("repad", "a number"): (ops.repad, (torch.tensor(1.0), INTS), wr.ShapeError, "values: expected at least one dim"),
    ("repad", "offsets of floats"): (ops.repad, (F32, F32), wr.DTypeError, "offsets: " + WHOLE),
    ("repad", "offsets that require grad"): (ops.repad, (F32, GRAD), wr.DTypeError, "offsets: " + WHOLE),
    ("repad", "offsets elsewhere"): (ops.repad, (F32, INTS.to("meta")), wr.DeviceError, ELSEWHERE + " offsets is on meta"),
    ("repad", "offsets of two dims"): (ops.repad, (F32, INTS[None]), wr.ShapeError, "offsets: expected 1 dim, got 2"),
    ("repad", "no offsets"): (ops.repad, (F32, INTS[:0]), wr.ShapeError, r"offsets: expected N \+ 1 of them for N samples, got none"),
    ("repad", "size"): (lambda a, b: ops.repad(a, b, size=-1), (F32, INTS), ValueError, SIZE),
    ("repad", "side"): (lambda a, b: ops.repad(a, b, size=2, side="top"), (F32, INTS), ValueError, SIDE),
    ("repad", "complex value"): (lambda a, b: ops.repad(a, b, 0j, 2), (F32, INTS), ValueError, VALUE + " float32"),
    ("repad", "value"): (lambda a, b: ops.repad(a, b, 0.5, 2), (INTS, INTS), ValueError, VALUE + " int64"),
}
# Found in the values, which no trace knows.
VALUES = {
    ("take", "ids beyond"): (ops.take, (ones(2, 2), torch.tensor([[0], [2]])), IndexError, r"ids\[1\]: index 2 is out of range for 2 rows"),
    ("take", "ids below"): (lambda a, i: ops.take([a, a], i), (F32, torch.tensor([1, -3])), IndexError, r"ids\[1\]: index -3 is out of range for 2 rows"),
    ("unpad", "lengths beyond"): (lambda a, n: ops.unpad(a, n, size=4), (ones(2, 2), torch.tensor([1, 3])), wr.ShapeError, r"lengths\[1\]: expected 0 to 2, got 3"),
    ("unpad", "lengths beyond int64"): (
        lambda a, n: ops.unpad(a, n, size=4), (ones(2, 2), torch.tensor([2**63, 0], dtype=torch.uint64)), wr.ShapeError, rf"lengths\[0\]: expected 0 to 2, got {2**63}"
    ),
    ("unpad", "negative lengths"): (
        lambda a, n: ops.unpad(a, n, size=1, side="left"), (ones(2, 2), torch.tensor([-1, 2])), wr.ShapeError, r"lengths\[0\]: expected 0 to 2, got -1"
    ),
    ("unpad", "centred lengths beyond"): (
        lambda a, n: ops.unpad(a, n, size=9, side="center"), (ones(3, 5), torch.tensor([1, 7, 1])), wr.ShapeError, r"lengths\[1\]: expected 0 to 5, got 7"
    ),
    ("unpad", "another sum"): (lambda a, n: ops.unpad(a, n, size=2), (ones(2, 2), torch.tensor([1, 2])), wr.ShapeError, "size: expected 3, the sum of lengths, got 2"),
    ("repad", "rows longer than size"): (
        lambda a, o: ops.repad(a, o, size=2), (ones(3), torch.tensor([0, 3])), wr.ShapeError, "sample 0: expected at most size=2 rows, got 3"
    ),
    ("repad", "offsets from 1"): (lambda a, o: ops.repad(a, o, size=3), (ones(3), torch.tensor([1, 3])), wr.ShapeError, r"offsets\[0\]: expected 0, got 1"),
    ("repad", "offsets that end early"): (lambda a, o: ops.repad(a, o, size=3), (ones(3), torch.tensor([0, 2])), wr.ShapeError, r"offsets\[1\]: expected 3, got 2"),
    ("repad", "offsets that decrease"): (
        lambda a, o: ops.repad(a, o, size=3), (ones(3), torch.tensor([0, 2, 1, 3])), wr.ShapeError, r"offsets\[2\]: expected at least 2, as the one before, got 1"
    ),
}  # fmt: skip
ids_of = lambda case: ", ".join(case)  # noqa: E731


@pytest.mark.parametrize(
    "call, name", [(lambda a: ops.take(ones(2, 2), a), "take: ids"), (lambda a: ops.unpad(ones(2, 2), a), "unpad: lengths"), (lambda a: ops.repad(F32, a), "repad: offsets")]
)
def test_windrow_tensors_are_refused_by_their_name(call, name):
    with pytest.raises(TypeError, match=rf"{name}: expected a torch.Tensor, got a windrow.Tensor; \w+\.torch\(\)"):
        call(wr.asarray(INTS))


@pytest.mark.parametrize("case", [*BAD, *VALUES], ids=ids_of)
def test_bad_input(case):
    call, tensors, kind, text = {**BAD, **VALUES}[case]
    error = refusal(lambda: call(*tensors), kind, text)
    assert f"windrow::{case[0]}: " in str(error) and isinstance(error, (RuntimeError, IndexError))
    if case[0] in LISTED and case[1] in LISTS and "table" not in text:
        assert error.index == len(tensors) - 1


@pytest.mark.parametrize("case", BAD, ids=ids_of)
def test_bad_input_while_a_graph_is_traced(case):
    call, tensors, kind, text = BAD[case]
    with torch._subclasses.FakeTensorMode() as mode:
        fake = [mode.from_tensor(tensor) for tensor in tensors]
        error = refusal(lambda: call(*fake), kind, text)
    assert f"windrow::{case[0]}: " in str(error) and isinstance(error, (RuntimeError, IndexError))


def test_what_the_dispatcher_refuses():
    """The words are torch's."""
    for call, text in (
        (lambda: ops.stack([]), "windrow::stack expects a non-empty list"),
        (lambda: ops.pad(torch.zeros(0, 2)), "windrow::pad expects a non-empty list"),
        (lambda: ops.stack([1, 2]), "Expected a value of type 'List.Tensor.'"),
        (lambda: ops.pad([F32], size=2.5), "Expected a value of type 'Optional.int.' for argument 'size'"),
        (lambda: ops.take(F32, [0]), "Expected a value of type 'Tensor' for argument 'ids'"),
        (lambda: ops.stack([INTS.clone().requires_grad_()]), "only Tensors of floating point dtype can require gradients"),
    ):
        refusal(call, RuntimeError, text)


DENSE, LACKED = (wr.LayoutError, "expected a dense tensor, got one of layout "), (wr.DTypeError, "expected ")
UNREADABLE = {
    "sparse": (lambda: ones(2, 3).to_sparse(), *DENSE),
    "sparse, with gradients": (lambda: ones(2, 3).requires_grad_().to_sparse(), *DENSE),
    "compressed": (lambda: ones(2, 3).to_sparse_csr(), *DENSE),
    "quantised": (lambda: torch.quantize_per_tensor(ones(2, 3), 0.1, 0, torch.qint8), *LACKED),
    "complex32": (lambda: torch.empty(2, 3, dtype=torch.complex32), *LACKED),
    "bits": (lambda: torch.empty(2, 3, dtype=torch.bits8), *LACKED),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", UNREADABLE)
def test_a_table_is_refused_as_a_list_is(name):
    make, kind, text = UNREADABLE[name]
    table = make()
    for op in ("stack", "concat", "pad", "ragged"):
        said = [refusal(lambda: getattr(ops, op)(given), kind, f"windrow::{op}: tensor 0: {text}", index=0) for given in (table, [table])]
        assert str(said[0]) == str(said[1])
    refusal(lambda: ops.take(table, INTS), kind, "windrow::take: table: " + text)
    refusal(lambda: ops.take([table], INTS), kind, "windrow::take: tensor 0: " + text)
    refusal(lambda: ops.unpad(table, HALF), kind, "windrow::unpad: padded: " + text)
    refusal(lambda: ops.repad(table, INTS), kind, "windrow::repad: values: " + text)


@pytest.mark.filterwarnings("ignore")
def test_sparse_and_quantised_tensors_beside_dense_ones():
    sparse, quantised = INTS.to_sparse(), torch.quantize_per_tensor(F32, 1.0, 0, torch.qint8)
    for ids, kind, text in ((sparse, wr.LayoutError, "expected a dense tensor"), (quantised, wr.DTypeError, "expected integers, got torch.qint8")):
        refusal(lambda: ops.take(ones(2, 2), ids), kind, "windrow::take: ids: " + text)
        refusal(lambda: ops.unpad(ones(2, 2), ids), kind, "windrow::unpad: lengths: " + text)
        refusal(lambda: ops.repad(F32, ids), kind, "windrow::repad: offsets: " + text)
    refusal(lambda: ops.stack([INTS, sparse]), wr.LayoutError, "windrow::stack: tensor 1: expected a dense tensor", index=1)
    refusal(lambda: ops.pad([GRAD])[0].backward(ones(1, 2).to_sparse()), RuntimeError, "windrow::unpad_list takes dense tensors alone")
    with torch._subclasses.FakeTensorMode() as mode:
        refusal(lambda: ops.ragged([mode.from_tensor(sparse)]), wr.LayoutError, "tensor 0: expected a dense tensor, got one of layout torch.sparse_coo")


@pytest.mark.filterwarnings("ignore")
def test_tables_have_the_dtypes_of_the_engine():
    dtypes = {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
    assert set(checks.READABLE) == {dtype for dtype in dtypes if checks._refusal(dtype) is None}


@pytest.mark.parametrize("of", ["rows", "nested"])
def test_pad_of_one_tensor_is_named_in_its_errors(of):
    rows = [INTS, INTS]
    tensor = torch.stack(rows) if of == "rows" else torch.nested.nested_tensor(rows, layout=torch.jagged)
    for options in ({"value": 1.5}, {"side": "up"}, {"size": -1}, {"size": 1}):
        texts = [str(refusal(lambda: ops.pad(given, **options), ValueError, "windrow::pad: ")) for given in (tensor, rows)]
        assert texts[0] == texts[1]


PADS = {
    "a list": lambda rows, value: ops.pad(rows, value, size=3),
    "a table": lambda rows, value: ops.pad(torch.stack(rows), value, size=3),
    "a nested tensor": lambda rows, value: ops.pad(torch.nested.nested_tensor(rows, layout=torch.jagged), value, size=3),
    "a ragged batch": lambda rows, value: ops.repad(torch.cat(rows), torch.tensor([0, 2, 4]), value, 3),
}


@pytest.mark.parametrize("of", PADS)
def test_values_of_more_bits_than_the_dispatcher_has(of):
    for value in (2**63, 2**64, 2**64 + 1, -(2**63) - 1):
        for dtype in (torch.float32, torch.bfloat16, torch.complex128):
            rows = [ones(2, dtype=dtype), ones(2, dtype=dtype)]
            assert torch.equal(PADS[of](rows, value)[0], wr.pad(rows, value=value, size=3).torch())
        refusal(lambda: PADS[of]([INTS, INTS], value), ValueError, f"windrow::(re)?pad: value={value} is not representable in int64")
    for dtype in (torch.uint64, torch.float64):
        error = refusal(lambda: PADS[of]([INTS.to(dtype)] * 2, 10**400), ValueError, "windrow::(re)?pad: value=1000.* is beyond every dtype")
        assert isinstance(error, RuntimeError)


def test_eager_calls_name_the_op_that_keeps_gradients():
    tensors = [torch.ones(2), torch.ones(3, requires_grad=True)]
    for name in ("pad", "ragged", "concat", "stack"):
        given = [tensor[:2] for tensor in tensors] if name == "stack" else tensors
        refusal(lambda: getattr(wr, name)(given), wr.LayoutError, rf"windrow\.torch\.ops\.{name} keeps gradients", "detach", index=1)
