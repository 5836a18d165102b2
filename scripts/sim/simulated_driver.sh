#!/usr/bin/env bash
# Prints the path of the simulated driver (crates/cudasim), which it builds with the features that tests have: alone it would
# be built with others, and each build would undo the other. Needs nvcc's headers, as `make` sets CUDA_HOME.
set -euo pipefail
cd "$(dirname "$0")/../.."
"${CARGO:-cargo}" build --quiet --locked -p windrow -p cudasim --features windrow/cuda --profile test --example path
exec "${CARGO_TARGET_DIR:-target}/debug/examples/path"
