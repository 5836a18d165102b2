#!/usr/bin/env bash
# Checks the wheel of this machine alone in a fresh environment, and what the source distribution and the crates hold.
#
# usage: scripts/release/package.sh
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
[[ $# == 0 ]] || { echo "$0: unknown argument $1" >&2; exit 2; }
cd "$(dirname "$0")/../.."
make --silent .venv/.package .venv/.windrow
export PYTHON=$PWD/.venv/bin/python PATH=$PWD/.venv/bin:$PATH WINDROW_KERNEL_CACHE=${WINDROW_KERNEL_CACHE-$PWD/target/kernels}
"$PYTHON" scripts/release/wheel_check.py target/wheels/*.whl
# Packed as for crates.io and not uploaded; what the release compiles is not compiled here once more.
if "${CARGO:-cargo}" publish --help | grep -q -- --workspace; then
    "${CARGO:-cargo}" publish --workspace --dry-run --no-verify --locked --allow-dirty --quiet
else
    echo "SKIP the packing for crates.io: cargo 1.90 packs all crates of a workspace"
fi
exec scripts/release/sdist_check.sh
