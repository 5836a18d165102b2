#!/usr/bin/env bash
# Copies the tree, locked to the oldest PyO3 of python/Cargo.toml's range, which the wheel for the free-threaded 3.13 is
# made of: later ones have dropped that interpreter. All else is locked as in Cargo.lock.
#
# usage: scripts/ci/oldest_pyo3.sh --check     checks that the Python crate builds with it
#        scripts/ci/oldest_pyo3.sh FOLDER      makes the copy there
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
[[ $# == 1 && (${1:-} == --check || ${1:-} != -*) ]] || { echo "$0: see --help" >&2; exit 2; }
cd "$(dirname "$0")/../.."

oldest=$(sed -n 's/^pyo3 = { version = ">=\([0-9.]*\),.*/\1/p' python/Cargo.toml)
folder=$1
[[ $1 != --check ]] || folder=$PWD/target/oldest-pyo3
rm -rf "$folder"
mkdir -p "$folder"
# Files keep their dates, so that a second check compiles nothing. One that is deleted and not yet committed is left out.
git ls-files -z --cached --others --exclude-standard | "${PYTHON:-python3}" -c 'import pathlib, shutil, sys
for name in filter(None, sys.stdin.read().split("\0")):
    to = pathlib.Path(sys.argv[1], name)
    to.parent.mkdir(parents=True, exist_ok=True)
    if pathlib.Path(name).exists():
        shutil.copy2(name, to, follow_symlinks=False)' "$folder"
target=$PWD/target
cd "$folder"
"${CARGO:-cargo}" update --quiet -p pyo3 --precise "$oldest"
[[ $1 != --check ]] || CARGO_TARGET_DIR=$target "${CARGO:-cargo}" check --quiet --locked -p windrow-python
