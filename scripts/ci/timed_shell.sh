#!/usr/bin/env bash
# A shell for make that says how long a line of a recipe took, if it took five seconds or more.
#
# usage: make SHELL="$PWD/scripts/ci/timed_shell.sh" TARGET ...
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
status=0
/bin/sh "$@" || status=$?
((SECONDS < 5)) || echo "timed_shell.sh: $SECONDS s: ${2:0:120}" >&2
exit "$status"
