#!/bin/sh
# Lays out what a C program needs under a prefix. Usage:
#   install_publisher.sh PREFIX VERSION HEADER FLAGS [SHARED_LIBRARY|-] [STATIC_LIBRARY|-]
#
#   PREFIX/include/kvatlas_publisher.h
#   PREFIX/lib/libkvatlas_publisher.so.ABI, .so -> it; libkvatlas_publisher.a
#   PREFIX/lib/pkgconfig/kvatlas_publisher.pc, which finds them wherever the prefix is moved to
#
# FLAGS has the link options of the system libraries, for `pkg-config --static`. tools/install_publisher builds and calls it.
set -eu
[ $# -eq 6 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
prefix=$1 version=$2 header=$3 flags=$4 shared=$5 static=$6
abi=$(sed -n 's/^#define KVATLAS_PUBLISHER_ABI \([0-9]*\)u$/\1/p' "$header")
[ -n "$abi" ] || { echo "install_publisher.sh: no KVATLAS_PUBLISHER_ABI in $header" >&2; exit 1; }

install -d "$prefix/include" "$prefix/lib/pkgconfig"
install -m 644 "$header" "$prefix/include/kvatlas_publisher.h"
if [ "$shared" != - ]; then
  install -m 755 "$shared" "$prefix/lib/libkvatlas_publisher.so.$abi"
  strip --strip-unneeded "$prefix/lib/libkvatlas_publisher.so.$abi"
  ln -sf "libkvatlas_publisher.so.$abi" "$prefix/lib/libkvatlas_publisher.so"
fi
if [ "$static" != - ]; then
  install -m 644 "$static" "$prefix/lib/libkvatlas_publisher.a"
  strip --strip-debug "$prefix/lib/libkvatlas_publisher.a"
fi
cat > "$prefix/lib/pkgconfig/kvatlas_publisher.pc" << END
prefix=\${pcfiledir}/../..
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: kvatlas_publisher
Description: Tells the indexers of an LLM serving fleet which KV cache blocks an engine holds
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lkvatlas_publisher
Libs.private: $(cat "$flags") -lstdc++ -lm
END
