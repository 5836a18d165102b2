#!/usr/bin/env bash
# Makes the source distribution and looks at what is in it, and at what the crates would publish.
#
# usage: scripts/release/sdist_check.sh            contents only
#        scripts/release/sdist_check.sh FOLDER     leaves it there, makes a wheel of it outside of the repository with pip,
#                                                  as a user without a wheel does, and checks that; packs and builds the
#                                                  crates too
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
[[ $# -le 1 && ${1:-} != -* ]] || { echo "$0: see --help" >&2; exit 2; }
cd "$(dirname "$0")/../.."

PYTHON=${PYTHON:-python3}
CARGO=${CARGO:-cargo}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "$1" >&2
    exit 1
}

# Every name on standard input that an archive must, or must not, have.
look_at() {
    local names=$work/names name
    cat >"$names"
    for name in "${needed[@]}"; do
        grep -qxE "$name" "$names" || fail "$1 lacks $name"
    done
    # Nothing built, nothing of other packages, no pages of the site.
    if grep -E '(^|/)(target|out|docs|shared|__pycache__)/|\.(so|pyc|whl|fatbin|png)$' "$names"; then
        fail "$1 has what does not belong there"
    fi
    echo "$1: $(wc -l <"$names") files"
}

"$PYTHON" -m maturin sdist --manifest-path python/Cargo.toml --out "$work/sdist" 2>"$work/log" || fail "$(cat "$work/log")"
archive=$(echo "$work"/sdist/*.tar.gz)
needed=(PKG-INFO pyproject.toml Cargo.lock LICENSE-MIT LICENSE-APACHE build.rs build/nvcc.rs kernels/windrow.cu
    src/lib.rs python/src/lib.rs python/windrow/py.typed 'cuda-link/lib64/.gitkeep')
tar --list --file "$archive" | sed -E 's,^[^/]*/,,' | look_at "$(basename "$archive")"

# The address of the repository is the same for both indexes.
crate_address=$(sed -n 's/^repository = "\(.*\)"$/\1/p' Cargo.toml)
sdist_address=$(tar --extract --to-stdout --file "$archive" --wildcards '*/PKG-INFO' | sed -n 's/^Project-URL: Source Code, //p')
[[ $crate_address == "$sdist_address" ]] || fail "Cargo.toml has the address \"$crate_address\", the source distribution \"$sdist_address\""
if "$PYTHON" -m twine --version >/dev/null 2>&1; then
    "$PYTHON" -m twine check --strict "$archive"
else
    echo "SKIP: twine is not installed, the long description was not rendered"
fi

needed=(Cargo.toml README.md LICENSE-MIT LICENSE-APACHE src/README.md src/lib.rs build.rs build/nvcc.rs kernels/windrow.cu
    kernels/params.h 'cuda-link/lib64/.gitkeep')
"$CARGO" package --locked --allow-dirty --list | look_at "crate windrow"
needed=(Cargo.toml README.md LICENSE-MIT LICENSE-APACHE src/lib.rs build.rs)
"$CARGO" package --locked --allow-dirty --list -p windrow-driver | look_at "crate windrow-driver"

if [[ $# -gt 0 ]]; then
    mkdir -p "$1"
    cp "$archive" "$1/"
    "$CARGO" package --locked --allow-dirty -p windrow-driver -p windrow
    "$PYTHON" -m venv "$work/env"
    mkdir "$work/elsewhere"
    (cd "$work/elsewhere" && "$work/env/bin/python" -m pip --disable-pip-version-check wheel --quiet --no-deps \
        --wheel-dir "$work/wheels" "$archive")
    "$PYTHON" scripts/release/wheel_check.py "$work"/wheels/*.whl "$work/env/bin/python"
fi
