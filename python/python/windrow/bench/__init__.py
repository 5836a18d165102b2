"""`python -m windrow bench`: windrow beside every other library here that makes batches, outputs compared first.

| module | what is in it |
|---|---|
| `command` | the options, and the order of things |
| `samples`, `workload` | random data, scattered or in one piece; the contenders, and why others cannot take part |
| `catalogue` | the workloads by name, from `moves`, `pixels`, `lengths` and `trees` |
| `sweeps` | the same over a range of sizes, numbers, leaves and threads |
| `measure`, `clocks` | outputs verified, calls timed in turn, targets judged; host time apart from device time |
| `results`, `chart`, `plots` | a report as tables and plots; no more than the standard library, for scripts without a build |
| `page` | a report as one HTML page |
"""

from typing import List


def main(argv: List[str]) -> int:
    """The command line, see `windrow.bench.command`."""
    # The import is not above, so that a reader of results needs neither NumPy nor the compiled module.
    from windrow.bench import command

    return command.main(argv)
