#!/usr/bin/env bash
# The queue of what a GPU is asked, the most important question first, for a machine that is had for minutes. It lies in the
# bundle that scripts/gpu/bundle.sh makes.
#
# usage: ./slots.sh [--budget SECONDS] [--only "SLOT ..."] [--again] [--done FILE]... [--list]
#        ./slots.sh --simulate [--short] ...     on libcudasim.so beside this script: shows that the slots work
#        ./slots.sh --has-gpu                    status 0 if there is a GPU
#        ./slots.sh --queue FILE ...             the slots of a file, of the form below
#
# Begins each slot that fits into the budget (540 s), prints a line and appends a record to $WINDROW_SLOTS/done.jsonl (a
# temporary folder if not set) at once, so that a call that was stopped loses one slot and the next goes on. Records of other
# machines come from done.jsonl of the bundle and from --done. What was ok with the same hash of what it depends on is not
# run again, but by --again; what failed comes after what never ran; a slot after ! that fails ends the queue. $PYTHON is the
# Python to test, python3 if not set.
#
# Files written to $OUT, or ./out, after every slot: done.jsonl (records), slots.txt (what was printed), results.tar.gz
# (all files). The status is 1 if a slot failed, 2 without a GPU, 3 if none failed and one was left for the next call.
# Clocks and other settings of the GPU stay as they are.
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/driver.sh"
# The open file keeps the device initialised: each program would otherwise wait seconds for it.
[[ ! -r /dev/nvidia0 ]] || exec 9</dev/nvidia0

# The sizes of a slot on the simulator; empty on a GPU.
simulate='' quick='' queue='' has_queue=0 options=()
while (($#)); do
    case $1 in
    --has-gpu) has_gpu; exit ;;
    --simulate) simulate=all quick=--quick ;;
    --short) short=1 ;;
    --queue) queue=$(realpath -m "${2:?}") has_queue=1; shift ;;
    --done) options+=(--done "$(realpath -m "${2:?}")"); shift ;;
    --budget | --only) options+=("$1" "${2:?}"); shift ;;
    --again | --list) options+=("$1") ;;
    *) echo "unknown argument $1" >&2; exit 2 ;;
    esac
    shift
done
if [[ -n $simulate ]]; then
    use_simulator
    [[ -z ${short:-} ]] || simulate=short
else
    # Settings that a shell keeps from other work: a record of this GPU would be the simulator's.
    unset WINDROW_CUDA_DRIVER WINDROW_TEST_DRIVER
    if [[ " ${options[*]} " != *' --list '* ]] && ! has_gpu; then
        echo "no GPU here (try --simulate)" >&2
        exit 2
    fi
fi

# NAME|SECONDS expected|LIMIT|what it DEPENDS on|on the SIMULATOR: in the short form, in all, or not (-)|COMMAND
# Limits of what imports torch allow for 150 s of reading a cold disk.
the_queue() {
    cat <<'QUEUE'
facts|10|60|machine|short|facts
!load|8|90|kernels|short|rust small bytes_are_moved samples_are_chosen_on_a_device
!wheel|12|120|engine|short|first_batch
small|15|90|kernels|short|rust small
torch|20|170|engine|short|first_of_torch
values|40|240|engine|all|pytests test_gpu_values.py -m 'not slow'
streams|60|240|engine|all|pytests test_cuda_streams.py test_cuda_keep_alive.py test_cuda_torch.py test_cuda_captures.py test_cuda_calls.py test_resident.py test_arena.py test_arrow_devices.py
order|110|280|engine|all|pytests test_gpu_order.py -m 'not slow'
graphs|100|280|engine|all|pytests test_gpu_graphs.py -m 'not slow'
peek|45|100|kernels|short|gather 40
matrix|70|300|kernels|all|matrix batch increments channels sizes arena outputs casts executors
memory|60|240|engine|all|pytests test_gpu_memory.py -m 'not slow'
peers|210|290|kernels|all|peers
stalls|90|300|kernels|-|stalls "W6" "W3 id" "W1 f16" "W2b" "W7" "W10a" "W10b" "one tensor"
counts|80|150|kernels|-|counts
memcheck|60|150|kernels|-|sanitize memcheck bytes_are_moved planes_and_padding casts_and_transforms samples_are_chosen_on_a_device
cupy|30|170|engine|all|pytests test_gpu_libraries.py -k cupy
triton|30|170|engine|all|pytests test_gpu_libraries.py -k triton
jax|40|170|engine|all|pytests test_gpu_libraries.py -k jax
policy|100|200|kernels|short|trials 90 policies
bench|280|400|kernels|all|gather 270
ahead|30|120|engine|short|copies_ahead 25
cores|90|200|engine|all|host_cores 80
forms|30|170|engine|all|pytests test_cuda.py test_torch_prefetch.py -k 'not test_torch_prefetch or on_a_gpu'
blocks|40|200|engine|all|pytests test_torch_locked.py test_gpu_memory.py -k 'not test_gpu_memory or go_from_their_blocks'
blockrates|30|170|engine|all|block_rates
moves|40|200|engine|all|pytests test_cuda_moves.py test_cuda_move_ids.py test_cuda_packed.py
pages|50|150|engine|all|page_rates
rest|60|200|kernels|all|matrix properties errors windrow
libraries|40|200|engine|all|pytests test_gpu_libraries.py -m 'not slow' -k 'not cupy and not triton and not jax'
operators|40|200|engine|all|pytests test_gpu_ops.py -m 'not slow'
initcheck|60|200|kernels|-|sanitize initcheck bytes_are_moved planes_and_padding casts_and_transforms samples_are_chosen_on_a_device
memcheck-all|120|300|kernels|-|sanitize memcheck
model|60|280|engine|all|pytests -m slow test_gpu_values.py test_gpu_order.py test_gpu_memory.py test_gpu_graphs.py test_gpu_libraries.py test_gpu_ops.py
jit|70|200|kernels|-|compiled_by_the_driver
warm|280|400|kernels|-|gather 270 --warm
pythonbench|110|200|kernels|-|py -m windrow bench --device cuda --seconds 100 --json "$FIGURES"
sweep|300|500|kernels|-|trials 280 kernels
QUEUE
}

# Below, $keep is a folder for files that go back, and what is written to $FIGURES becomes part of the record: slots.py.

# The wheel has kernels of its own.
py() {
    env -u WINDROW_CUDA_IMAGE "$PYTHON" "$@"
}

found() { # name, other places...
    local one
    for one in $(command -v "$1") "${@:2}"; do
        [[ -x $one ]] && { echo "$one"; return; }
    done
    return 1
}

# A file of the bundle. One that a bundle lacks is not asked for; on a machine with a GPU that SKIP is a failure.
has() { # path in the bundle
    [[ -e $here/$1 ]] || { echo "SKIP: $1 is not in this bundle"; return 1; }
}

facts() {
    smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE,MEMORY,ECC | sed -n '1,200p'
    smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current,clocks.sm,clocks.mem,mig.mode.current,persistence_mode,compute_mode --format=csv
    uname -a
    echo "glibc: $(ldd --version | head -n 1 | grep -o '[0-9.]*$') here, $(cat "$here/GLIBC") needed"
    lscpu | grep 'Model name'
    nproc
    free -g | head -n 2
    ulimit -l
    df -h /tmp | tail -n 1
    ldconfig -p | grep libcuda
    echo "LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}"
    env | grep ^CUDA_
    py -c 'import sys, importlib.metadata as m
print(sys.version)
for name in "numpy torch triton cupy-cuda13x jax pytest pytest-timeout torchvision numba-cuda cuda-bindings".split():
    try: print(name, m.version(name))
    except m.PackageNotFoundError: print(name, "is not here")'
    true
}

# Rust tests: a module of the suite, or the library's own. After an error that is sticky every later test of a process fails, so the
# first runs again alone.
rust() { # module or windrow, tests...
    local name=$1 program=tests/suite status first log=$keep/test-$1.txt
    if [[ $name == windrow ]]; then
        program=tests/windrow
        shift
    else
        shift
        set -- "${@/#/$name::}"
        (($#)) || set -- "$name::"
    fi
    has "$program" || return 0
    "$here/$program" "$@" >"$log" 2>&1
    status=$?
    tail -n 4 "$log"
    grep -a '^SKIP' "$log"
    if ((!status)) && grep -aq '^test result: ok\. 0 passed' "$log"; then
        echo "FAILED: test $name, no such test"
        return 1
    fi
    ((status)) || return 0
    echo "FAILED: test $name, status $status"
    grep -a -m 20 -A 3 panicked "$log"
    first=$(sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log" | head -n 1)
    if [[ -n $first ]] && grep -aqE 'ILLEGAL_ADDRESS|MISALIGNED_ADDRESS|LAUNCH_FAILED|\b(700|716|719)\b' "$log"; then
        timeout -k 5 100 "$here/$program" --exact "$first" >"$keep/test-$name-alone.txt" 2>&1
        echo "FAILED: test $name, $first alone: status $?"
        tail -n 12 "$keep/test-$name-alone.txt"
    fi
    return $status
}

# Four processes at a time: each has a context of its own.
matrix() { # as for rust...
    printf '%s\n' "$@" | xargs -P 4 -I{} bash -c 'rust "$1" >"$keep/matrix-$1.txt" 2>&1; status=$?; cat "$keep/matrix-$1.txt"; exit $status' - {} &&
        echo "$# suites passed"
}

compiled_by_the_driver() {
    grep -q ^ptx "$here/KERNELS" || { echo 'SKIP: this bundle has machine code alone'; return; }
    CUDA_FORCE_PTX_JIT=1 CUDA_CACHE_DISABLE=1 rust small bytes_are_moved casts_and_transforms planes_and_padding
}

first_batch() {
    py -c 'import windrow as wr, numpy as np
batch = wr.stack([np.full(9, 7, "f4")] * 3, device="cuda")
batch.check()
print(wr.devices())
assert wr.stack(batch, device="cpu").numpy().sum() == 189'
}

first_of_torch() {
    py -c 'import torch, windrow as wr
on = "cpu" if "'"$simulate"'" else "cuda"
assert on == "cpu" or torch.cuda.is_available(), "torch sees no GPU"
rows = [torch.arange(64.0, device=on).view(8, 8).t() + i for i in range(32)]
batch = wr.stack(rows, device=on)
assert torch.equal(batch.torch(), torch.stack(rows)) and batch.torch().device.type == on
print(torch.__version__, torch.version.cuda, "1 batch passed")' || return
    # The command is not among the facts: it imports torch too, and the first import may take minutes.
    py -m windrow doctor 2>&1 | head -n 60
}

# Page-locked pages to the device, by a kernel that reads them over the bus and by copies: where one wins over the other, and how much of
# the bus a kernel leaves at 512 bytes, which is what reads that are staged by bulk copies could gain.
page_rates() {
    WINDROW_CALIBRATION=$keep/calibration.json py -m windrow calibrate --seconds "${simulate:+0.}16" >"$keep/calibration.txt" || return 1
    py - "$keep/calibration.json" <<'RATES'
import json, sys
for gpu in json.load(open(sys.argv[1]))["gpus"]:
    print(gpu["gpu"], gpu["page_copies"])
    best, small = 0.0, 0.0
    for name, times in gpu["microseconds"].items():
        count, size = map(int, name.split(" x "))
        rates = {way: count * size / 1000 / us for way, us in times.items()}
        print(name, *(f"{way} {rate:.1f} GB/s" for way, rate in rates.items()))
        best = max(best, *rates.values())
        if (count, size) == (1024, 512):
            small = rates["kernel"]
    print(f"a kernel reads 512-byte pages at {small / best:.2f} of the best rate: bulk copies are worth a trial below 0.80")
RATES
}

# Images a second from two worker processes: from their blocks, staged, and by torch's thread that page-locks.
block_rates() {
    py -c 'import time, torch, windrow as wr, windrow.torch as wt
from torch.utils.data import DataLoader
from windrow.torch import _transfer
on = torch.device("cuda" if torch.cuda.is_available() else "cpu")
images = [torch.full((3, 224, 224), i % 251, dtype=torch.uint8) for i in range(256)] * 16
want = sum(i % 251 for i in range(256)) * 16
from_blocks = _transfer.CudaTransfer._page_locked
for size in (32, 256):
    for name in ("Prefetcher from blocks", "Prefetcher, staged", "pin_memory=True"):
        _transfer.CudaTransfer._page_locked = from_blocks if "blocks" in name else lambda self, tensor: None
        pins = name == "pin_memory=True"
        loader = DataLoader(images, size, num_workers=2, persistent_workers=True, multiprocessing_context="fork",
                            pin_memory=pins and on.type == "cuda", collate_fn=wt.collate_fn())
        rates = []
        for _ in range(6):
            begin, total = time.perf_counter(), 0
            for batch in loader if pins else wt.Prefetcher(loader, device=on):
                total = total + batch.to(on, non_blocking=True)[:, 0, 0, 0].sum(dtype=torch.int64)
            assert int(total) == want, name
            rates.append(len(images) / (time.perf_counter() - begin))
        print(f"{size} images a batch, {name}: {sorted(rates[1:])[2]:.0f} images a second")
        del loader
print(wr.stats()["workers"])'
}

# Each test gets a connection from the host to the device of its own: the default of 8 would make streams wait for each
# other.
pytests() { # arguments of pytest; names of files are those of python/tests
    local argument arguments=() files='' limit=() status
    for argument in "$@"; do
        if [[ $argument == *.py ]]; then
            has "python/tests/$argument" || continue
            argument=$here/python/tests/$argument
            files=1
        fi
        arguments+=("$argument")
    done
    [[ -n $files ]] || return 0
    py -c 'import pytest' 2>/dev/null || { echo 'SKIP: pytest is not installed'; return; }
    py -c 'import pytest_timeout' 2>/dev/null && limit=(--timeout 120)
    # torch sees no simulated device, which is no failure.
    [[ -z $simulate ]] || unset WINDROW_REQUIRE_GPU
    CUDA_DEVICE_MAX_CONNECTIONS=32 py -m pytest -q -rs -p no:cacheprovider -W ignore::pytest.PytestUnknownMarkWarning \
        "${limit[@]}" "${arguments[@]}"
    status=$?
    # Status 5: no test has such a name or mark.
    ((status == 5)) && { echo "SKIP: no test for: $*"; return 0; }
    return $status
}

gather() { # seconds, options...
    "$here/bench/gather" --bench $quick --budget "$@" --json "$FIGURES" --table "${FIGURES%.json}.tsv"
}

# The host's tables by more threads, as far as the machine has cores for them.
host_cores() { # seconds
    local threads files=()
    for threads in 1 2 4 8 16; do
        ((threads == 1 || threads <= $(nproc))) || break
        py -m windrow bench ${quick:+--quick} --threads $threads --seconds $(($1 / 5)) --layout scattered \
            --only W1 --only W2 --only W3 --only W4 --only W5 --json "$keep/host-$threads.json" || return
        files+=("$keep/host-$threads.json")
    done
    py -c 'import json, sys
found = {name.rpartition("-")[2].partition(".")[0]: json.load(open(name)) for name in sys.argv[2:]}
json.dump(found, open(sys.argv[1], "w"))' "$FIGURES" "${files[@]}"
}

# Whether rows of a stack that are copied while later ones are imported (src/host/pipelined_copy.rs) gain 15 % in two neighbouring cases, by
# one to three threads that help. The same rows without it: by copy=None, which takes a plan, and through a SampleList, which takes none.
copies_ahead() { # seconds
    py - "$FIGURES" "${simulate:+0.}$1" <<'AHEAD'
import json, os, sys, time
import numpy as np, torch, windrow as wr
sizes = [(4096, 256), (4096, 512), (1024, 4096), (256, 65536)]
counts = [threads for threads in (2, 3, 4, 8, 16) if threads <= max(2, os.cpu_count())]
seconds, cells = float(sys.argv[2]) / (2 * len(sizes) * len(counts)), []
for kind, make in (("torch", lambda size: torch.ones(size, dtype=torch.uint8)), ("numpy", lambda size: np.ones(size, np.uint8))):
    for rows, size in sizes:
        made = [make(size) for _ in range(2 * rows)]
        samples = made[::2]
        for threads in counts:
            engine = wr.Engine(threads=threads)
            ways = {
                "ahead": lambda: wr.stack(samples, engine=engine),
                "plan": lambda: wr.stack(samples, copy=None, engine=engine),
                "list": lambda: wr.stack(wr.SampleList(samples), engine=engine),
            }
            least, begin = dict.fromkeys(ways, 1e9), time.perf_counter()
            while time.perf_counter() - begin < seconds:
                for name, way in ways.items():
                    start = time.perf_counter()
                    batch = way()
                    least[name] = min(least[name], time.perf_counter() - start)
                    assert batch.shape == (rows, size)
                    del batch
            gain = min(least["plan"], least["list"]) / least["ahead"]
            cells.append({"samples": kind, "rows": rows, "bytes": size, "threads": threads, "gain": gain, "seconds": least})
            print(f"{kind} {rows} x {size} B, {threads} threads:", *(f"{name} {1e6 * own:.0f} us" for name, own in least.items()), f"gain {gain:.2f}")
good = {(cell["samples"], sizes.index((cell["rows"], cell["bytes"])), counts.index(cell["threads"])) for cell in cells if cell["gain"] >= 1.15}
# One case alone may be noise: a neighbour, by size or by threads, has to gain as much.
stays = any(good & {(kind, size + 1, threads), (kind, size, threads + 1)} for kind, size, threads in good)
found = f"copying ahead gains 15 % or more in {len(good)} of {len(cells)} cases"
print(f"{found}, of which two are neighbours: it stays" if stays else f"{found}, of which no two are neighbours: it goes")
json.dump({"ahead": cells}, open(sys.argv[1], "w"))
AHEAD
}

peers() {
    has python/bench_torch.py || return 0
    # --dry: contenders are compared, and nothing is timed.
    py "$here/python/bench_torch.py" ${simulate:+--dry} --seconds 200 --json "$FIGURES"
}

# Engines with other numbers, measured in turn by one process: those that need no kernels of their own, or the others.
trials() { # seconds, policies or kernels
    local arch
    if [[ $2 == policies ]]; then
        awk '/^#/ || !NF || $2 == "-"' "$here/trials.txt" >"$keep/trials-$2.txt"
    else
        awk '/^#/ || !NF || $2 != "-"' "$here/trials.txt" >"$keep/trials-$2.txt"
        has images/ARCHS || return 0
        arch=$(architecture)
        grep -qw "$arch" "$here/images/ARCHS" || { echo "SKIP: the trials' kernels are for $(cat "$here/images/ARCHS"), this GPU is $arch"; return 0; }
    fi
    "$here/bench/gather" --bench $quick ${simulate:+--only small} --trials "$keep/trials-$2.txt" --images "$here/images" --budget "$1" --json "$FIGURES" --table "${FIGURES%.json}.tsv"
}

architecture() {
    smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .
}

profiler() {
    found ncu /usr/local/cuda*/bin/ncu /opt/nvidia/nsight-compute/*/ncu || { echo "SKIP: ncu is not installed" >&2; return 1; }
}

# The limits of each workload, in one launch with cold caches. ncu locks the GPU to its base clock unless it is told not to, and
# takes an option once. A workload that hangs leaves time for the others.
stalls() { # workloads...
    local name file files=() ncu status=0
    ncu=$(profiler) || return 0
    for name in "$@"; do
        file=$keep/ncu-${name// /-}.csv
        if timeout -k 2 34 "$ncu" --clock-control none --csv --page raw --print-units base -k regex:windrow -c 2 \
            --section SpeedOfLight --section MemoryWorkloadAnalysis --section WarpStateStats --section SchedulerStats --section Occupancy \
            --section LaunchStats --section InstructionStats --log-file "$file" \
            "$here/bench/gather" --bench --count --only "$name" >"$keep/ncu-said.txt" 2>&1; then
            files+=("$name" "$file")
        else
            echo "FAILED: $name: $(cat "$file" "$keep/ncu-said.txt" 2>/dev/null | grep -a -m 1 -E 'ERROR|panicked|gather:')"
            status=1
        fi
    done
    ((${#files[@]} == 0)) || "$PYTHON" "$here/stalls.py" --json "$FIGURES" "${files[@]}" || status=1
    return $status
}

counts() {
    local ncu
    ncu=$(profiler) || return 0
    "$here/counts.sh" "$ncu" "$here/bench/gather" "$here/device-instructions.json" "$(architecture)" "$FIGURES"
}

# No racecheck: it watches shared memory, and the kernels have none. The API's own codes are no findings: cuEventQuery says
# "not ready" by one. The tool patches each kernel when it is loaded, and has launches wait.
sanitize() { # tool, tests of the module small, or none for all of them
    local sanitizer tool=$1
    shift
    set -- "${@/#/small::}"
    (($#)) || set -- small::
    sanitizer=$(found compute-sanitizer /usr/local/cuda*/bin/compute-sanitizer) || { echo 'SKIP: compute-sanitizer is not installed'; return 0; }
    # Then accesses beyond a sample are beyond an allocation.
    WINDROW_TEST_ALLOCATIONS=each "$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 9 "$here/tests/suite" --test-threads 1 "$@"
}

state=${WINDROW_SLOTS:-${TMPDIR:-/tmp}/windrow-slots${simulate:+-simulated}}
export here simulate quick PYTHON=${PYTHON:-python3} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# JAX would take 75 % of the memory at its first use.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
export -f $(declare -F | cut -d' ' -f3)
mkdir -p "$state"
if ((!has_queue)); then
    the_queue >"$state/queue"
    queue=$state/queue
fi
# A wheel is an archive of what it installs.
for wheel in "$here"/python/windrow-*.whl; do
    [[ -e $wheel ]] || break
    if ! cmp -s "$wheel" "$state/wheel"; then
        rm -rf "$state/site"
        "$PYTHON" -m zipfile -e "$wheel" "$state/site" && cp "$wheel" "$state/wheel"
    fi
done
export PYTHONPATH=$state/site:$here/python
[[ ! -e $here/done.jsonl ]] || options+=(--done "$here/done.jsonl")
exec "$PYTHON" -I "$here/slots.py" run --here "$here" --queue "$queue" --state "$state" --out "${OUT:-$PWD/out}" --python "$PYTHON" \
    --gpu "$([[ -n $simulate ]] || smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader | head -n 1)" \
    --release "$(uname -r)" --not-under-gvisor 'stalls counts memcheck initcheck memcheck-all' --simulate "$simulate" "${options[@]}"
