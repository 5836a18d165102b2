"""Processor time of a micro-batcher in front of ONNX Runtime, with windrow and with a loop of NumPy's.

    python benches/pipelines/micro_batcher.py [--rate N] [--seconds S]

Requests of unequal lengths come at a fixed rate; every 5 ms those that are there become one padded batch, which a session of one
small node takes. What is printed is processor time of the process for each second of the clock, waiting included: it is the same
on a busy machine but for colder caches. Contenders take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any, Callable, Dict, List

import numpy as np
import onnxruntime as ort
import windrow as wr

TICK = 0.005
CHANNELS = 8


def model() -> bytes:
    """A model of one node, GlobalAveragePool from `x` to `y`, in ONNX's protobuf."""

    def message(number: int, *parts: bytes) -> bytes:
        body = b"".join(parts)
        return bytes([number << 3 | 2, len(body)]) + body

    def floats(field: int, name: bytes) -> bytes:
        return message(field, message(1, name), message(2, message(1, bytes([1 << 3, 1]))))

    node = message(1, message(1, b"x"), message(2, b"y"), message(4, b"GlobalAveragePool"))
    graph = message(7, node, message(2, b"g"), floats(11, b"x"), floats(12, b"y"))
    return bytes([1 << 3, 8]) + graph + message(8, message(1, b""), bytes([2 << 3, 13]))


def by_loop(requests: List[Any]) -> Any:
    """The loop that a user would write by hand."""
    batch = np.zeros((len(requests), CHANNELS, max(request.shape[1] for request in requests)), np.float32)
    for row, request in zip(batch, requests):
        row[:, : request.shape[1]] = request
    return batch


def by_windrow(requests: List[Any]) -> Any:
    return wr.pad(requests, dims=1).numpy()


def served(session: Any, assemble: Callable[[List[Any]], Any], requests: List[Any], rate: int, seconds: float) -> float:
    """Processor time for each second of the clock, in ms."""
    begin, cpu, done = time.perf_counter(), time.process_time(), 0
    while (now := time.perf_counter() - begin) < seconds:
        there = int(now * rate)
        batch = [requests[i % len(requests)] for i in range(done, there)]
        done = there
        if batch:
            session.run(None, {"x": assemble(batch)})
        time.sleep(max(0.0, begin + now + TICK - time.perf_counter()))
    return 1000 * (time.process_time() - cpu) / (time.perf_counter() - begin)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=1000, help="requests a second")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each of nine rounds of a contender")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    requests = [rng.random((CHANNELS, int(n)), np.float32) for n in rng.integers(16, 257, 512)]
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = ort.InferenceSession(model(), settings, providers=["CPUExecutionProvider"])
    contenders: Dict[str, Callable[[List[Any]], Any]] = {"NumPy loop": by_loop, "windrow": by_windrow}
    assert np.array_equal(by_loop(requests[:7]), by_windrow(requests[:7]))
    times: Dict[str, List[float]] = {name: [] for name in contenders}
    for _ in range(9):
        for name, assemble in contenders.items():
            times[name].append(served(session, assemble, requests, options.rate, options.seconds))
    base = statistics.median(times["NumPy loop"])
    for name, found in times.items():
        low, middle, high = statistics.quantiles(found, n=4)
        print(f"{name:<12} {low:7.2f} {middle:7.2f} {high:7.2f} ms of processor time a second {middle / base:5.2f}x")


if __name__ == "__main__":
    main()
