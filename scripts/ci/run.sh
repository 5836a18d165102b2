#!/usr/bin/env bash
# Runs a command with what make sets up: nvcc, the kernel cache, the environment of the tests and the wheel in it.
#
# usage: scripts/ci/run.sh COMMAND [ARGUMENT ...], such as scripts/ci/run.sh scripts/ci/fuzz.sh 60
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
[[ $# -gt 0 && ${1:-} != -* ]] || { echo "$0: see --help" >&2; exit 2; }
cd "$(dirname "$0")/../.."
make --silent .venv/.test .venv/.windrow
export CUDA_HOME=${CUDA_HOME:-$PWD/.venv/nvcc/nvidia/cu13} WINDROW_KERNEL_CACHE=${WINDROW_KERNEL_CACHE-$PWD/target/kernels}
export PYTHON=$PWD/.venv/bin/python PATH=$PWD/.venv/bin:$PATH
exec "$@"
