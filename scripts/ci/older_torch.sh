#!/usr/bin/env bash
# The operators' tests (values, gradients, opcheck, refusals, graphs) with an older release of PyTorch, in an environment of its own
# in target/, with the newest wheel of target/wheels, which `make demo` builds.
#
# usage: scripts/ci/older_torch.sh [VERSION [ARGUMENT ...]]     2.5.1 unless given; arguments of pytest, such as -m "not slow"
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
cd "$(dirname "$0")/../.."
version=${1:-2.5.1}
[[ $version =~ ^[0-9]+\.[0-9]+(\.[0-9]+)?$ ]] || { echo "$0: $version is no version" >&2; exit 2; }
shift $(($# > 0))
env=target/torch-$version
[[ -x $env/bin/python ]] || "${PYTHON:-python3}" -m venv "$env"
"$env/bin/python" -m pip install --quiet --disable-pip-version-check "torch==$version" 'numpy<2' pytest
"$env/bin/python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps "$(ls -t target/wheels/windrow-*.whl | head -1)"
WINDROW_CUDA_DRIVER=none "$env/bin/python" -m pytest -q -rs -p no:cacheprovider "$@" python/tests/test_torch_ops.py \
    python/tests/test_torch_ops_refusals.py python/tests/test_torch_ops_compile.py
