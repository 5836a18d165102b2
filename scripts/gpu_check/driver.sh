# Sourced by run and sweep, with `here` set: which driver, and what commit.

has_gpu() {
    nvidia-smi -L 2>/dev/null | grep -q '^GPU' || [[ -e /dev/nvidia0 || -e /dev/dxg ]]
}

# The simulated driver beside this file, or at the path that is given.
use_simulator() {
    WINDROW_CUDA_DRIVER=$(realpath "${1:-$here/libcudasim.so}") || exit 2
    [[ -f $WINDROW_CUDA_DRIVER ]] || { echo "no $WINDROW_CUDA_DRIVER" >&2; exit 2; }
    export WINDROW_CUDA_DRIVER CUDASIM_DELAY_US=0
}

# Where containers have the driver, if the loader does not know.
if ! ldconfig -p 2>/dev/null | grep -q libcuda.so.1 && [[ -e /usr/local/nvidia/lib64/libcuda.so.1 ]]; then
    export LD_LIBRARY_PATH=/usr/local/nvidia/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
export WINDROW_REQUIRE_GPU=1 WINDROW_COMMIT=$(cat "$here/COMMIT")
