#!/usr/bin/env bash
# A shell for make that says how long a line of a recipe took, if it took five seconds or more.
#
# usage: make SHELL="$PWD/scripts/ci/timed_shell.sh" TARGET ...
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
status=0
/bin/sh "$@" || status=$?
# What make sets up for each line is left out.
line=${2##*target/kernels }
((SECONDS < 5)) || echo "timed_shell.sh: $SECONDS s: ${line:0:120}" >&2
exit "$status"
