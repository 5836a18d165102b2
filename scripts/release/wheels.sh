#!/usr/bin/env bash
# Builds the packages of a release into out/wheels: a wheel of the stable ABI for CPython 3.11 and later, one each
# for 3.9, 3.10 and the free-threaded 3.13 and 3.14 where that interpreter is found, and the source
# distribution. Each wheel is checked by scripts/release/wheel_check.py, the source distribution by a wheel made of it.
#
# usage: scripts/release/wheels.sh
#
#   WHEEL_PYTHONS="python3.9 /opt/py313t/bin/python3.13t"   these interpreters
#   WHEEL_SDIST=0        wheels only, where another machine of the release makes the source distribution
#
# scripts/release/release_wheel.sh builds each, and says what else can be set.
# $PYTHON is the interpreter that has maturin, and auditwheel, and for zig ziglang, all from PyPI.
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
[[ $# == 0 ]] || { echo "$0: unknown argument $1" >&2; exit 2; }
shopt -s nullglob
cd "$(dirname "$0")/../.."

export PYTHON=${PYTHON:-python3}
out=$PWD/out/wheels
work=$PWD/target/wheels-work
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
rm -rf "$out" "$work"
mkdir -p "$out"

version_of() {
    "$1" -c 'import sys, sysconfig
print("%d.%d" % sys.version_info[:2] + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""))'
}

for python in ${WHEEL_PYTHONS:-python3.9 python3.10 python3.11 python3.12 python3.13 python3.14 python3.13t python3.14t}; do
    if ! version=$(version_of "$python" 2>/dev/null); then
        echo "SKIP: no interpreter $python here"
        continue
    fi
    abi=cp${version/./}
    case $version in
    3.13t)
        scripts/ci/oldest_pyo3.sh "$work/313t"
        CARGO_TARGET_DIR=$work/target-313t "$work/313t/scripts/release/release_wheel.sh" "$python" "$out"
        ;;
    3.9 | 3.10 | *t) scripts/release/release_wheel.sh "$python" "$out" ;;
    *)
        abi=abi3
        [[ -n $(echo "$out"/*-abi3-*.whl) ]] || scripts/release/release_wheel.sh "$python" "$out"
        ;;
    esac
    "$PYTHON" scripts/release/wheel_check.py --release "$out"/*-"$abi"-*.whl "$python"
done

[[ ${WHEEL_SDIST:-1} == 0 ]] || scripts/release/sdist_check.sh "$out"
rustc --version
"$PYTHON" -m pip --disable-pip-version-check list | grep -E '^(maturin|ziglang) '
"$PYTHON" -c 'import hashlib, pathlib, sys
for file in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    print(hashlib.sha256(file.read_bytes()).hexdigest(), "", file.name)' "$out"
