"""Samples and outputs that are in files: np.memmap and safetensors. Memory-mapped TensorDicts are in test_nodes.py."""

import numpy as np
import pytest

import windrow as wr
from helpers import assert_tensor, paint, refusal


@pytest.mark.parametrize("mode", ["r", "c", "r+"])
def test_memory_mapped_files(tmp_path, mode):
    table = paint((9, 5, 3), "int16")
    table.tofile(tmp_path / "rows")
    mapped = np.memmap(tmp_path / "rows", np.int16, mode, shape=table.shape)
    order = [7, 0, 3, 3]
    samples = wr.SampleList([mapped[i] for i in order])
    view = wr.asarray(mapped)
    del mapped
    assert_tensor(wr.stack(samples), table[order])
    assert_tensor(wr.SampleList(view).stack(order), table[order])
    if mode == "r":
        refusal(lambda: wr.stack(samples, out=np.memmap(tmp_path / "rows", np.int16, "r", shape=(4, 5, 3))), wr.LayoutError, "read-only")
    out = np.memmap(tmp_path / "out", np.int16, "w+", shape=(4, 5, 3))
    wr.stack(samples, out=out)
    out.flush()
    assert (np.fromfile(tmp_path / "out", np.int16).reshape(4, 5, 3) == table[order]).all()


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_views_of_safetensors(tmp_path, framework):
    safetensors = pytest.importorskip("safetensors.numpy", reason="SKIP: safetensors is not installed")
    from safetensors import safe_open

    rows = {f"row{i}": paint((i + 1, 4), "float32", i) for i in range(3)}
    safetensors.save_file(rows, str(tmp_path / "rows"))
    with safe_open(str(tmp_path / "rows"), framework) as file:
        whole = [file.get_tensor(name) for name in rows]
        firsts = [file.get_slice(name)[:1] for name in rows]
    assert_tensor(wr.ragged(whole).data, np.concatenate(list(rows.values())))
    assert_tensor(wr.stack(firsts), np.stack([row[:1] for row in rows.values()]))
