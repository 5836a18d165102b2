# A library, sourced by slots.sh with `here` set: which driver, which kernels, and what commit.

# nvidia-smi hangs where a GPU has failed.
smi() {
    timeout -k 5 20 nvidia-smi "$@" 2>/dev/null
}

has_gpu() {
    smi -L | grep -q '^GPU' || [[ -e /dev/nvidia0 || -e /dev/dxg ]]
}

# The simulated driver beside this file, or at the path that is given.
use_simulator() {
    WINDROW_CUDA_DRIVER=$(realpath "${1:-$here/libcudasim.so}") || exit 2
    [[ -f $WINDROW_CUDA_DRIVER ]] || { echo "no $WINDROW_CUDA_DRIVER" >&2; exit 2; }
    export WINDROW_CUDA_DRIVER CUDASIM_DELAY_US=0
}

# The driver's place in containers, if the loader does not know it.
if ! ldconfig -p 2>/dev/null | grep -q libcuda.so.1 && [[ -e /usr/local/nvidia/lib64/libcuda.so.1 ]]; then
    export LD_LIBRARY_PATH=/usr/local/nvidia/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
# The programs of the bundle have no kernels of their own; the wheel has.
export WINDROW_CUDA_IMAGE=$here/images/windrow.fatbin
export WINDROW_REQUIRE_GPU=1 WINDROW_COMMIT=$(cat "$here/COMMIT")
