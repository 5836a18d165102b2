#!/usr/bin/env bash
# Builds out/gpu-check/: everything that checks and times the CUDA engine on a machine that has a GPU
# and nothing else, no Rust, no toolkit, no network. Then runs it if there is a GPU here.
#
# usage: scripts/gpu/bundle.sh [--simulate] [--no-run]
#
# With --simulate the simulated driver goes along, and both parts of the bundle's ./run.sh pass on it, from the
# packed file in another folder.
#
# A wheel under target/wheels goes along. $WINDROW_CUDA_ARCHS limits what kernels are compiled for,
# $WINDROW_SWEEP_ARCHS what the trials of `sweep.sh` are (90; empty, or with --simulate, for none); $PYO3_PYTHON
# names the Python whose packages hold nvcc.
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
HOST_ONLY=(ahead corpus options tracing)
cargo=${CARGO:-cargo}
sweep_archs=${WINDROW_SWEEP_ARCHS-90}
if ((simulate)); then
    sweep_archs=
fi
to=out/gpu-check
rm -rf "$to"
mkdir -p "$to/tests" "$to/bench" "$to/python" "$to/images"
# The programs share one image, which ./run.sh names to them. With --simulate they are the programs of `make test`, so that
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

# NVIDIA's batched copy, copy kernels: peers of the bench, which runs without them too.
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

# Kernels with other numbers, for the sweep.
trials() {
    local compiler name flags arch images=$to/images targets=()
    compiler=$(nvcc)
    [[ -n $compiler ]] || { echo "no nvcc"; return 1; }
    echo "$sweep_archs" >"$images/ARCHS"
    for arch in ${sweep_archs//,/ }; do
        targets+=("-gencode=arch=compute_$arch,code=sm_$arch")
    done
    # Two at a time.
    grep -v '^#' scripts/gpu/runner/trials.txt | while read -r name flags _; do
        [[ -z $name || $flags == - ]] || echo "$images/$name.fatbin ${flags//,/ }"
    done | xargs -P 2 -L 1 "$compiler" -fatbin -O3 -std=c++17 -Xfatbin=-compress-all "${targets[@]}" \
        kernels/windrow.cu -o
}

# Simulated, the bench is not an optimised one: its times mean nothing there.
if ((simulate)); then
    programs "$to/tests" "$cargo" test-all --tests --no-run
    programs "$to/bench" "$cargo" test-all --bench gather --no-run
else
    programs "$to/tests" "$cargo" test --locked --features cuda --tests --no-run
    programs "$to/bench" "$cargo" bench --locked --features cuda --bench gather --no-run
fi
peers 2>"$to/peers.log" || echo "libpeers.so is left out: $(tail -n 1 "$to/peers.log")"
rm -f "$to/peers.log"
if [[ -n $sweep_archs ]]; then
    trials
fi

wheel=$(ls -t target/wheels/windrow-*.whl 2>/dev/null | head -n 1 || true)
if [[ -n $wheel ]]; then
    cp "$wheel" scripts/gpu/runner/interop.py "$to/python"
    # The tests of devices alone, with what they import, which is of other tests too.
    mkdir "$to/python/tests"
    cp python/tests/{conftest,cuda_harness,dlpack_harness,helpers,isolated,oracle,torch_standin}.py \
        python/tests/test_{cuda*,resident,torch_prefetch,torch_workers,torch_collate}.py "$to/python/tests"
else
    echo "no wheel under target/wheels: Python is left out (make gpu-check builds one)"
fi
if ((simulate)); then
    strip -o "$to/libcudasim.so" "$(scripts/sim/simulated_driver.sh)"
fi
cp scripts/gpu/runner/{run.sh,sweep.sh,counts.sh,driver.sh,trials.txt,README.md} benches/device-instructions.json "$to"
git describe --always --dirty --abbrev=12 >"$to/COMMIT" 2>/dev/null || echo unknown >"$to/COMMIT"

# What the programs ask of the C library.
glibc=$(objdump -T "$to"/tests/* "$to"/bench/* | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
echo "${glibc#GLIBC_}" >"$to/GLIBC"
tar -C out -czf out/gpu-check.tar.gz gpu-check
packed=$(du -m out/gpu-check.tar.gz | cut -f1)
echo "$to: $(du -sm "$to" | cut -f1) MiB, $packed MiB packed, needs glibc ${glibc#GLIBC_}"
# What a machine that is lent takes is 64 MiB, packed. The simulated bundle, whose programs have an image each, is the larger one.
if ((packed >= 60)); then
    echo "out/gpu-check.tar.gz is too large: the limit is 60 MiB" >&2
    exit 1
fi

if ((simulate)); then
    elsewhere=$(mktemp -d)
    trap 'rm -rf "$elsewhere"' EXIT
    tar -C "$elsewhere" -xzf out/gpu-check.tar.gz
    for part in check bench; do
        (cd "$elsewhere/gpu-check" && OUT=$PWD/results ./run.sh --simulate "$part")
    done
elif ((and_run)); then
    if "$to/run.sh" --has-gpu; then
        exec "$to/run.sh"
    fi
    echo "no GPU here: copy $to to a machine with one and start ./run.sh there"
fi
