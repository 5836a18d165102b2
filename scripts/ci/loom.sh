#!/usr/bin/env bash
# Tries out how threads can meet (src/sync/mod.rs), with the code of the library itself: what the host's do in every
# interleaving that loom finds, up to so many preemptions. Arguments go to the tests.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-target}/model

# Not optimised: that takes longer than it saves.
RUSTFLAGS="--cfg windrow_loom" CARGO_PROFILE_TEST_OPT_LEVEL=0 LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-3} \
    "$cargo" test --target-dir "$target/loom" --locked --lib -- model_tests "$@"
