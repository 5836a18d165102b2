#!/usr/bin/env bash
# Checks that the library builds with the oldest compiler that Cargo.toml promises (rust-version).
# Takes a rustup toolchain of that version if there is one, else Debian's packages of it, unpacked
# under target/msrv without installing. Prints SKIP and the reason where there is neither.
#
# usage: scripts/ci/msrv.sh [ARGUMENT of cargo, such as --features cuda ...]
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
cd "$(dirname "$0")/../.."

msrv=$(sed -n 's/^rust-version *= *"\([0-9.]*\)"$/\1/p' Cargo.toml)
root=$PWD/target/msrv
log=$root/log
arguments=("$@")

skip() {
    echo "SKIP: Rust $msrv was not checked: $1"
    exit 0
}

check() {
    echo "checking the library with $("$@" rustc --version) ${arguments[*]}"
    "$@" env CARGO_TARGET_DIR="$root/build" cargo check --locked -p windrow "${arguments[@]}"
}

# The newest version of a package that is of the wanted release, or nothing.
version_of() {
    apt-cache madison "$1" 2>/dev/null | awk -v want="$msrv." '{ if (index($3, want) == 1) { print $3; exit } }'
}

# Unpacks the compiler, its standard library and its LLVM.
unpack() {
    local version packages
    version=$(version_of rustc-web)
    [[ -n $version ]] || version=$(apt-get update >>"$log" 2>&1; version_of rustc-web)
    [[ -n $version ]] || skip "apt knows no rustc-web $msrv"
    mkdir -p "$root/debs"
    cd "$root/debs"
    packages=("rustc-web=$version" "libstd-rust-web-dev=$version" "libstd-rust-web-$msrv=$version")
    apt-get download "${packages[@]}" >>"$log" 2>&1 || skip "apt could not download ${packages[*]}"
    packages=($(dpkg -f "libstd-rust-web-${msrv}_"*.deb Depends | grep -o 'libllvm[0-9]*'))
    apt-get download "${packages[@]}" >>"$log" 2>&1 || skip "apt could not download ${packages[*]}"
    rm -rf "$root/usr"
    for deb in ./*.deb; do
        dpkg -x "$deb" "$root"
    done
    cd - >/dev/null
    rm -r "$root/debs"
}

with_debian() {
    local lib llvm
    lib=$(dirname "$(find "$root/usr/lib" -name 'librustc_driver-*.so' | head -n 1)")
    llvm=$(dirname "$(find "$root/usr/lib" -name 'libLLVM*.so*' | head -n 1)")
    # RUSTC_WRAPPER would go around the compiler meant; cargo itself is the one installed.
    LD_LIBRARY_PATH=$lib:$llvm:$root/usr/lib PATH=$root/usr/bin:$PATH RUSTC=$root/usr/bin/rustc RUSTC_WRAPPER='' "$@"
}

mkdir -p "$root"
: >"$log"
if command -v rustup >/dev/null && rustup toolchain list | grep -q "^$msrv[.-]"; then
    check rustup run "$(rustup toolchain list | grep -o "^$msrv[^ ]*" | head -n 1)"
elif command -v apt-get >/dev/null && command -v dpkg >/dev/null; then
    [[ -x $root/usr/bin/rustc ]] || unpack
    with_debian rustc --version >/dev/null 2>>"$log" || skip "the unpacked rustc does not start, see ${log#"$PWD"/}"
    check with_debian
else
    skip "no rustup toolchain $msrv (rustup toolchain install $msrv) and no apt-get"
fi
