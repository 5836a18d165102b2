#!/usr/bin/env bash
# Compares what kernels execute on this GPU, as NVIDIA's profiler counts it, with what the emulator executed of the
# same machine code: warp instructions for 16 bytes of output, times 32.
#
# usage: ./counts.sh NCU BENCH DEVICE-INSTRUCTIONS.JSON ARCH [JSON]     writes a list of rows to JSON
#
# The status is 1 if a workload differs by more than LIMIT percent. The emulator counted for the multiprocessors of an
# H200, by which work is cut: with another number the figures are printed and not judged.
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -uo pipefail
[[ $# == 4 || $# == 5 ]] || { echo "$0: see --help" >&2; exit 2; }
ncu=$1 bench=$2 counted=$3 arch=$4 json=${5:-/dev/null} rows=()

# One of each kind of loop; their names are those of the file, and no other workload's name holds one of them.
WORKLOADS=('W1 f32' 'W2b' 'W3 address' 'W5b affine' 'W10b' 'short ragged i32 to i64')
LIMIT=5
MULTIPROCESSORS=132
METRIC=smsp__inst_executed.sum

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Launches of windrow's kernels in a file of ncu --csv, and the sum of what they executed. Numbers have commas for
# thousands there, names of kernels have any.
executed() {
    awk -v metric="$METRIC" '
        function cells(line,   n, i, c, quoted) {
            delete cell
            n = 1; cell[1] = ""; quoted = 0
            for (i = 1; i <= length(line); i++) {
                c = substr(line, i, 1)
                if (c == "\"") quoted = !quoted
                else if (c == "," && !quoted) cell[++n] = ""
                else cell[n] = cell[n] c
            }
            return n
        }
        /^"ID",/ {
            for (n = cells($0); n > 0; n--) column[cell[n]] = n
            next
        }
        /^"[0-9]+",/ && "Metric Value" in column {
            cells($0)
            if (cell[column["Metric Name"]] != metric || cell[column["Kernel Name"]] !~ /windrow/) next
            value = cell[column["Metric Value"]]
            gsub(/,/, "", value)
            if (cell[column["Metric Unit"]] != "inst" || value !~ /^[0-9]+(\.[0-9]+)?$/) next
            launches++
            total += value
        }
        END { printf "%d %.0f\n", launches, total }' "$1"
}

# A number of the JSON of one workload: a line that `--count` prints, or one of the file.
number() { # key, workload, arch or nothing; the lines come in
    grep -F "\"workload\": \"$2\"" | grep -F "${3:+\"arch\": $3,}" | grep -o "\"$1\": [0-9.]*" | head -n 1 | cut -d' ' -f2
}

failed=0 done_now=0 judged=1
printf '%-26s %12s %12s %9s\n' "sm_$arch" 'this GPU' 'emulator' 'differs'
for name in "${WORKLOADS[@]}"; do
    want=$(number instructions_per_16_bytes "$name" "$arch" <"$counted")
    if [[ -z $want ]]; then
        echo "FAILED $name: no count for sm_$arch"
        failed=1
        continue
    fi
    # Clocks stay as they are: whoever else is on this GPU has them too.
    if ! "$ncu" --clock-control none --cache-control none --csv --print-units base --metrics "$METRIC" --log-file "$work/ncu.csv" \
        "$bench" --bench --count --only "$name" >"$work/said" 2>&1; then
        echo "FAILED $name: $(cat "$work/ncu.csv" "$work/said" 2>/dev/null | grep -a -m 1 -E 'ERROR|panicked|gather:' | cut -c 1-110)"
        failed=1
        continue
    fi
    read -r launches total < <(executed "$work/ncu.csv")
    written=$(number written "$name" <"$work/said")
    expected=$(number launches "$name" <"$work/said")
    if [[ -z $written || $launches != "$expected" ]]; then
        echo "FAILED $name: $launches launches profiled, ${expected:-none} made"
        failed=1
        continue
    fi
    [[ $(number multiprocessors "$name" <"$work/said") == "$MULTIPROCESSORS" ]] || judged=0
    awk -v name="$name" -v total="$total" -v written="$written" -v want="$want" -v limit="$LIMIT" 'BEGIN {
        got = total * 32 * 16 / written
        off = 100 * (got / want - 1)
        printf "%-26s %12.2f %12.2f %+7.1f %%\n", name, got, want, off
        exit off > limit || off < -limit
    }' || { ((judged)) && echo "FAILED $name: more than $LIMIT % from the emulator's count" && failed=1; }
    done_now=$((done_now + 1))
    rows+=("$(awk -v name="$name" -v total="$total" -v written="$written" -v want="$want" -v judged="$judged" 'BEGIN {
        printf "{\"workload\": \"%s\", \"gpu\": %.3f, \"emulator\": %.3f, \"judged\": %s}", name, total * 512 / written, want, judged ? "true" : "false"
    }')")
    rm -f "$work/ncu.csv"
done
(IFS=,; echo "[${rows[*]}]" >"$json")
if ((judged)); then
    echo "$done_now workloads compared, at most $LIMIT % apart: $( ((failed)) && echo no || echo yes)"
else
    echo "$done_now workloads printed and not judged: this GPU has not $MULTIPROCESSORS multiprocessors"
fi
exit $failed
