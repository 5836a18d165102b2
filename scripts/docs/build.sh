#!/usr/bin/env bash
# Builds the documentation as a site that needs no server, into out/docs/; the reference of the Rust crate is in
# out/docs/rust/. Follows the links of the other pages too.
#
# usage: scripts/docs/build.sh
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
[[ $# == 0 ]] || { echo "$0: unknown argument $1" >&2; exit 2; }
cd "$(dirname "$0")/../.."
# The links of pages outside docs/.
scripts/docs/links.py
make --silent .venv/.docs .venv/.windrow
# The build is not quiet: that would hide the warnings before `strict` counts them, dead links among them.
NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build
${CARGO:-cargo} doc --quiet --no-deps --locked
cp -r target/doc out/docs/rust
if grep -rlE '<(script|link|img)[^>]* (src|href)="?https?:' out/docs --include='*.html'; then
    echo "these pages load something from a server" >&2
    exit 1
fi
