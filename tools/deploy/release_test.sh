#!/usr/bin/env bash
# What does tools/deploy/release refuse before it builds anything, and does it make nothing of half a folder?
set -euo pipefail
release=$PWD/tools/deploy/release
scratch=$(cd "$TEST_TMPDIR" && pwd -P)
fail() { echo "FAIL: $*" >&2; exit 1; }
"$release" --help | grep -q 'wheels, Debian package, container image' || fail "--help does not say what it makes"
said=$("$release" --only=rpm --out "$scratch/a" 2>&1) && fail "--only=rpm was taken"
grep -q 'expected wheel, deb or image' <<< "$said" || fail "said: $said"
[ ! -e "$scratch/a" ] || fail "a folder was made"
said=$("$release" --bin "$scratch/nowhere" 2>&1) && fail "a folder that is not there was taken"
grep -q 'no folder' <<< "$said" || fail "said: $said"
mkdir "$scratch/bin"
said=$("$release" --only=wheel --bin "$scratch/bin" --out "$scratch/b" 2>&1) && fail "an empty folder was taken"
grep -q 'no .*kvatlas' <<< "$said" || fail "said: $said"
[ ! -e "$scratch/b/SHA256SUMS" ] || fail "sums of nothing"
echo "tools/deploy/release: as documented"
