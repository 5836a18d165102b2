#!/usr/bin/env bash
# Runs what handles raw memory, and what computes its bounds, under Miri: the unit tests of those
# modules, then tests/small.rs. Needs the nightly toolchain.
#
# usage: scripts/ci/miri.sh [ARGUMENT of `cargo miri test` ...]
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
cd "$(dirname "$0")/../.."

if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "miri is missing. Install it with: rustup toolchain install nightly --component miri --component rust-src" >&2
    exit 1
fi
# Isolation hides the clock, which the engine's counters read. rayon's threads outlive the tests, and
# its queues break the rules of Stacked Borrows; neither is needed for the library itself.
alone="-Zmiri-disable-isolation"
with_rayon="$alone -Zmiri-permissive-provenance -Zmiri-tree-borrows -Zmiri-ignore-leaks"

if [[ $# -gt 0 ]]; then
    MIRIFLAGS=${MIRIFLAGS:-$with_rayon} exec cargo +nightly miri test --locked "$@"
fi
# Left out: every value of every cast, which takes hours and whose loops the small suite runs too; and
# sizes that the system would refuse, where Miri stops. `host::parallel_for` runs on rayon's threads.
MIRIFLAGS=$alone cargo +nightly miri test --locked --lib -- layout offsets plan sample tensor dlpack arrow host \
    --skip host::rows --skip impossible_sizes --skip host::parallel_for
MIRIFLAGS=$with_rayon cargo +nightly miri test --locked --lib -- host::parallel_for
MIRIFLAGS=$with_rayon cargo +nightly miri test --locked --test suite small::
