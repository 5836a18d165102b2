#!/usr/bin/env bash
# Builds out/gpu-check.tar.gz: everything that checks and times the CUDA engine on a machine that has a GPU
# and nothing else, no Rust, no toolkit, no network. Then runs its queue, slots.sh, if there is a GPU here.
#
# usage: scripts/gpu/bundle.sh [--simulate] [--no-run]
#
# With --simulate it is out/gpu-check-simulated.tar.xz: the simulated driver goes along, and the queue runs on it, in its
# short form, from the packed file in another folder.
#
# The wheel under target/wheels goes along. $WINDROW_CUDA_ARCHS limits what kernels are compiled for,
# $WINDROW_SWEEP_ARCHS what those of the trials are (90; empty, or with --simulate, for none); $PYO3_PYTHON
# names the Python whose packages hold nvcc. WINDROW_CUDA_ARCHS=90 WINDROW_SWEEP_ARCHS=90 is the bundle for an H100 or H200.
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
cd "$(dirname "$0")/../.."

simulate=0 and_run=1
for argument in "$@"; do
    case $argument in
    --simulate) simulate=1 ;;
    --no-run) and_run=0 ;;
    *) echo "unknown argument $argument" >&2; exit 2 ;;
    esac
done

# Test programs that never ask for a device: a GPU has nothing to say of them.
HOST_ONLY=(corpus sweep_memory tracing)
cargo=${CARGO:-cargo}
sweep_archs=${WINDROW_SWEEP_ARCHS-90}
if ((simulate)); then
    sweep_archs=
fi
to=out/gpu-check
rm -rf "$to"
mkdir -p "$to/tests" "$to/bench" "$to/python" "$to/images"
# The programs share one image, which slots.sh names to them. With --simulate they are the programs of `make test`, so that
# nothing is compiled again: these have an image each, and take the one that is named in its place.
image=windrow.fatbin
if ! ((simulate)); then
    image=separate.fatbin
    export WINDROW_CUDA_EMBED=0
fi

# Copies the crate's programs that a cargo command builds, without symbols and without cargo's suffix, and their image.
programs() {
    local folder=$1 file name messages
    shift
    messages=$("$@" --message-format=json)
    grep -F "\"manifest_path\":\"$PWD/Cargo.toml\"" <<<"$messages" | grep -o '"executable":"[^"]*"' | cut -d'"' -f4 | while read -r file; do
        name=$(basename "${file%-*}")
        [[ " ${HOST_ONLY[*]} " == *" $name "* ]] || strip -o "$folder/$name" "$file"
    done
    grep '"build-script-executed"' <<<"$messages" | grep -o '"out_dir":"[^"]*"' | cut -d'"' -f4 | while read -r file; do
        [[ ! -s $file/$image ]] || cp "$file/$image" "$to/images/windrow.fatbin"
    done
    [[ -s $to/images/windrow.fatbin ]]
}

# The same search as build/nvcc.rs.
nvcc() {
    local candidate
    for candidate in "${NVCC:-}" "${CUDA_HOME:-}/bin/nvcc" "$(command -v nvcc)" "$(packaged nvcc)"; do
        if [[ -x $candidate && ! -d $candidate ]]; then
            echo "$candidate"
            return
        fi
    done
}

packaged() {
    "${PYO3_PYTHON:-python3}" -c "import nvidia; print(list(nvidia.__path__)[0] + '/cu13/bin/$1')" 2>/dev/null
}

# NVIDIA's batched copy, copy kernels: peers of the bench.
peers() {
    local compiler root arches=()
    compiler=$(nvcc)
    [[ -n $compiler ]] || { echo "no nvcc"; return 1; }
    root=$(dirname "$(dirname "$compiler")")
    if ((simulate)); then
        arches=(-arch=sm_90) # they compile, and never run there
    elif [[ -n ${WINDROW_CUDA_ARCHS:-} ]]; then
        for arch in ${WINDROW_CUDA_ARCHS//,/ }; do
            arches+=("-gencode=arch=compute_$arch,code=sm_$arch")
        done
    else
        arches=(-arch=all-major)
    fi
    "$compiler" -shared -O3 -std=c++17 "${arches[@]}" -cudart static -L"$root/lib" -L"$root/lib64" \
        -Xcompiler -fPIC,-fvisibility=hidden,-static-libstdc++,-static-libgcc \
        -Xlinker --exclude-libs,ALL,--gc-sections \
        -o "$to/bench/libpeers.so" benches/gather/peers.cu && strip "$to/bench/libpeers.so"
}

# Kernels with other numbers, for the slot `sweep`, kept where build.rs keeps its image: they take minutes.
trials() {
    local compiler name flags arch key file images=$to/images targets=() cache=${WINDROW_KERNEL_CACHE:-target/kernels}
    compiler=$(nvcc)
    [[ -n $compiler ]] || { echo "no nvcc"; return 1; }
    echo "$sweep_archs" >"$images/ARCHS"
    for arch in ${sweep_archs//,/ }; do
        targets+=("-gencode=arch=compute_$arch,code=sm_$arch")
    done
    mkdir -p "$cache"
    while read -r name flags _; do
        [[ -z $name || $name == '#'* || $flags == - ]] && continue
        key=$({ "$compiler" --version; echo "$flags ${targets[*]}"; sha256sum kernels/*; } | sha256sum | cut -c 1-16)
        file=$cache/trial-$key.fatbin
        echo "$file" "$images/$name.fatbin" "${targets[@]}" ${flags//,/ }
    done <scripts/gpu/runner/trials.txt >"$to/trials"
    # Two at a time. Another build may look for a file at the same time, so it appears whole.
    xargs -P 2 -L 1 bash -c '
        [[ -s $1 ]] || { "$0" -fatbin -O3 -std=c++17 -Xfatbin=-compress-all "${@:3}" kernels/windrow.cu -o "$1.$$" && mv "$1.$$" "$1"; } || exit 255
        cp "$1" "$2"' "$compiler" <"$to/trials"
    rm "$to/trials"
}

# A line for each architecture: its number, or ptx for what the driver compiles, and a hash of the code, but for the number
# in names of functions that depends on where and for what else it was compiled.
kernel_hashes() { # image
    local tool work file arch
    tool=$(dirname "$(nvcc)")/cuobjdump
    [[ -x $tool ]] || { echo "no $tool: without it a bundle cannot say which kernels it has" >&2; return 1; }
    work=$(mktemp -d)
    (cd "$work" && "$tool" --extract-elf all "$1" && "$tool" --extract-ptx all "$1") >/dev/null 2>&1
    for file in "$work"/*.cubin; do
        arch=$(grep -o 'sm_[0-9]*' <<<"${file##*/}")
        echo "${arch#sm_} $(hash_of "$file")"
    done
    if compgen -G "$work/*.ptx" >/dev/null; then
        echo "ptx $(hash_of "$work"/*.ptx)"
    fi
    rm -r "$work"
}

hash_of() { # files
    LC_ALL=C sed -E 's/_INTERNAL_[0-9a-f]{8}_/_INTERNAL_/g' "$@" | sha256sum | cut -c 1-12
}

# A hash of what the engine and the package are made of, also of files that are not committed, and of the tests and benches that
# go along: what they did not ask before is not answered.
engine_hash() {
    {
        git ls-files -z --cached --others --exclude-standard -- src crates/windrow-driver python/src python/python Cargo.lock
        find "$to/python" -name '*.py' -print0
    } | LC_ALL=C sort -zu | while IFS= read -r -d '' file; do
        [[ ! -f $file ]] || sha256sum "$file"
    done | sha256sum | cut -c 1-12
}

# Existing files come first: a missing one is reported before minutes of building.
# The tests of devices, with what they import, which is of other tests too; test_gpu_slots.py knows what has to be here.
helpers=(conftest cuda_harness dlpack_harness gpu_harness helpers isolated oracle torch_standin test_arrow test_arrow_hostile)
tests=(cuda cuda_keep_alive cuda_streams cuda_torch cuda_captures cuda_calls resident arena arrow_devices cuda_moves cuda_move_ids cuda_packed)
tests+=(torch_prefetch torch_workers torch_collate torch_pools torch_locked gpu_values gpu_order gpu_memory gpu_graphs gpu_libraries gpu_ops)
benches=(bench_torch torch_batches torch_measure torch_moves native_peers torch_samples torch_triton torch_workload)
mkdir "$to/python/tests"
missing=()
take() { # file, folder
    if [[ -f $1 ]]; then cp "$1" "$2"; else missing+=("$1"); fi
}
for name in "${helpers[@]}"; do
    take "python/tests/$name.py" "$to/python/tests"
done
for name in "${tests[@]}"; do
    take "python/tests/test_$name.py" "$to/python/tests"
done
for name in "${benches[@]}"; do
    take "benches/gather/$name.py" "$to/python"
done
wheel=$(ls -t target/wheels/windrow-*.whl 2>/dev/null | head -n 1 || true)
take "${wheel:-target/wheels/windrow-*.whl}" "$to/python"
# The wheel keeps the architectures of the day that it was built on.
if [[ -n $wheel ]] && ! ((simulate)); then
    archs=${WINDROW_CUDA_ARCHS:-}
    for arch in ${archs//,/ }; do
        "${PYTHON:-python3}" -m zipfile -e "$wheel" "$to/wheel"
        grep -aq "sm_$arch" "$to"/wheel/windrow/_windrow*.so || missing+=("kernels for sm_$arch in $wheel: remove .venv/.windrow")
        rm -r "$to/wheel"
    done
fi
if ((${#missing[@]})); then
    printf 'not in the bundle: %s\n' "${missing[@]}" >&2
    ((simulate)) || exit 1
fi

# Simulated, the bench is not an optimised one: its times mean nothing there.
if ((simulate)); then
    programs "$to/tests" "$cargo" test-all --tests --no-run
    programs "$to/bench" "$cargo" test-all --bench gather --no-run
else
    programs "$to/tests" "$cargo" test --locked --features cuda --tests --no-run
    programs "$to/bench" "$cargo" bench --locked --features cuda --bench gather --no-run
fi
peers
if [[ -n $sweep_archs ]]; then
    trials
fi

if ((simulate)); then
    strip -o "$to/libcudasim.so" "$(scripts/sim/simulated_driver.sh)"
fi
cp scripts/gpu/slots.sh scripts/gpu/runner/{slots.py,stalls.py,counts.sh,driver.sh,trials.txt,README.md} benches/device-instructions.json "$to"
# The answers of other machines.
[[ ! -f benches/results/gpu/done.jsonl ]] || cp benches/results/gpu/done.jsonl "$to"
git describe --always --dirty --abbrev=12 >"$to/COMMIT"
engine_hash >"$to/ENGINE"
kernel_hashes "$PWD/$to/images/windrow.fatbin" >"$to/KERNELS"

# The versions of the C library that the programs need.
glibc=$(objdump -T "$to"/tests/* "$to"/bench/* | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
echo "${glibc#GLIBC_}" >"$to/GLIBC"
# The simulated programs have an image each: a dictionary of more than one program finds all but the first.
file=out/gpu-check.tar.gz
if ((simulate)); then
    file=out/gpu-check-simulated.tar.xz
    XZ_OPT=--lzma2=preset=1,dict=64MiB tar -C out -cJf "$file" gpu-check
else
    tar -C out -czf "$file" gpu-check
fi
packed=$(du -m "$file" | cut -f1)
echo "$file: $packed MiB, $(du -sm "$to" | cut -f1) MiB unpacked, needs glibc ${glibc#GLIBC_}"
# A machine that is lent takes 64 MiB, and the tree goes there too.
if ((packed >= 30)); then
    echo "$file is too large: the limit is 30 MiB; see WINDROW_CUDA_ARCHS" >&2
    exit 1
fi

if ((simulate)); then
    elsewhere=$(mktemp -d)
    trap 'rm -rf "$elsewhere"' EXIT
    tar -C "$elsewhere" -xJf "$file"
    cd "$elsewhere/gpu-check"
    OUT=$PWD/results WINDROW_SLOTS=$elsewhere/state ./slots.sh --simulate --short --budget 1200
elif ((and_run)); then
    if "$to/slots.sh" --has-gpu; then
        exec "$to/slots.sh" --budget 7200
    fi
    echo "no GPU here: copy out/gpu-check.tar.gz to a machine with one, unpack it and start ./slots.sh there"
fi
