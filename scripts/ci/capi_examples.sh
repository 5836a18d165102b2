#!/usr/bin/env bash
# Installs the C library into a folder, and builds and runs the C and the C++ example of crates/capi with it: by the
# compiler alone, by the project with a Makefile and pkg-config, and by that with CMake, as far as these are installed; under
# valgrind if that is. Then the two programs of docs/c.md. The library has to have the binary interface of
# crates/capi/abi.txt.
#
# usage: scripts/ci/capi_examples.sh
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
[[ $# == 0 ]] || { echo "$0: unknown argument $1" >&2; exit 2; }
cd "$(dirname "$0")/../.."
# The library is the one that `make test-host` has built.
case $(uname -sm) in
Linux\ x86_64 | Linux\ aarch64) "${CARGO:-cargo}" build-for-tests --quiet ;;
*) "${CARGO:-cargo}" build --locked --quiet --profile test -p windrow -p windrow-capi --features windrow/tracing ;;
esac
libraries=${CARGO_TARGET_DIR:-target}/debug
rm -rf "$libraries/capi-examples"
mkdir -p "$libraries/capi-examples"
to=$(cd "$libraries/capi-examples" && pwd)
flags=(-Wall -Wextra -Werror -g -pedantic -Icrates/capi/include)
# The header by itself, by every standard that it promises.
for standard in c99 c11; do
    cc -std="$standard" "${flags[@]}" -fsyntax-only -x c - <<<'#include "windrow.h"'
done
c++ -std=c++17 "${flags[@]}" -fsyntax-only -x c++ - <<<'#include "windrow.h"'

checked=()
if command -v valgrind >/dev/null; then
    checked=(valgrind --quiet --error-exitcode=1 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite)
else
    echo "SKIP valgrind over the C examples: not installed"
fi
# pad COMMAND ...: runs the C example and compares what it prints.
pad() {
    local got wanted='1 2 3 
4 (-1) (-1) 
5 6 (-1) 
sample 1: expected shape (3,), got (1,); sample 2: got (2,); form = WINDROW_FORM_PAD takes samples of different shapes
0 3 4 6 (at most 3)'
    got=$("$@")
    if [[ $got != "$wanted" ]]; then
        printf '%s printed\n%s\ninstead of\n%s\n' "$*" "$got" "$wanted" >&2
        exit 1
    fi
}

if [[ $(uname -s) != Linux ]]; then
    cc -std=c11 "${flags[@]}" crates/capi/examples/pad.c -o "$to/pad" "$libraries/libwindrow_capi.a"
    c++ -std=c++17 "${flags[@]}" crates/capi/examples/normalise.cpp -o "$to/normalise" "$libraries/libwindrow_capi.a"
    pad "$to/pad"
    "$to/normalise"
    exit
fi

# A package can be moved: the folders that it was installed into are gone when programs look for it. The second one has its
# libraries where Debian has them.
scripts/release/install_c.sh --built "$libraries" "$to/before" >/dev/null
DESTDIR=$to/before-2 scripts/release/install_c.sh --built "$libraries" --libdir lib/here /usr >/dev/null
mv "$to/before" "$to/prefix"
mv "$to/before-2/usr" "$to/prefix-2"
lib=$to/prefix/lib
flags=(-Wall -Wextra -Werror -g -pedantic "-I$to/prefix/include")
cc -std=c11 "${flags[@]}" crates/capi/examples/pad.c -o "$to/pad" "-L$lib" -lwindrow "-Wl,-rpath,$lib"
c++ -std=c++17 "${flags[@]}" crates/capi/examples/normalise.cpp -o "$to/normalise" "$lib/libwindrow.a" -lpthread -ldl -lm
pad ${checked[@]+"${checked[@]}"} "$to/pad"
${checked[@]+"${checked[@]}"} "$to/normalise"
version=$(sed -n 's/^#define WINDROW_VERSION "\(.*\)"$/\1/p' crates/capi/include/windrow.h)
interface=${version%%.*}
[[ $interface != 0 ]] || interface=${version%.*}
if ! readelf -d "$to/pad" | grep -qF "[libwindrow.so.$interface]"; then
    echo "pad does not ask for libwindrow.so.$interface" >&2
    exit 1
fi

"${PYTHON:-python3}" scripts/ci/c_abi.py --check "$lib/libwindrow.so"
# The two programs of docs/c.md: the right one runs, and valgrind sees what is wrong with the other.
for name in right wrong; do
    awk -v first="/* $name.c */" '$0 == "```" { inside = 0 } $0 == first { inside = 1 } inside' docs/c.md >"$to/$name.c"
    cc -std=c11 "${flags[@]}" "$to/$name.c" -o "$to/$name" "-L$lib" -lwindrow "-Wl,-rpath,$lib"
done
got=$(${checked[@]+"${checked[@]}"} "$to/right")
[[ $got == 'WINDROW_STATUS_OK: 2 samples' ]] || { echo "right.c of docs/c.md printed $got" >&2; exit 1; }
if [[ ${#checked[@]} -gt 0 ]]; then
    "${checked[@]}" "$to/wrong" >/dev/null 2>"$to/wrong.log" && { echo "valgrind finds nothing wrong with wrong.c of docs/c.md" >&2; exit 1; }
    grep -q 'Invalid read' "$to/wrong.log" || { cat "$to/wrong.log" >&2; exit 1; }
fi

if command -v pkg-config >/dev/null; then
    mkdir "$to/pkg-config"
    export PKG_CONFIG_PATH=$to/prefix-2/lib/here/pkgconfig
    make --silent -C crates/capi/examples/pkg-config OUT="$to/pkg-config" LDFLAGS="-Wl,-rpath,$to/prefix-2/lib/here"
    pad "$to/pkg-config/pad"
    found=$(pkg-config --modversion windrow)
    [[ $found == "$version" ]] || { echo "windrow.pc has version $found, windrow.h $version" >&2; exit 1; }
else
    echo "SKIP the C example that pkg-config builds: pkg-config is not installed"
fi
if command -v cmake >/dev/null; then
    cmake -S crates/capi/examples/cmake -B "$to/cmake" -DCMAKE_PREFIX_PATH="$to/prefix" >"$to/cmake.log" 2>&1 &&
        cmake --build "$to/cmake" >>"$to/cmake.log" 2>&1 || { cat "$to/cmake.log" >&2; exit 1; }
    pad "$to/cmake/pad"
    "$to/cmake/normalise" >/dev/null
else
    echo "SKIP the C and C++ examples that CMake builds: cmake is not installed"
fi
