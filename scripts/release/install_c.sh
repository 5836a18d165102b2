#!/usr/bin/env bash
# Installs the C library into a folder, on Linux: windrow.h, libwindrow as a shared and a static library, windrow.pc for
# pkg-config and windrow-config.cmake for CMake. The folder can be moved afterwards. $DESTDIR is put before it, as
# packages want it. FEATURES of crates/capi are built in: cuda. --built takes libraries that cargo has left in a folder.
#
# usage: scripts/release/install_c.sh [--libdir lib] [--features FEATURES | --built FOLDER] PREFIX
[[ ${1:-} == --help ]] && exec sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
libdir=lib features='' built='' prefix=''
while [[ $# -gt 0 ]]; do
    case $1 in
    --libdir) libdir=${2:?} && shift 2 ;;
    --features) features=${2:?} && shift 2 ;;
    --built) built=${2:?} && shift 2 ;;
    -*) echo "$0: unknown argument $1" >&2 && exit 2 ;;
    *) prefix=$1 && shift ;;
    esac
done
[[ -n $prefix ]] || { echo "usage: $0 [--libdir lib] [--features FEATURES | --built FOLDER] PREFIX" >&2; exit 2; }
[[ $(uname -s) == Linux ]] || { echo "$0: the C library is installed on Linux only; elsewhere link target/release/libwindrow_capi" >&2; exit 1; }
if [[ -z $built ]]; then
    (cd "$root" && "${CARGO:-cargo}" build --locked --release -p windrow-capi ${features:+--features "$features"})
    # Relative to the folder that cargo ran in.
    built=$(cd "$root" && realpath -m "${CARGO_TARGET_DIR:-target}")/release
fi

header=$root/crates/capi/include/windrow.h
version=$(sed -n 's/^#define WINDROW_VERSION "\(.*\)"$/\1/p' "$header")
major=${version%%.*}
minor=${version#*.} minor=${minor%%.*}
# A minor version may change structs before 1.0: see crates/capi/build.rs.
interface=$major
[[ $major != 0 ]] || interface=0.$minor
lib=${DESTDIR:-}$prefix/$libdir
mkdir -p "${DESTDIR:-}$prefix/include" "$lib/pkgconfig" "$lib/cmake/windrow"
install -m 644 "$header" "${DESTDIR:-}$prefix/include/windrow.h"
install -m 644 "$built/libwindrow_capi.a" "$lib/libwindrow.a"
install -m 755 "$built/libwindrow_capi.so" "$lib/libwindrow.so.$version"
ln -sf "libwindrow.so.$version" "$lib/libwindrow.so.$interface"
ln -sf "libwindrow.so.$interface" "$lib/libwindrow.so"

# The way from $libdir back to the prefix.
up=.. rest=$libdir
while [[ $rest == */* ]]; do
    up+=/.. rest=${rest#*/}
done
cat >"$lib/pkgconfig/windrow.pc" <<END
prefix=\${pcfiledir}/../$up
libdir=\${prefix}/$libdir
includedir=\${prefix}/include

Name: windrow
Description: Batch assembly: scattered sample tensors to one batch in one pass
Version: $version
Libs: -L\${libdir} -lwindrow
Libs.private: -lpthread -ldl -lm
Cflags: -I\${includedir}
END

cat >"$lib/cmake/windrow/windrow-config.cmake" <<END
# Targets windrow::windrow (shared) and windrow::windrow-static.
get_filename_component(_windrow_prefix "\${CMAKE_CURRENT_LIST_DIR}/../../$up" ABSOLUTE)
if(NOT TARGET windrow::windrow)
    add_library(windrow::windrow SHARED IMPORTED)
    set_target_properties(windrow::windrow PROPERTIES
        IMPORTED_LOCATION "\${_windrow_prefix}/$libdir/libwindrow.so.$version"
        IMPORTED_SONAME "libwindrow.so.$interface"
        INTERFACE_INCLUDE_DIRECTORIES "\${_windrow_prefix}/include")
    add_library(windrow::windrow-static STATIC IMPORTED)
    set_target_properties(windrow::windrow-static PROPERTIES
        IMPORTED_LOCATION "\${_windrow_prefix}/$libdir/libwindrow.a"
        INTERFACE_LINK_LIBRARIES "pthread;dl;m"
        INTERFACE_INCLUDE_DIRECTORIES "\${_windrow_prefix}/include")
endif()
unset(_windrow_prefix)
END

# A minor version may change names before 1.0, as in Cargo.
same_minor=
[[ $major != 0 ]] || same_minor="
   AND \"\${PACKAGE_FIND_VERSION_MINOR}\" EQUAL $minor"
cat >"$lib/cmake/windrow/windrow-config-version.cmake" <<END
set(PACKAGE_VERSION "$version")
if("\${PACKAGE_FIND_VERSION_MAJOR}" EQUAL $major$same_minor
   AND NOT PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
if(PACKAGE_VERSION VERSION_EQUAL PACKAGE_FIND_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
endif()
if(CMAKE_SIZEOF_VOID_P AND NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
    set(PACKAGE_VERSION_UNSUITABLE TRUE)
endif()
END
echo "windrow $version is in $prefix"
