#!/usr/bin/env bash
# Builds and runs the C and the C++ example of crates/capi, with the shared and the static library; under valgrind if it
# is installed.
#
# usage: scripts/ci/capi_examples.sh
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
[[ $# == 0 ]] || { echo "$0: unknown argument $1" >&2; exit 2; }
cd "$(dirname "$0")/../.."
# As `make test-host` has built it.
case $(uname -sm) in
Linux\ x86_64 | Linux\ aarch64) "${CARGO:-cargo}" build-for-tests --quiet ;;
*) "${CARGO:-cargo}" build --locked --quiet --profile test -p windrow -p windrow-capi --features windrow/tracing ;;
esac
libraries=${CARGO_TARGET_DIR:-target}/debug
to=$libraries/capi-examples
mkdir -p "$to"
flags=(-Wall -Wextra -Werror -g -Icrates/capi/include)
system=(-lpthread -ldl -lm)
[[ $(uname -s) == Linux ]] || system=()
# The header by itself, by every standard that it promises.
for standard in c99 c11; do
    cc -std="$standard" -pedantic "${flags[@]}" -fsyntax-only -x c - <<<'#include "windrow.h"'
done
c++ -std=c++17 -pedantic "${flags[@]}" -fsyntax-only -x c++ - <<<'#include "windrow.h"'
cc -std=c11 -pedantic "${flags[@]}" crates/capi/examples/pad.c -o "$to/pad" -L"$libraries" -lwindrow_capi "-Wl,-rpath,$PWD/$libraries"
c++ -std=c++17 -pedantic "${flags[@]}" crates/capi/examples/normalise.cpp -o "$to/normalise" "$libraries/libwindrow_capi.a" "${system[@]}"
checked=()
if command -v valgrind >/dev/null; then
    checked=(valgrind --quiet --error-exitcode=1 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite)
else
    echo "SKIP valgrind over the C examples: not installed"
fi
got=$(${checked[@]+"${checked[@]}"} "$to/pad")
wanted='1 2 3 
4 (-1) (-1) 
5 6 (-1) 
sample 1: expected shape (3,), got (1,); sample 2: got (2,); form = WINDROW_FORM_PAD takes samples of different shapes
0 3 4 6 (at most 3)'
if [[ $got != "$wanted" ]]; then
    printf 'crates/capi/examples/pad.c printed\n%s\ninstead of\n%s\n' "$got" "$wanted" >&2
    exit 1
fi
${checked[@]+"${checked[@]}"} "$to/normalise"
