"""Rows of a file that is larger than memory: samples where the file is mapped, read ahead of the batch that needs them."""

import mmap
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt
import windrow as wr

NUM_ROWS, LENGTH = 512, 4096


def map_rows(path: str, dtype: str, shape: tuple[int, int]) -> tuple[mmap.mmap, npt.NDArray[Any]]:
    """The mapping, and the file as an array of rows, of which nothing is read yet."""
    with open(path, "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return memory, np.frombuffer(memory, dtype).reshape(shape)


def read_ahead(memory: mmap.mmap, row_bytes: int, indices: list[int]) -> None:
    """Asks the system for these rows and does not wait. It reads one page after the other else, when each is touched."""
    for index in indices:
        start = index * row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        memory.madvise(mmap.MADV_WILLNEED, start, (index + 1) * row_bytes - start)


with tempfile.NamedTemporaryFile() as file:
    np.repeat(np.arange(NUM_ROWS, dtype="float32"), LENGTH).tofile(file.name)
    memory, rows = map_rows(file.name, "float32", (NUM_ROWS, LENGTH))
    samples = wr.SampleList(rows)  # The list is made once; it keeps the mapping.

    batches = np.random.default_rng(0).permutation(NUM_ROWS).reshape(-1, 64).tolist()
    read_ahead(memory, rows[0].nbytes, batches[0])
    for indices, coming in zip(batches, [*batches[1:], []]):
        read_ahead(memory, rows[0].nbytes, coming)  # The pages are read while this batch is assembled and used.
        batch = samples.stack(indices)
        assert (batch.numpy()[:, 0] == indices).all()
    print(samples)
