#!/usr/bin/env bash
# Measures everything on this machine, then writes the tables and plots of README.md and docs/ from it. Builds first, and waits
# for a quiet machine before each part (scripts/docs/quiet.sh); BENCH_FLAGS as for `make bench`.
set -euo pipefail
cd "$(dirname "$0")/../.."
make .venv/.bench .venv/.test .venv/.windrow
"${CARGO:-cargo}" bench --locked --bench host --no-run
make bench QUIET=scripts/docs/quiet.sh
commit=$(git describe --always --dirty)
scripts/docs/quiet.sh scripts/ci/run.sh python benches/pipelines/run.py --commit "$commit" --json out/bench/pipelines.json
scripts/docs/readme_table.py --publish out/bench/host.json
scripts/docs/readme_table.py --publish out/bench/pipelines.json
