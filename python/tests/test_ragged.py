"""wr.ragged: packed values with offsets, lengths and max_length."""

import numpy as np
import pytest

import oracle
import windrow as wr
from helpers import assert_same, assert_tensor, assert_values, paint, paint_values, poisoned, refusal, release, samples_of
from oracle import T


def check(arrays, name, transform=None, dtype=None, **arguments):
    want = oracle.ragged(arrays, name, dtype, transform)
    if transform is not None:
        arguments["transform"] = wr.Transform(**transform.arguments())
    batch = wr.ragged(samples_of(arrays, name), dtype=dtype, **arguments)
    assert_tensor(batch, want.data, dtype or name)
    assert_values(batch.offsets, want.offsets)
    assert batch.offsets.dtype == arguments.get("offsets_dtype", "int64")
    assert_values(batch.lengths, want.lengths)
    assert type(batch.max_length) is int and batch.max_length == want.max_length
    if arguments.get("batch_index"):
        assert_values(batch.batch_index, want.batch_index)
    else:
        assert batch.batch_index is None
    assert len(batch) == len(arrays)
    return batch


@pytest.mark.parametrize("name", oracle.ALL)
def test_every_dtype(name):
    check([paint((n, 3), name, 7 * n) for n in (2, 0, 5)], name)


@pytest.mark.parametrize("rest", [(), (1,), (4,), (3, 2), (0,), (2, 1, 3)])
@pytest.mark.parametrize("lengths", [[1], [3, 1, 4, 1, 5], [0, 2, 0], [0], [0, 0, 0]])
@pytest.mark.parametrize("batch_index", [False, True])
def test_shapes_and_lengths(rest, lengths, batch_index):
    arrays = [paint((n, *rest), "int32", i) for i, n in enumerate(lengths)]
    check(arrays, "int32", batch_index=batch_index)


@pytest.mark.parametrize("offsets_dtype", ["int32", "int64"])
def test_offsets_dtype(offsets_dtype):
    check([paint(n) for n in (3, 1)], "uint8", offsets_dtype=offsets_dtype, batch_index=True)


def test_offsets_dtype_by_numpy_and_torch(torch):
    for spelled in (np.int32, np.dtype("int32"), torch.int32):
        assert wr.ragged([paint(3)], offsets_dtype=spelled).offsets.dtype == "int32"


def test_offsets_that_do_not_fit_in_int32():
    long = np.empty((2**31, 0), np.uint8)
    assert wr.ragged([long]).offsets.numpy().tolist() == [0, 2**31]
    refusal(lambda: wr.ragged([long], offsets_dtype="int32"), ValueError)
    fits = np.empty((2**31 - 1, 0), np.uint8)
    assert wr.ragged([fits], offsets_dtype="int32").offsets.numpy().tolist() == [0, 2**31 - 1]


def test_token_rows():
    arrays = [paint_values(16 + (i * 37) % 400, "int32", i) for i in range(700)]
    check(arrays, "int32", dtype="int64", batch_index=True)


def test_strided_sources():
    arrays = [paint((9, 8), "float32", i)[::-2, ::3].T[:n] for i, n in enumerate([3, 1, 2])]
    check(arrays, "float32")


@pytest.mark.parametrize("target", oracle.CASTABLE)
def test_cast(target):
    check([paint_values((n, 5), "float32", n) for n in (2, 5)], "float32", dtype=target)


@pytest.mark.parametrize("permute", [None, (0, 2, 1)])
def test_transform(permute):
    t = T(scale=0.5, mean=[1.0, 2.0, 3.0], std=[0.5, 0.3, 0.7], channel_dim=2, permute=permute)
    check([paint((n, 4, 3)) for n in (2, 5, 0)], "uint8", t, "float32")


def test_out():
    arrays = [paint((n, 3), "int16", n) for n in (2, 0, 4)]
    want = oracle.ragged(arrays, "int16")
    base = poisoned((13, 3), "int16")
    expected = base.copy()
    expected[1::2] = want.data
    batch = wr.ragged(arrays, out=base[1::2])
    assert base.tobytes() == expected.tobytes()
    assert_values(batch.offsets, want.offsets)


def test_samples_of_the_batch():
    arrays = [paint((n, 3), "int16", n) for n in (2, 0, 4)]
    batch = wr.ragged(arrays)
    for i, array in enumerate(arrays):
        assert_tensor(batch[i], array)
    assert [tuple(t.shape) for t in batch] == [a.shape for a in arrays]


def test_nested(torch):
    arrays = [paint((n, 3), "float32", n) for n in (2, 1, 4)]
    batch = wr.ragged(arrays)
    nested = batch.nested()
    assert nested.is_nested and nested.layout == torch.jagged
    assert nested.values().data_ptr() == batch.data.data_ptr()
    for part, array in zip(nested.unbind(), arrays):
        assert part.numpy().tobytes() == array.tobytes() and tuple(part.shape) == array.shape


def test_nested_tensors_of_one_batch_have_one_ragged_size(torch):
    arrays = [paint((n, 3), "float32", n) for n in (2, 1, 4)]
    batch = wr.ragged(arrays)
    twice = batch.nested() + batch.nested()
    assert_same(twice.values().numpy(), 2 * np.concatenate(arrays))
    assert batch.nested().shape == batch.nested().shape
    assert batch.nested().shape != wr.ragged(arrays).nested().shape  # as for two of torch's own


def test_nested_needs_a_ragged_batch(torch):
    refusal(lambda: wr.stack([paint(3)]).nested(), (TypeError, ValueError))


@pytest.mark.parametrize("layout", ["jagged", "strided"])
def test_nested_tensors_of_torch_are_lists_of_samples(layout):
    torch = pytest.importorskip("torch", minversion="2.4")
    rows = [torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(4, 3), torch.ones(1, 3)]
    nested = torch.nested.nested_tensor(rows, layout=getattr(torch, layout))
    batch = wr.ragged(nested)
    assert_same(batch.numpy(), torch.cat(rows).numpy())
    assert batch.lengths.numpy().tolist() == [2, 4, 1]
    # torch 2.5 does not pad jagged tensors.
    padded = torch.nested.nested_tensor(rows) if release(torch) < (2, 6) else nested
    padded = torch.nested.to_padded_tensor(padded, -1.0)
    assert_same(wr.pad(nested, value=-1, dims=0).numpy(), padded.numpy())
    assert len(wr.SampleList(nested)) == 3 and wr.SampleList(nested)[1].shape == (4, 3)
    assert_same(wr.ragged(wr.ragged(rows).nested()).numpy(), batch.numpy())
    # A nested tensor in the place of a sample has no shape.
    is_list = r"got a nested tensor; it is a list of samples: give it in place of the list, or unbind\(\) it"
    is_sparse = r"got a tensor of layout torch.sparse_coo; use to_dense\(\)"
    calls = {lambda: wr.stack([nested]): is_list, lambda: wr.collate([{"a": nested}]): is_list, lambda: wr.stack([rows[0].to_sparse()]): is_sparse}
    for call, text in calls.items():
        if release(torch) < (2, 10):
            refusal(call, (RuntimeError, wr.LayoutError))  # The words are those of torch's `__dlpack__`: there is no C exchange API.
        else:
            refusal(call, wr.LayoutError, text, index=0)


def test_parts_of_rows_as_a_nested_tensor():
    torch = pytest.importorskip("torch", minversion="2.4")
    table = torch.arange(20.0).reshape(2, 10)
    narrowed = torch.nested.narrow(table, 1, torch.tensor([1, 2]), torch.tensor([3, 4]), layout=torch.jagged)
    assert wr.ragged(narrowed).numpy().tolist() == [1, 2, 3, 12, 13, 14, 15]


def test_strides_of_a_sample_without_elements_are_no_others():
    torch = pytest.importorskip("torch")
    table = torch.arange(100.0).reshape(10, 10)
    for rows in ([table[:0, :3], table[1:5, :3]], [table.T[:0], table.T[2:5]], [table[0, 1:1:2], table[0, 2:9:2]]):
        assert_same(wr.ragged(rows).numpy(), torch.cat(rows).numpy())


def test_sparse_arrays_of_scipy_are_refused():
    sparse = pytest.importorskip("scipy.sparse")
    for array in (sparse.eye(3), sparse.csr_array(np.eye(3))):
        for call in (lambda: wr.stack([array]), lambda: wr.collate([{"x": array}])):
            refusal(call, TypeError, r"expected an array-like, got scipy.sparse.*; use .toarray\(\)", index=0)
    refusal(lambda: wr.stack(sparse.coo_matrix(np.eye(3))), TypeError, r"expected a list of samples, got scipy.sparse.*; use .toarray\(\)")
