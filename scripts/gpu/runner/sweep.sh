#!/usr/bin/env bash
# Times windrow with other tuning numbers, one changed at a time, and the policy's own first and last.
# Outputs are verified. Each trial leaves NAME.json, NAME.tsv and NAME.txt in ./sweep-work; one that is there
# already is not run again, so that a sweep that was stopped continues. Each call takes under nine minutes, ends
# with the best trial of each workload, and writes $OUT/sweep.tar.gz (or ./out/sweep.tar.gz) with all files.
#
# usage: ./sweep.sh [NAME...]               on a GPU; all of trials.txt, or those that begin with a name
#        ./sweep.sh --simulate [NAME...]    without one, on libcudasim.so beside this script
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/driver.sh"

simulate=0 flags=()
if [[ ${1:-} == --simulate ]]; then
    simulate=1 flags=(--quick)
    use_simulator
    shift
elif ! has_gpu; then
    echo "no GPU here (try --simulate)" >&2
    exit 2
fi
[[ ${1:-} != -* ]] || { echo "unknown argument $1" >&2; exit 2; }
out=$PWD/sweep-work
results=${OUT:-$PWD/out}
mkdir -p "$out" "$results"
unset WINDROW_CUDA_POLICY

total=530 # seconds; a trial that may not end in time is left for the next call
longest=20 failed=0 done_now=() left=()

trial() { # name, image or -, policy or -
    local name=$1 begin=$SECONDS variables=()
    [[ -f $out/$name.tsv ]] && return
    if ((SECONDS + longest > total)); then
        left+=("$name")
        return
    fi
    [[ $2 != - ]] && variables+=("WINDROW_CUDA_IMAGE=$2")
    [[ $3 != - ]] && variables+=("WINDROW_CUDA_POLICY=$3")
    if env "${variables[@]}" timeout -k 5 $((total - SECONDS)) "$here/bench/gather" --bench --sweep \
        "${flags[@]}" --json "$out/$name.json" --table "$out/$name.part" >"$out/$name.txt" 2>&1; then
        mv "$out/$name.part" "$out/$name.tsv"
        done_now+=("$name")
        printf 'ok     %-14s %4s s\n' "$name" $((SECONDS - begin))
    else
        failed=1
        printf 'FAILED %-14s %4s s  %s\n' "$name" $((SECONDS - begin)) "$(tail -n 1 "$out/$name.txt" | cut -c 1-120)"
    fi
    ((SECONDS - begin + 5 > longest)) && longest=$((SECONDS - begin + 5))
}

wanted() { # name; the names that were asked for follow
    local name=$1 begin
    shift
    (($# == 0)) && return
    for begin in "$@"; do
        [[ $name == "$begin"* ]] && return
    done
    return 1
}

# Why a trial cannot be run here, if it cannot.
obstacle() { # image or -, policy
    local here_is
    if ((simulate)) && [[ $2 == *threads=* ]]; then
        echo 'the simulated kernels have their own number of threads'
    elif [[ $1 != - && ! -f $1 ]]; then
        echo 'its kernels are not in this bundle'
    elif [[ $1 != - ]] && ! ((simulate)); then
        here_is=$(smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
        grep -qw "${here_is:-.*}" "$here/images/ARCHS" ||
            echo "its kernels are for $(cat "$here/images/ARCHS"), this GPU is $here_is"
    fi
}

trial default-first - -
while read -r name flags_of policy; do
    [[ -z $name || $name == '#'* ]] && continue
    wanted "$name" "$@" || continue
    image=-
    [[ $flags_of != - ]] && image=$here/images/$name.fatbin
    reason=$(obstacle "$image" "$policy")
    if [[ -n $reason ]]; then
        printf 'SKIP   %-14s         %s\n' "$name" "$reason"
    else
        trial "$name" "$image" "$policy"
    fi
done <"$here/trials.txt"
# Beside the trials of this call, for the drift of clocks and temperature.
((${#done_now[@]})) && rm -f "$out/default-last.tsv"
total=$((total + 60))
trial default-last - -

echo
((simulate)) && echo 'Simulated driver: these times mean nothing.'
# Medians of windrow, cold. A star: 9 of 10 runs of the trial were faster than 9 of 10 of either default.
cd "$out" && awk -F '\t' '
    FILENAME ~ /^default-/ {
        if (!($1 in runs)) order[++count] = $1
        runs[$1]++; sum[$1] += $3; share[$1] += $5 / $3
        if (FILENAME ~ /first/) first[$1] = $3; else last[$1] = $3
        if (!($1 in low) || $2 < low[$1]) low[$1] = $2
        next
    }
    { if (!($1 in best) || $3 < best[$1]) { best[$1] = $3; high[$1] = $4; who[$1] = FILENAME } }
    END {
        printf "%-62s %10s %7s %6s  %-14s %7s\n", "", "default us", "of copy", "drift", "best", "ratio"
        for (i = 1; i <= count; i++) {
            name = order[i]; us = sum[name] / runs[name]
            drift = name in first && name in last ? sprintf("%.3f", last[name] / first[name]) : "-"
            sub(/\.tsv$/, "", who[name])
            printf "%-62s %10.1f %7.3f %6s  %-14s %7s\n", substr(name, 1, 62), us, share[name] / runs[name], drift,
                who[name], name in best ? sprintf("%.3f%s", best[name] / us, high[name] < low[name] ? "*" : "") : "-"
        }
    }' default-*.tsv $(ls ./*.tsv | sed 's|^\./||' | grep -v '^default-')
((${#left[@]})) && echo "No time was left for: ${left[*]}. Start again to go on."
tar -C "$out/.." -czf "$results/sweep.tar.gz" "$(basename "$out")"
echo "written: $results/sweep.tar.gz"
exit $failed
