#!/usr/bin/env bash
# Measures everything on this machine, then writes the tables and plots of README.md and docs/ from it. Builds first, and waits
# for a quiet machine before each part (scripts/docs/quiet.sh).
#
# usage: scripts/docs/bench_publish.sh     with BENCH_FLAGS as for `make bench`
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
[[ $# == 0 ]] || { echo "$0: unknown argument $1" >&2; exit 2; }
cd "$(dirname "$0")/../.."
make .venv/.bench .venv/.test .venv/.windrow
"${CARGO:-cargo}" bench --locked --bench host --no-run
make bench QUIET=scripts/docs/quiet.sh
commit=$(git describe --always --dirty)
scripts/docs/quiet.sh scripts/ci/run.sh python benches/pipelines/run.py --commit "$commit" --json out/bench/pipelines.json
scripts/docs/readme_table.py --publish out/bench/host.json
scripts/docs/readme_table.py --publish out/bench/pipelines.json
