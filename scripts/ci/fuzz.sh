#!/usr/bin/env bash
# Fuzzes for SECONDS (default: 300) over all targets, or over those named: the Rust ones of fuzz/ under
# AddressSanitizer, then the Python ones of python/fuzz. What they find grows in out/fuzz/, beginning with
# the archives of fuzz/corpus/; `--minimise` writes those anew from there. `--cuda`: `assemble` with the CUDA engine
# beside the others, on the simulated driver, which ends a kernel that reads what is no sample's; needs nvcc (scripts/ci/run.sh).
#
# usage: scripts/ci/fuzz.sh [--cuda] [SECONDS [TARGET ...]] | scripts/ci/fuzz.sh --minimise
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
cd "$(dirname "$0")/../.."

# cargo-fuzz is not needed for Python's targets alone.
needs_cargo_fuzz() {
    cargo fuzz --version >/dev/null 2>&1 && return
    echo "cargo-fuzz is missing. Install it with: cargo install cargo-fuzz --locked" >&2
    exit 1
}
# Sanitizers are an unstable flag, which this lets a stable compiler take.
export RUSTC_BOOTSTRAP=1
# Allocations that do not fit into memory fail, as without AddressSanitizer.
export ASAN_OPTIONS=allocator_may_return_null=1
rust="dlpack assemble plan arrow moves"

# The inputs of a target's archive, and nothing else, into a folder.
unpack() { # target folder
    rm -rf "$2"
    mkdir -p "$2"
    tar --extract --file "fuzz/corpus/$1.tar" --directory "$2"
}

# The inputs of a folder into a target's archive: the same ones give the same bytes. It is not compressed, so that no version of
# a compressor decides them; Git compresses it.
pack() { # target folder
    local archive=fuzz/corpus/$1.tar names
    names=$(cd "$2" && printf '%s\n' * | LC_ALL=C sort)
    tar --create --file "$archive.new" --format=ustar --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=0644 \
        --directory "$2" --no-recursion --verbatim-files-from --files-from - <<<"$names"
    mv "$archive.new" "$archive"
    echo "$archive: $(wc -l <<<"$names") inputs, which tests/corpus.rs counts"
}

if [[ ${1:-} == --minimise ]]; then
    needs_cargo_fuzz
    for target in $rust; do
        unpack "$target" "out/fuzz/corpus/$target"
        rm -rf "out/fuzz/small/$target"
        mkdir -p "out/fuzz/small/$target" "out/fuzz/$target"
        # The corpus keeps the fewest inputs that cover every branch, none of them long.
        cargo fuzz run "$target" "out/fuzz/small/$target" "out/fuzz/$target" "out/fuzz/corpus/$target" -- \
            -set_cover_merge=1 -use_counters=0 -max_len=512
        pack "$target" "out/fuzz/small/$target"
    done
    exit
fi

features=() targets="$rust python"
if [[ ${1:-} == --cuda ]]; then
    shift
    features=(--features cuda) targets=assemble
    WINDROW_CUDA_DRIVER=$(env -u RUSTC_BOOTSTRAP scripts/sim/simulated_driver.sh)
    # Memory that the simulated driver holds at the end is no leak.
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
    unpack "$target" "out/fuzz/corpus/$target"
    cargo fuzz run "${features[@]}" "$target" "out/fuzz/$target" "out/fuzz/corpus/$target" -- \
        -max_total_time="$each" -max_len=512 -timeout=60 -rss_limit_mb=4096 -print_final_stats=1
done
