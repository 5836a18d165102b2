#!/usr/bin/env bash
# Fuzzes for SECONDS (default: 300) over all targets, or over those named: the Rust ones of fuzz/ under
# AddressSanitizer, then the Python ones of python/fuzz. What they find grows in out/fuzz/, beginning with
# fuzz/corpus/; `--minimise` writes the corpora anew from there. `--cuda`: `assemble` with the CUDA engine
# beside the others, on the simulated driver, which ends a kernel that reads what is no sample's; needs nvcc (scripts/ci/run.sh).
#
# usage: scripts/ci/fuzz.sh [--cuda] [SECONDS [TARGET ...]] | scripts/ci/fuzz.sh --minimise
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
cd "$(dirname "$0")/../.."

# Not for Python's targets alone.
needs_cargo_fuzz() {
    cargo fuzz --version >/dev/null 2>&1 && return
    echo "cargo-fuzz is missing. Install it with: cargo install cargo-fuzz --locked" >&2
    exit 1
}
# Sanitizers are an unstable flag, which this lets a stable compiler take.
export RUSTC_BOOTSTRAP=1
# What does not fit into memory is refused, as without AddressSanitizer.
export ASAN_OPTIONS=allocator_may_return_null=1
rust="dlpack assemble plan arrow"

if [[ ${1:-} == --minimise ]]; then
    needs_cargo_fuzz
    for target in $rust; do
        rm -rf "out/fuzz/small/$target"
        mkdir -p "out/fuzz/small/$target" "fuzz/corpus/$target"
        # As few inputs as cover every branch, and none of any length.
        cargo fuzz run "$target" "out/fuzz/small/$target" "out/fuzz/$target" "fuzz/corpus/$target" -- \
            -set_cover_merge=1 -use_counters=0 -max_len=512
        rm -r "fuzz/corpus/$target"
        cp -r "out/fuzz/small/$target" "fuzz/corpus/$target"
    done
    exit
fi

features=() targets="$rust python"
if [[ ${1:-} == --cuda ]]; then
    shift
    features=(--features cuda) targets=assemble
    WINDROW_CUDA_DRIVER=$(env -u RUSTC_BOOTSTRAP scripts/sim/simulated_driver.sh)
    # What the simulated driver holds at the end is no leak.
    export WINDROW_CUDA_DRIVER CUDASIM_DELAY_US=0 WINDROW_REQUIRE_GPU=1 ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0
fi
seconds=${1:-300}
[[ $# -gt 0 ]] && shift
targets=${*:-$targets}
each=$((seconds / $(wc -w <<<"$targets")))
for target in $targets; do
    if [[ $target == python ]]; then
        "${PYTHON:-python3}" python/fuzz/targets.py --seconds "$each"
        continue
    fi
    needs_cargo_fuzz
    mkdir -p "out/fuzz/$target"
    cargo fuzz run "${features[@]}" "$target" "out/fuzz/$target" "fuzz/corpus/$target" -- \
        -max_total_time="$each" -max_len=512 -timeout=60 -rss_limit_mb=4096 -print_final_stats=1
done
