#!/usr/bin/env bash
# Runs the Python tests under AddressSanitizer, with real NumPy, torch and JAX: the extension is built with it and with
# debug assertions, in a copy of the package. Needs the tests' environment as $PYTHON, and g++ for the runtime.
#
# usage: scripts/ci/asan_wheel.sh [TEST or option of pytest ...]     default: all tests but those that start programs
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
cd "$(dirname "$0")/../.."

PYTHON=${PYTHON:-python3}
target=$(rustc -vV | sed -n 's/^host: //p')
built=${CARGO_TARGET_DIR:-$PWD/target}/asan-wheel
# Sanitizers are an unstable flag, which this lets a stable compiler take. The runtime is g++'s, loaded before all else.
PYO3_PYTHON=$("$PYTHON" -c 'import sys; print(sys.executable)') RUSTC_BOOTSTRAP=1 \
    RUSTFLAGS="-Zsanitizer=address -Zexternal-clangrt -Cdebug-assertions" \
    "${CARGO:-cargo}" build --quiet --release --locked --target "$target" --target-dir "$built" \
    --manifest-path python/Cargo.toml
rm -rf "$built/package"
cp -r python/python "$built/package"
cp "$built/$target/release/lib_windrow.so" "$built/package/windrow/_windrow.abi3.so"

if [[ $# -eq 0 ]]; then
    # Left out: what starts other programs or workers, where the sanitizer's threads and memory are not at home.
    set -- python/tests --ignore-glob '*test_docs*' --ignore-glob '*test_ray*' --ignore-glob '*test_bench*' \
        --ignore-glob '*test_recipes*' --ignore-glob '*test_readme*' --ignore-glob '*test_package*' \
        --ignore-glob '*test_jax_grain*' --ignore-glob '*test_processes*' --ignore-glob '*test_resources*' \
        -k "not worker and not DataLoader and not loader and not spawn and not fork"
fi
# Leaks are not looked for: an interpreter leaves much behind, and tests count deleters and references.
# Nor is memory of `new[]` that `delete` frees, as Paddle does when it ends.
exec env LD_PRELOAD="$("${CXX:-g++}" -print-file-name=libasan.so) $("${CXX:-g++}" -print-file-name=libstdc++.so)" \
    PYTHONPATH="$built/package" PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:alloc_dealloc_mismatch=0 \
    "$PYTHON" -m pytest -p no:cacheprovider "$@"
