"""Stages of calls as records of `logging`; called by the compiled part as the last thing a call does."""

from __future__ import annotations

import logging
from typing import Any, Dict, List, Tuple


def emit(records: List[Tuple[str, float, Dict[str, Any]]]) -> None:
    """Hands stages, their seconds and what they did to the loggers of their names."""
    for stage, seconds, fields in records:
        logger = logging.getLogger(f"windrow.{stage}")
        if logger.isEnabledFor(logging.DEBUG):
            facts = "".join(f", {name} {value}" for name, value in fields.items())
            about = {"stage": stage, "seconds": seconds, **fields}
            # The caller of this is compiled and has no frame: the record shows the line of the call.
            logger.debug("%s: %.1f us%s", stage, seconds * 1e6, facts, extra={"windrow": about}, stacklevel=2)


def to_stderr() -> None:
    """Lets all records through, and shows them on stderr unless the program has handlers of its own."""
    logger = logging.getLogger("windrow")
    logger.setLevel(logging.DEBUG)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(threadName)s %(name)s %(message)s"))
        logger.addHandler(handler)
