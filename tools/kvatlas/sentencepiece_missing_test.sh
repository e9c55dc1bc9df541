#!/usr/bin/env bash
# Where is libkvatlas_sentencepiece.so looked for, and what is said without it?
# Usage: sentencepiece_missing_test.sh KVATLAS LIBRARY
set -euo pipefail
testdata=frontend/prompt/text/testdata
there=$(mktemp -d)
trap 'rm -rf "$there"' EXIT
mkdir "$there/bin"
cp -L "$1" "$there/bin/kvatlas"

fail() { echo "FAILED: $*" >&2; exit 1; }
describe() { "$there/bin/kvatlas" tokenize --models "m=$testdata/$1" --describe; }

# Other models need none.
describe bytes > /dev/null || fail "a tokenizer.json needs the library"

if describe sentences > "$there/out" 2>&1; then fail "a tokenizer.model needs no library"; fi
for words in tokenizer.model "$there/bin/libkvatlas_sentencepiece.so" \
  "$there/bin/text/libkvatlas_sentencepiece.so" "$there/bin/../lib/libkvatlas_sentencepiece.so"; do
  grep -qF "$words" "$there/out" || fail "'$words' is not in: $(cat "$there/out")"
done

for folder in bin bin/text lib; do
  mkdir -p "$there/$folder"
  cp -L "$2" "$there/$folder/libkvatlas_sentencepiece.so"
  describe sentences > /dev/null || fail "not found in $folder"
  # Also by a program that is found by its name alone.
  PATH="$there/bin:$PATH" kvatlas tokenize --models "m=$testdata/sentences" --describe > /dev/null ||
    fail "not found in $folder by a program without a path"
  rm "$there/$folder/libkvatlas_sentencepiece.so"
done
LD_LIBRARY_PATH=$(dirname "$(readlink -f "$2")") describe sentences > /dev/null || fail "not found by name"
