#!/usr/bin/env bash
# Builds and runs the examples for candle, burn and ONNX Runtime, a crate that depends on windrow with feature `cuda`, and one
# that has cudarc beside it.
#
# usage: scripts/ci/examples.sh
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
[[ $# == 0 ]] || { echo "$0: unknown argument $1" >&2; exit 2; }
cd "$(dirname "$0")/../.."
make --silent .venv/.onnx .venv/.cuda
repository=$PWD cargo=${CARGO:-cargo}
export CUDA_HOME=${CUDA_HOME:-$PWD/.venv/nvcc/nvidia/cu13} WINDROW_KERNEL_CACHE=${WINDROW_KERNEL_CACHE-$PWD/target/kernels}
driver=$(CARGO=$cargo scripts/sim/simulated_driver.sh)
# Cargo runs without a lock file, so that examples build with the versions a user gets today.
crate=(--manifest-path "$PWD/examples/frameworks/Cargo.toml" --target-dir "$PWD/target/examples" --features candle,burn,ort)
"$cargo" build "${crate[@]}" --examples
"$cargo" run --quiet "${crate[@]}" --example candle
"$cargo" run --quiet "${crate[@]}" --example burn
set -- .venv/lib/python*/site-packages/onnxruntime/capi/libonnxruntime.so.*
if [[ -f $1 ]]; then
    "$cargo" run --quiet "${crate[@]}" --example ort -- "$1"
else
    echo "SKIP the example ort: no ONNX Runtime"
fi

# The build is that of a user: outside of this repository, where .cargo/config.toml does not apply.
elsewhere=$(mktemp -d)
trap 'rm -rf "$elsewhere"' EXIT
cd "$elsewhere"
unset CUDA_LIBRARY_PATH
crate=(--manifest-path "$repository/examples/dependent/Cargo.toml" --target-dir "$repository/target/examples")
if "$cargo" check --quiet "${crate[@]}" 2>log; then
    echo "SKIP the refusal of cust's build script: it found a toolkit"
elif ! grep -q "Could not find a cuda installation" log; then
    cat log >&2
    echo "docs/compatibility.md quotes another message" >&2
    exit 1
fi
# docs/compatibility.md tells users this line.
mkdir -p target/cuda/lib64 && export CUDA_LIBRARY_PATH=$PWD/target/cuda
"$cargo" run --quiet "${crate[@]}"

# -lcuda finds windrow's symbols whichever of the two crates is linked first, and both reach one driver.
crate=(--manifest-path "$repository/examples/cudarc/Cargo.toml" --target-dir "$repository/target/examples")
for order in windrow_first cudarc_first; do
    WINDROW_CUDA_DRIVER=$driver "$cargo" run --quiet "${crate[@]}" --bin "$order"
done
