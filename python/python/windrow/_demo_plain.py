"""`python -m windrow demo` where windrow is the only package: text to batches, checked element by element.

The text is the source of Python itself; the same batches are made by Python's own lists.
"""

from __future__ import annotations

import platform
import sysconfig
import time
from pathlib import Path
from typing import Any, Callable, List, Sequence, Tuple

import windrow as wr

COUNT, WINDOW, ROUNDS = 1500, 256, 3

# A name, samples, the call, the fields to check, and how Python makes them.
Form = Tuple[str, Sequence[bytes], Callable[[], wr.Batch], Tuple[str, ...], Callable[[Sequence[bytes]], Tuple[Any, ...]]]


def paragraphs() -> List[bytes]:
    """At most `COUNT` pieces of Python's standard library between empty lines, 16 to 2048 bytes each; none without its source."""
    rows: List[bytes] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        rows += [piece for piece in path.read_bytes().split(b"\n\n") if 16 <= len(piece) <= 2048]
        if len(rows) >= COUNT:
            break
    return rows[:COUNT]


def values(tensor: Any) -> Any:
    return memoryview(tensor).tolist()


def fastest(call: Callable[[], object]) -> float:
    """Seconds of the fastest of some calls."""
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def padded(rows: Sequence[bytes]) -> Tuple[Any, ...]:
    longest = max(map(len, rows))
    data = [[*row, *[-1] * (longest - len(row))] for row in rows]
    return data, [[True] * len(row) + [False] * (longest - len(row)) for row in rows], [len(row) for row in rows]


def joined(rows: Sequence[bytes]) -> Tuple[Any, ...]:
    offsets = [0]
    for row in rows:
        offsets.append(offsets[-1] + len(row))
    return list(b"".join(rows)), offsets


def scaled(rows: Sequence[bytes]) -> Tuple[Any, ...]:
    return ([[value * (1 / 255) for value in row] for row in rows],)


def main(missing: str) -> int:
    """The demo without what is missing: 0, or 1 without any text. Ends the program at a batch that is wrong."""
    rows = paragraphs()
    if not rows:
        print("The source of Python's standard library is not installed: there is no text to make batches of.")
        return 1
    text = b"".join(rows)
    windows = [text[start : start + WINDOW] for start in range(0, len(text) - WINDOW, WINDOW)]
    to_unit = wr.Transform(scale=1 / 255)
    forms: List[Form] = [
        ("pad to int32, mask", rows, lambda: wr.pad(rows, value=-1, dtype="int32", mask="real"), ("data", "mask", "lengths"), padded),
        ("ragged", rows, lambda: wr.ragged(rows), ("data", "offsets"), joined),
        ("stack to 0..1 float64", windows, lambda: wr.stack(windows, dtype="float64", transform=to_unit), ("data",), scaled),
    ]
    print(f"windrow {wr.__version__}, python {platform.python_version()}, {platform.machine()}")
    print(f"{'form':24}{'samples':>8}{'MB':>8}{'windrow':>12}{'Python':>12}")
    elements = 0
    for name, samples, assemble, fields, reference in forms:
        batch = assemble()
        for field, want in zip(fields, reference(samples)):
            if values(getattr(batch, field)) != want:
                raise SystemExit(f"{name}: {field} is wrong")
            elements += len(want) * (len(want[0]) if isinstance(want[0], list) else 1)
        times = fastest(assemble), fastest(lambda: reference(samples))
        cells = "".join(f"{seconds * 1e3:9.2f} ms" for seconds in times)
        print(f"{name:24}{len(samples):8}{batch.nbytes / 1e6:8.1f}{cells}")
    print(f"All {elements:,} elements checked. Shortest of {ROUNDS} times; Python makes lists of objects.")
    print(
        f"Left out, as {missing} is not installed: photographs, sound, the picture, and NumPy and torch to compare with. "
        "For these: pip install numpy pillow scikit-learn torch"
    )
    return 0
