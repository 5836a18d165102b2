#!/usr/bin/env bash
# Builds the simulated driver (crates/cudasim) and prints its path, for WINDROW_CUDA_DRIVER. Needs nvcc's headers, as
# `make` sets CUDA_HOME.
#
# usage: scripts/sim/simulated_driver.sh
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
[[ $# == 0 ]] || { echo "$0: unknown argument $1" >&2; exit 2; }
cd "$(dirname "$0")/../.."
"${CARGO:-cargo}" build-for-tests --quiet
exec "${CARGO_TARGET_DIR:-target}/debug/examples/path"
