#!/bin/sh
# Lays out what a C or C++ program needs under a prefix. Usage:
#   install_publisher.sh PREFIX VERSION HEADER FLAGS [SHARED_LIBRARY|-] [STATIC_LIBRARY|-] [SOURCES]
#
#   PREFIX/include/kvatlas_publisher.h
#   PREFIX/include/kvatlas/publisher/publisher.h and what it includes: with SOURCES, the root of the repository
#   PREFIX/lib/libkvatlas_publisher.so.ABI, .so -> it; libkvatlas_publisher.a
#   PREFIX/lib/pkgconfig/kvatlas_publisher.pc, which finds them wherever the prefix is moved to; programs linked by it look for
#       the shared library there (rpath)
#   PREFIX/lib/pkgconfig/kvatlas_publisher_static.pc, the static library whether there is a shared one or not, for C and C++
#
# FLAGS has the link options of the system libraries that the static library needs. tools/install_publisher builds and calls it.
set -eu
[ $# -eq 6 ] || [ $# -eq 7 ] || { sed -n '2,13s/^# \{0,1\}//p' "$0" >&2; exit 2; }
prefix=$1 version=$2 header=$3 flags=$4 shared=$5 static=$6 sources=${7:-}
abi=$(sed -n 's/^#define KVATLAS_PUBLISHER_ABI \([0-9]*\)u$/\1/p' "$header")
[ -n "$abi" ] || { echo "install_publisher.sh: no KVATLAS_PUBLISHER_ABI in $header" >&2; exit 1; }

# A header of the C++ interface and all that it includes of this repository.
install_cpp() {
  todo=$1 done=
  while [ -n "$todo" ]; do
    next=
    for each in $todo; do
      case " $done " in *" $each "*) continue ;; esac
      done="$done $each"
      [ -f "$sources/$each" ] || continue # Abseil's
      install -D -m 644 "$sources/$each" "$prefix/include/kvatlas/$each"
      next="$next $(sed -n 's/^#include "\(.*\)"$/\1/p' "$sources/$each" | tr '\n' ' ')"
    done
    todo=${next# }
  done
}

# NAME LIBS [LIBS.PRIVATE]
write_pc() {
  cat > "$prefix/lib/pkgconfig/$1.pc" << END
prefix=\${pcfiledir}/../..
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: $1
Description: Tells the indexers of an LLM serving fleet which KV cache blocks an engine holds
Version: $version
Cflags: -I\${includedir} -I\${includedir}/kvatlas
Libs: $2
END
  [ $# -lt 3 ] || echo "Libs.private: $3" >> "$prefix/lib/pkgconfig/$1.pc"
}

install -d "$prefix/include" "$prefix/lib/pkgconfig"
install -m 644 "$header" "$prefix/include/kvatlas_publisher.h"
[ -z "$sources" ] || install_cpp publisher/publisher.h
if [ "$shared" != - ]; then
  install -m 755 "$shared" "$prefix/lib/libkvatlas_publisher.so.$abi"
  strip --strip-unneeded "$prefix/lib/libkvatlas_publisher.so.$abi"
  ln -sf "libkvatlas_publisher.so.$abi" "$prefix/lib/libkvatlas_publisher.so"
fi
needs="$(cat "$flags") -lstdc++ -lm"
if [ "$static" != - ]; then
  install -m 644 "$static" "$prefix/lib/libkvatlas_publisher.a"
  strip --strip-debug "$prefix/lib/libkvatlas_publisher.a"
  write_pc kvatlas_publisher_static "-L\${libdir} -l:libkvatlas_publisher.a $needs"
fi
write_pc kvatlas_publisher "-L\${libdir} -Wl,-rpath,\${libdir} -lkvatlas_publisher" "$needs"
