#!/usr/bin/env bash
# Runs tests of the shared suite with the kernels under AddressSanitizer, on the simulated driver, whose memory is
# poisoned outside of allocations. Needs nvcc, as feature `cuda`.
#
# usage: scripts/ci/asan.sh [MODULE of tests/suite.rs ...]     default: small executors casts channels
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
library=$(WINDROW_SIM_ASAN=1 "$cargo" run --quiet --locked --profile test --target-dir target/asan \
    -p cudasim --example path)
"$cargo" test --locked --features cuda --test suite --no-run
# Only the test itself runs with the checker: compilers leak, and would be slow.
run="env LD_PRELOAD=$(${CXX:-g++} -print-file-name=libasan.so)"
modules=${*:-small executors casts channels}
CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$run CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=$run \
    ASAN_OPTIONS=detect_leaks=0 WINDROW_CUDA_DRIVER=$library CUDASIM_DELAY_US=0 \
    WINDROW_REQUIRE_GPU=1 "$cargo" test --locked --features cuda --test suite -- ${modules// /:: }::
