#!/usr/bin/env bash
# Builds one wheel as a release has it, from the tree of this script: linked by zig against the C
# library of manylinux2014, and without a word of where and when that was done, so that anyone with the sources
# gets the same bytes.
#
# usage: scripts/release/release_wheel.sh INTERPRETER FOLDER
#
#   WHEEL_ZIG=0          linked against the C library of this machine, by its own linker; always so outside of Linux
#   SOURCE_DATE_EPOCH    the date in the wheel's list of crates; without it that of the last commit
#
# $PYTHON is the interpreter that has maturin, and for zig ziglang, both from PyPI.
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
[[ $# == 2 && ${1:-} != -* ]] || { echo "$0: see --help" >&2; exit 2; }
cd "$(dirname "$0")/../.."

interpreter=$1
out=$2
PYTHON=${PYTHON:-python3}
unset WINDROW_CUDA_LINES # they name files of this machine
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}
crates=${CARGO_HOME:-$HOME/.cargo}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The last of these that fits counts.
export RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$PWD=/windrow \
--remap-path-prefix=$CARGO_TARGET_DIR=/target --remap-path-prefix=$crates=/cargo"
flags=()
if [[ ${WHEEL_ZIG:-1} == 1 && $(uname -s) == Linux ]]; then
    flags=(--zig --compatibility manylinux2014)
    # The linker needs only the names of both. zig looks for a shared library where other linkers take the empty archive
    # of crates/windrow-driver; nothing is taken from it. And it would link an unwinder of its own, which cannot read
    # the frames of the one that everybody in a process has to share, libgcc_s: CPython before 3.14 ends daemon threads
    # by it, and crashed in ours.
    stub=$CARGO_TARGET_DIR/zig-stub
    mkdir -p "$stub"
    : >"$work/empty.c"
    for name in Backtrace DeleteException GetCFA GetDataRelBase GetIP GetIPInfo GetLanguageSpecificData \
        GetRegionStart GetTextRelBase RaiseException Resume SetGR SetIP; do
        echo "void _Unwind_$name(void) {}"
    done >"$work/unwind.c"
    "$PYTHON" -m ziglang cc -shared -o "$stub/libcuda.so" "$work/empty.c"
    "$PYTHON" -m ziglang cc -shared -Wl,-soname,libgcc_s.so.1 -o "$stub/libgcc_s.so.1" "$work/unwind.c"
    RUSTFLAGS+=" -L native=$stub -C link-arg=$stub/libgcc_s.so.1"
fi
"$PYTHON" -m maturin build --release --locked ${flags[@]+"${flags[@]}"} --manifest-path python/Cargo.toml \
    --interpreter "$interpreter" --out "$work/wheel"
"$PYTHON" scripts/release/third_party.py >"$work/THIRD-PARTY.txt"
notices=$("${RUSTC:-rustc}" --print sysroot)/share/doc/rust/COPYRIGHT-library.html
"$PYTHON" scripts/release/wheel_origin.py --license "$work/THIRD-PARTY.txt" --license "$notices" \
    "$work"/wheel/*.whl "$PWD" "$CARGO_TARGET_DIR" "$crates"
mkdir -p "$out"
mv "$work"/wheel/*.whl "$out/"
