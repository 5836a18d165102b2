#!/usr/bin/env bash
# Runs the host suite under ThreadSanitizer. Any toolchain will do: the runtime comes with it. The standard library in it is
# not instrumented, so locks that lie in there order nothing for the checker, nor do fences, which it does not know:
# scripts/ci/tsan.supp leaves out reports that only those make, and tests run one at a time.
#
# usage: scripts/ci/tsan.sh [ARGUMENT of cargo test ...]
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
cd "$(dirname "$0")/../.."

target=$(rustc -vV | sed -n 's/^host: //p')
export RUSTC_BOOTSTRAP=1 RUST_TEST_THREADS=1
export RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer"
export TSAN_OPTIONS="suppressions=$PWD/scripts/ci/tsan.supp allocator_may_return_null=1"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/tsan
if (($#)); then
    exec "${CARGO:-cargo}" test --locked --target "$target" --lib --test suite "$@"
fi
"${CARGO:-cargo}" test --locked --target "$target" --lib
"${CARGO:-cargo}" test --locked --target "$target" --test suite -- ahead:: small:: sizes:: executors:: casts:: channels::
