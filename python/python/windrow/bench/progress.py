"""How far a run is, on a terminal."""

from __future__ import annotations

import sys
from typing import TextIO

WIDTH = 24


class Progress:
    """One line that is written over; nothing where there is no terminal."""

    def __init__(self, total: int, stream: TextIO = sys.stderr) -> None:
        self.total = max(total, 1)
        self.done = 0
        self.what = ""
        self.stream = stream

    def begin(self, what: str) -> None:
        """The next step begins; the line shows `what`."""
        self.what = what
        self.tick(0.0)

    def tick(self, share: float) -> None:
        """`share` of the current step is done."""
        full = int(WIDTH * min((self.done + share) / self.total, 1.0))
        self.write(f"[{'#' * full}{'.' * (WIDTH - full)}] {self.done + 1}/{self.total} {self.what}")

    def end(self) -> None:
        """The current step is done; the line is free for what it found."""
        self.done += 1
        self.write("")

    def write(self, line: str) -> None:
        if self.stream.isatty():
            self.stream.write(f"\r\x1b[K{line}")
            self.stream.flush()
