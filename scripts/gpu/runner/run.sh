#!/usr/bin/env bash
# Checks and times windrow on the GPU of this machine, in two parts of under ten minutes each.
#
# usage: ./run.sh check      Python libraries and tests, Rust tests, compute-sanitizer
#        ./run.sh bench      instructions counted by ncu beside the emulator's, then every figure
#        ./run.sh            both, one after the other
#        ./run.sh --simulate [check|bench]    on libcudasim.so beside this script: shows that the steps work
#        ./run.sh --has-gpu  status 0 if there is a GPU
#
# Everything goes to $OUT, or to ./out, and is written after every step: summary-PART.json, log-PART.txt,
# gather.json, and all of them in gpu-check.tar.gz. The status is 1 if a step failed, 2 without a GPU, 3 if none
# failed and some were not run because the time was over. $BUDGET is the seconds of a part, 570 if it is not set.
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)

. "$here/driver.sh"

simulate=0
case ${1:-} in
--has-gpu) has_gpu; exit ;;
--simulate)
    simulate=1
    use_simulator
    shift
    ;;
*) has_gpu || { echo "no GPU here (try --simulate)" >&2; exit 2; } ;;
esac
case ${1:-} in
check | bench) part=$1 ;;
'')
    flags=()
    ((simulate)) && flags=(--simulate)
    "$0" "${flags[@]}" check
    status=$?
    "$0" "${flags[@]}" bench
    other=$?
    ((status == 1 || other == 0)) && exit $status
    exit $other
    ;;
*) echo "unknown argument $1" >&2; exit 2 ;;
esac

out=${OUT:-$PWD/out}
mkdir -p "$out"
log=$out/log-$part.txt
: >"$log"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONUNBUFFERED=1
python=(env -u WINDROW_CUDA_IMAGE "${PYTHON:-python3}") # the wheel has kernels of its own

total=${BUDGET:-570}
names=() verdicts=() seconds=() notes=()
gpu=$(smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1)
((simulate)) && gpu='simulated driver: its times mean nothing'

quote() {
    local text=${1//\\/\\\\}
    printf '"%s"' "${text//\"/\\\"}" | tr -d '\000-\037'
}

# Written after every step: a run that is stopped leaves the steps it has done.
summary() {
    local i comma=''
    {
        printf '{"part": "%s", "commit": %s, "simulated": %s, "gpu": %s, "seconds": %s, "steps": [' "$part" \
            "$(quote "$WINDROW_COMMIT")" "$simulate" "$(quote "$gpu")" "$SECONDS"
        for i in "${!names[@]}"; do
            printf '%s\n  {"name": %s, "verdict": "%s", "seconds": %s, "note": %s}' "$comma" \
                "$(quote "${names[i]}")" "${verdicts[i]}" "${seconds[i]}" "$(quote "${notes[i]}")"
            comma=,
        done
        printf ']}\n'
    } >"$out/summary-$part.json"
}

note() { # name, verdict, seconds, note
    names+=("$1") verdicts+=("$2") seconds+=("$3") notes+=("$4")
    printf '%-7s %-32s %4s s  %s\n' "$2" "$1" "$3" "$4"
    summary
}

# Runs a command for so many seconds at most, and no longer than the part has left.
within() { # limit, command...
    local limit=$1
    shift
    ((total - SECONDS < limit)) && limit=$((total - SECONDS))
    timeout -k 5 $((limit < 1 ? 1 : limit)) "$@"
}

# Runs one step under a time limit; status 0 if it is ok. A step that prints SKIP has failed: skips are decided here.
step() { # name, limit, command...
    local name=$1 limit=$2 begin=$SECONDS left=$((total - SECONDS)) status verdict=ok text=''
    shift 2
    if ((left < 5)); then
        note "$name" 'not run' 0 'no time left'
        return 1
    fi
    within "$limit" "$@" >"$work/step" 2>&1
    status=$?
    { echo "==== $name: $*"; cat "$work/step"; echo "==== status $status"; } >>"$log"
    if ((status == 124 || status == 137)) && ((left < limit)); then
        verdict='not run' text="stopped after $left s: no time left"
    elif ((status == 124 || status == 137)); then
        verdict=FAILED text="stopped after $limit s"
    elif ((status != 0)); then
        verdict=FAILED text="status $status: $(grep -aE -m 1 'panicked|error|Error|FAILED' "$work/step" | cut -c 1-120)"
    elif grep -aq '^SKIP' "$work/step"; then
        verdict=FAILED text=$(grep -am 1 '^SKIP' "$work/step" | cut -c 1-120)
    else
        text=$(grep -aoE '[0-9]+ passed.*|ERROR SUMMARY.*|[0-9]+ workloads.*' "$work/step" | tail -n 1 | cut -c 1-80)
        text=${text%; 0 failed*}
    fi
    note "$name" "$verdict" $((SECONDS - begin)) "$text"
    [[ $verdict == ok ]]
}

skip() { # name, reason
    note "$1" SKIP 0 "$2"
}

# Whether Python imports these; if not, `reason` says why.
imports() { # modules, separated by commas
    within 60 "${python[@]}" -c "import $1" >>"$log" 2>&1
    case $? in
    0) return 0 ;;
    124 | 137) reason="its import takes more than 60 s, or there was no time left" ;;
    *) reason="import $1 fails: it is not installed, or the log says why" ;;
    esac
    return 1
}

python_steps() {
    local wheel library flags=() reason
    wheel=$(ls "$here"/python/windrow-*.whl 2>/dev/null)
    if [[ -z $wheel ]]; then
        skip 'Python' 'no wheel in this bundle'
        return
    fi
    step 'Python wheel' 60 "${python[@]}" -m pip install -q --no-index --no-deps --target "$work/site" "$wheel" || return
    export PYTHONPATH=$work/site
    step 'Python first batch' 60 "${python[@]}" -c 'import windrow; windrow.stack([1], device="cuda")' || return
    ((simulate)) && flags=(--simulate)
    for library in torch cupy jax; do
        if ((simulate)) && [[ $library == cupy ]]; then
            skip "Python with $library" 'it has no tensors without a GPU'
        elif imports "$library"; then
            step "Python with $library" 90 "${python[@]}" "$here/python/interop.py" "$library" "${flags[@]}"
        else
            skip "Python with $library" "$reason"
        fi
    done
    if imports pytest,numpy; then
        # Of the prefetcher's tests, which are in make test, only the one for a GPU.
        step 'Python tests' 180 "${python[@]}" -m pytest -q -p no:cacheprovider -k 'not test_torch_prefetch or on_a_gpu' \
            "$here"/python/tests/test_{cuda*,resident,torch_prefetch}.py
    else
        skip 'Python tests' "$reason"
    fi
}

# What compute-sanitizer says where it does not work with the device or in the container.
refusal() {
    local one
    one=$(within 10 "$here/tests/small" --list | sed -n 's/: test$//p' | head -n 1)
    within 30 "$1" --tool "$2" "$here/tests/small" --exact "$one" >"$work/probe" 2>&1
    grep -ai -m 1 'not supported' "$work/probe" | cut -c 1-90
}

# No racecheck: it watches shared memory, and the kernels have none. The API's own codes are not findings:
# cuEventQuery says "not ready" by one.
sanitizer() {
    local tool found reason
    found=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)
    for tool in memcheck initcheck; do
        if ((simulate)); then
            skip "compute-sanitizer $tool" 'there is no GPU'
        elif [[ -z $found ]]; then
            skip "compute-sanitizer $tool" 'it is not installed'
        elif reason=$(refusal "$found" "$tool"); then
            skip "compute-sanitizer $tool" "it refuses: $reason"
        else
            step "compute-sanitizer $tool" 90 "$found" --tool "$tool" --report-api-errors no --error-exitcode 9 \
                "$here/tests/small" --test-threads 1
        fi
    done
}

# What is quick and finds most comes first.
check() {
    local file name
    python_steps
    step 'test small' 60 "$here/tests/small"
    sanitizer
    for name in batch errors outputs; do
        step "test $name" 120 "$here/tests/$name"
    done
    for file in "$here"/tests/*; do
        name=$(basename "$file")
        if [[ " ${names[*]} " == *" test $name "* ]]; then
            continue
        elif ((simulate)); then
            skip "test $name" 'make test-simulated runs it on the simulated driver'
        else
            step "test $name" 120 "$file"
        fi
    done
}

# What ncu says where it may not read the GPU's counters, as in most containers.
profiler_refusal() { # ncu
    within 60 "$1" --clock-control none --metrics smsp__inst_executed.sum "$here/bench/gather" --bench --count --scale 64 --only 'one tensor' \
        >"$work/probe" 2>&1
    cat "$work/probe" >>"$log"
    grep -a -m 1 '==ERROR==' "$work/probe" | cut -c 1-90
}

# What kernels execute here, beside what the emulator executed of the same machine code.
device_counts() {
    local found arch reason name='device-code counts'
    found=$(command -v ncu || ls /usr/local/cuda*/bin/ncu /opt/nvidia/nsight-compute/*/ncu 2>/dev/null | head -n 1)
    arch=$(smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
    if ((simulate)); then
        skip "$name" 'there is no GPU'
    elif [[ -z $found ]]; then
        skip "$name" 'ncu is not installed'
    elif ! grep -q "\"arch\": $arch," "$here/device-instructions.json"; then
        skip "$name" "there are no counts for sm_$arch"
    elif reason=$(profiler_refusal "$found"); then
        skip "$name" "ncu refuses: $reason"
    else
        step "$name" 120 "$here/counts.sh" "$found" "$here/bench/gather" "$here/device-instructions.json" "$arch"
        cat "$work/step"
    fi
}

bench() {
    local few=()
    device_counts
    ((simulate)) && few=(--quick)
    step 'bench gather' "$total" "$here/bench/gather" --bench "${few[@]}" --json "$out/gather.json"
    ((simulate)) || tail -n +2 "$work/step" | cut -c 1-150
}

echo "windrow $WINDROW_COMMIT, $part, on: ${gpu:-a GPU that nvidia-smi does not name}"
echo "glibc: $(ldd --version | head -n 1 | grep -o '[0-9.]*$') here, $(cat "$here/GLIBC") needed"
{ uname -a; smi; } >>"$log" 2>&1

$part

echo
echo "Summary of $part, after $SECONDS s:"
failed=0 late=0
for i in "${!names[@]}"; do
    printf '  %-7s %-32s %4s s  %s\n' "${verdicts[i]}" "${names[i]}" "${seconds[i]}" "${notes[i]}"
    [[ ${verdicts[i]} == FAILED ]] && failed=1
    [[ ${verdicts[i]} == 'not run' ]] && late=3
done
((late)) && echo "  Not all steps were run: the $total s of this part were over. They have neither passed nor failed."
# The names of this script's own files, of either part, and nothing else that $OUT may hold.
(cd "$out" && tar -czf "$work/all.tar.gz" $(ls summary-*.json log-*.txt gather.json 2>/dev/null) &&
    mv "$work/all.tar.gz" gpu-check.tar.gz)
echo "  written: $out/{summary-$part.json,log-$part.txt,gpu-check.tar.gz}"
exit $((failed ? failed : late))
