#!/usr/bin/env bash
# Runs the models of how threads can meet (src/sync/mod.rs), which are made of the library's own code: loom tries every
# interleaving, up to LOOM_MAX_PREEMPTIONS (3).
#
# usage: scripts/ci/loom.sh [ARGUMENT of the tests ...]
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-target}/model

# The build is not optimised: that takes longer than it saves.
RUSTFLAGS="--cfg windrow_loom" CARGO_PROFILE_TEST_OPT_LEVEL=0 LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-3} \
    "$cargo" test --target-dir "$target/loom" --locked --lib -- model_tests "$@"
