#!/usr/bin/env bash
# Runs tests of the Python package under Valgrind, where tensors of others come in and ours go out: DLPack capsules, exchange
# tables, buffers, array interfaces. The interpreter allocates by malloc, so that every object is a block of its own.
# Needs the package in the environment of $PYTHON, and valgrind; takes some minutes.
#
# usage: scripts/ci/valgrind.sh [TEST ...]     default: imports and exports
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
cd "$(dirname "$0")/../.."
tests=${*:-python/tests/test_dlpack_producer.py python/tests/test_dlpack_consumer.py python/tests/test_exchange_table.py
    python/tests/test_batch.py}
# Leaks are not looked for: an interpreter leaves much behind, and tests count deleters and references. Nor are values
# that nothing set: Valgrind takes much of CPython 3.11 itself for such. What is left is memory that is not there, but
# for what scripts/ci/valgrind.supp names.
# shellcheck disable=SC2086
PYTHONMALLOC=malloc OPENBLAS_NUM_THREADS=1 exec valgrind --quiet --error-exitcode=9 --leak-check=no \
    --undef-value-errors=no --num-callers=30 --suppressions=scripts/ci/valgrind.supp \
    "${PYTHON:-python3}" -m pytest -p no:cacheprovider -q -k "not torch and not jax and not exit and not gone" $tests
