"""Plans which samples go into which batch, from their lengths alone; no sample is read.

Each function returns `Rows`, a list of lists of sample indices. ``DataLoader(..., batch_sampler=rows)`` takes it as it is, and
`windrow.sequence.pack_rows` assembles the rows of `pack`.
"""

from __future__ import annotations

import gc
import operator
from typing import Any, Iterable, List, Literal, Optional

from windrow import _windrow

__all__ = ["Rows", "balance", "buckets", "pack", "token_budget"]


class Rows(List[List[int]]):
    """A list of rows, each a list of sample indices.

    Attributes:
        max_tokens: the limit that the rows were made for, or None.
        num_tokens: the sum of the lengths of all samples in the rows.
        waste: the share of padding if every row is padded to ``max_tokens`` (`pack`), each sample to the longest of its row
            (`token_budget`, `buckets`), or each rank's work to the largest (`balance`): 0 is none.
    """

    max_tokens: Optional[int]
    num_tokens: int
    waste: float

    def __init__(
        self, rows: Iterable[List[int]] = (), num_tokens: int = 0, waste: float = 0.0, max_tokens: Optional[int] = None
    ) -> None:
        super().__init__(rows)
        self.num_tokens, self.waste, self.max_tokens = num_tokens, waste, max_tokens


def int_of(name: str, value: Any, least: int = 1, bits: int = 63) -> int:
    """An argument as an int from `least` on, below 2**bits; TypeError for what is no int, as a bool, ValueError for another one."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except (TypeError, RuntimeError):  # RuntimeError: a tensor without memory.
        number = None
    if number is None:
        raise TypeError(f"{name} must be an int, got {value!r}")
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if number >= 2**bits:
        raise ValueError(f"{name}={number} is beyond {bits} bits")
    return number


def _optional(name: str, value: Any, least: int = 1, bits: int = 63) -> Optional[int]:
    """Converts a number as `int_of` does; None stays None."""
    return None if value is None else int_of(name, value, least, bits)


def by_position(samples: Any) -> Any:
    """A pandas Series of objects as the list of them, since it is indexed by its labels; anything else as it is."""
    return list(samples) if hasattr(samples, "iloc") else samples


def _numbers(numbers: Any) -> Any:
    """Lengths or boundaries as an array-like, those of an Arrow column too; TypeError for a column of lists."""
    if isinstance(numbers, list) or not _windrow._is_arrow(numbers):
        return by_position(numbers)
    column = _windrow.SampleList(numbers)
    try:
        return _windrow.stack(column) if len(column) else []
    except _windrow.ShapeError as error:
        raise TypeError(f"a column of lists in place of integers: {error}") from None


def _rows(indices: Any, ends: List[int], num_tokens: int, waste: float, max_tokens: Optional[int] = None) -> Rows:
    """Rows of all indices, one row behind the other, each up to its end."""
    numbers = memoryview(indices).tolist()
    # The cyclic garbage collector would go through the lists again and again as they become more.
    is_paused = len(ends) > 1024 and gc.isenabled()
    if is_paused:
        gc.disable()
    try:
        rows = [numbers[begin:end] for begin, end in zip([0, *ends], ends)]
    finally:
        if is_paused:
            gc.enable()
    return Rows(rows, num_tokens, waste, max_tokens)


def pack(
    lengths: Any,
    max_tokens: int,
    how: Literal["first_fit_decreasing", "best_fit_decreasing", "in_order"] = "first_fit_decreasing",
    max_sequences: Optional[int] = None,
) -> Rows:
    """Packs samples into rows of at most ``max_tokens`` tokens, in O(n log n).

    Args:
        lengths: an integer array-like of one dim, or an Arrow column of integers.
        max_tokens: the most tokens of a row.
        how: ``"first_fit_decreasing"``: longest first, each into the first row with room, and equal lengths in the order of the
            list; ``"best_fit_decreasing"``: into the row with the least room that is enough; ``"in_order"``: each into the last row or
            a new one.
        max_sequences: the most samples of a row.

    Returns:
        Rows: rows in the order in which they were opened.

    Raises:
        ValueError: a length is negative or above ``max_tokens`` (names the index), or an argument is wrong.
        TypeError: ``lengths`` are not integers.

    Example:
        >>> from windrow import plan
        >>> rows = plan.pack([3, 6, 2, 5], max_tokens=8)
        >>> rows, rows.waste
        ([[1, 2], [3, 0]], 0.0)
    """
    if not isinstance(how, str):
        raise TypeError(f"how must be a string, got {how!r}")
    limit, most = int_of("max_tokens", max_tokens), _optional("max_sequences", max_sequences)
    return _rows(*_windrow._pack(_numbers(lengths), limit, how, most), limit)


def token_budget(lengths: Any, max_tokens: int, pad_to_multiple_of: int = 1, max_sequences: Optional[int] = None) -> Rows:
    """Batches of samples of similar lengths with at most ``max_tokens`` tokens each, padding included.

    Args:
        lengths: an integer array-like of one dim, or an Arrow column of integers.
        max_tokens: the most of (samples) x (longest length, rounded up to ``pad_to_multiple_of``).
        pad_to_multiple_of: what the batch is padded to a multiple of.
        max_sequences: the most samples of a batch; None: no limit.

    Returns:
        Rows: from the shortest samples to the longest.

    Raises:
        ValueError: a length is negative or, rounded up, above ``max_tokens`` (names the index), or an argument is wrong.
        TypeError: ``lengths`` are not integers of one dim.
    """
    limit, most = int_of("max_tokens", max_tokens), _optional("max_sequences", max_sequences)
    return _rows(*_windrow._token_budget(_numbers(lengths), limit, int_of("pad_to_multiple_of", pad_to_multiple_of), most), limit)


def buckets(
    lengths: Any, batch_size: int, *, boundaries: Any = None, drop_last: bool = False, seed: Optional[int] = None
) -> Rows:
    """Batches of ``batch_size`` samples of similar lengths.

    Args:
        lengths: an integer array-like of one dim, or an Arrow column of integers.
        batch_size: samples of a batch.
        boundaries: increasing lengths, given as ``lengths`` are, that separate buckets; a length equal to a boundary belongs to the bucket above it, as in
            ``tf.data.Dataset.bucket_by_sequence_length``. A batch has samples of one bucket. If None, samples are sorted by length and
            neighbours form a batch.
        drop_last: leaves out batches of fewer than ``batch_size`` samples.
        seed: shuffles the samples within each bucket (without ``boundaries``: samples of equal length) and the order of the batches;
            the same seed gives the same batches. None: nothing is shuffled.

    Returns:
        Rows: the batches, without a seed in increasing order of length or bucket.

    Raises:
        ValueError: a length is negative, ``batch_size`` is below 1, or ``boundaries`` do not increase.
        TypeError: ``lengths`` or ``boundaries`` are not integers of one dim.
    """
    size, seed = int_of("batch_size", batch_size), _optional("seed", seed, 0, 64)
    return _rows(*_windrow._buckets(_numbers(lengths), size, _numbers(boundaries), bool(drop_last), seed))


def balance(lengths: Any, num_ranks: int, *, seed: Optional[int] = None) -> Rows:
    """One row of samples for each data-parallel rank, with nearly equal sums of lengths.

    Longest first, each sample goes to the rank with the fewest tokens. Every rank computes the same rows.

    Args:
        lengths: an integer array-like of one dim, or an Arrow column of integers: tokens of a sample, or any whole number that measures its work.
        num_ranks: how many rows.
        seed: shuffles samples of equal length; if None, the order of the list decides.

    Returns:
        Rows: ``num_ranks`` rows, some of them empty if there are fewer samples.

    Raises:
        ValueError: a length is negative, or ``num_ranks`` is below 1.
        TypeError: ``lengths`` are not integers of one dim.
    """
    return _rows(*_windrow._balance(_numbers(lengths), int_of("num_ranks", num_ranks), _optional("seed", seed, 0, 64)))
