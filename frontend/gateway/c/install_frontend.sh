#!/bin/sh
# Lays out what a C program needs under a prefix. Usage:
#   install_frontend.sh PREFIX VERSION HEADER FLAGS [SHARED_LIBRARY|-] [STATIC_LIBRARY|-] [SENTENCEPIECE_LIBRARY|-]
#
#   PREFIX/include/kvatlas_frontend.h
#   PREFIX/lib/libkvatlas_frontend.so.ABI, .so -> it; libkvatlas_frontend.a
#   PREFIX/lib/libkvatlas_sentencepiece.so, which models of that kind need: opened beside the library, beside or below
#     ../lib of a program that has the static one in it, or wherever the system looks
#   PREFIX/lib/pkgconfig/kvatlas_frontend.pc, which finds them wherever the prefix is moved to
#
# FLAGS has the link options of the system libraries, for `pkg-config --static`. tools/install_frontend builds and calls it.
set -eu
[ $# -eq 7 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
prefix=$1 version=$2 header=$3 flags=$4 shared=$5 static=$6 sentencepiece=$7
abi=$(sed -n 's/^#define KVATLAS_FRONTEND_ABI \([0-9]*\)u$/\1/p' "$header")
[ -n "$abi" ] || { echo "install_frontend.sh: no KVATLAS_FRONTEND_ABI in $header" >&2; exit 1; }

install -d "$prefix/include" "$prefix/lib/pkgconfig"
install -m 644 "$header" "$prefix/include/kvatlas_frontend.h"
if [ "$shared" != - ]; then
  install -m 755 "$shared" "$prefix/lib/libkvatlas_frontend.so.$abi"
  strip --strip-unneeded "$prefix/lib/libkvatlas_frontend.so.$abi"
  ln -sf "libkvatlas_frontend.so.$abi" "$prefix/lib/libkvatlas_frontend.so"
fi
if [ "$static" != - ]; then
  install -m 644 "$static" "$prefix/lib/libkvatlas_frontend.a"
  strip --strip-debug "$prefix/lib/libkvatlas_frontend.a"
fi
if [ "$sentencepiece" != - ]; then
  install -m 755 "$sentencepiece" "$prefix/lib/libkvatlas_sentencepiece.so"
  strip --strip-unneeded "$prefix/lib/libkvatlas_sentencepiece.so"
fi
libraries=$(cat "$flags")
cat > "$prefix/lib/pkgconfig/kvatlas_frontend.pc" << END
prefix=\${pcfiledir}/../..
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: kvatlas_frontend
Description: Chooses the worker of an LLM serving fleet that has most of a prompt in its KV cache
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lkvatlas_frontend
Libs.private: $libraries -lstdc++ -lm
END
