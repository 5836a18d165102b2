#!/usr/bin/env bash
# Builds the wheel of a release twice, each time from nothing and in another folder, and compares the bytes.
# $PYTHON is the interpreter that has maturin and ziglang; WHEEL_ZIG=0 does without zig, see scripts/release/release_wheel.sh.
#
# usage: scripts/release/reproducible.sh
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
[[ $# == 0 ]] || { echo "$0: unknown argument $1" >&2; exit 2; }
cd "$(dirname "$0")/../.."

export PYTHON=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

for place in one another/place; do
    mkdir -p "$work/$place/tree"
    git ls-files -z | tar --create --null --files-from=- | tar --extract --directory "$work/$place/tree"
    CARGO_TARGET_DIR=$work/$place/target "$work/$place/tree/scripts/release/release_wheel.sh" "$PYTHON" "$work/$place"
    rm -rf "$work/$place/target"
done
cd "$work"
sha256sum one/*.whl another/place/*.whl
if ! cmp one/*.whl another/place/*.whl; then
    for place in one another/place; do
        "$PYTHON" -m zipfile --extract "$place"/*.whl "$place/unpacked"
    done
    diff -rq one/unpacked another/place/unpacked
    exit 1
fi
echo "the same bytes"
