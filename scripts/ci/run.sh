#!/usr/bin/env bash
# Runs a command with what make sets up: nvcc, the kernel cache, the environment of the tests and the wheel in it.
#
# usage: scripts/ci/run.sh COMMAND [ARGUMENT ...], such as scripts/ci/run.sh scripts/ci/fuzz.sh 60
set -euo pipefail
cd "$(dirname "$0")/../.."
make --silent .venv/.test .venv/.windrow
export CUDA_HOME=${CUDA_HOME:-$PWD/.venv/nvcc/nvidia/cu13} WINDROW_KERNEL_CACHE=${WINDROW_KERNEL_CACHE-$PWD/target/kernels}
export PYTHON=$PWD/.venv/bin/python PATH=$PWD/.venv/bin:$PATH
exec "$@"
