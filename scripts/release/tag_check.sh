#!/usr/bin/env bash
# Checks that the sources are those of a release: version, dated entry of the changelog, address of the repository.
#
# usage: scripts/release/tag_check.sh TAG            such as v0.1.0
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
[[ $# == 1 && ${1:-} == v[0-9]* ]] || { echo "$0: see --help" >&2; exit 2; }
cd "$(dirname "$0")/../.."

version=${1#v}
fail() {
    echo "$1" >&2
    exit 1
}
workspace=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
[[ $workspace == "$version" ]] || fail "the tag is $1, Cargo.toml has version $workspace"
newest=$(grep -m 1 '^## \[' CHANGELOG.md || true)
[[ $newest =~ ^"## [$version] - "20[0-9]{2}-[0-9]{2}-[0-9]{2}$ ]] || fail "the newest entry of CHANGELOG.md is \"$newest\", wanted \"## [$version] - DATE\""
grep -q '^repository = "https://' Cargo.toml || fail "Cargo.toml has no address of the repository"
echo "$1: version, changelog and address agree"
