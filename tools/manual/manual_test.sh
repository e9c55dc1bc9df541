#!/usr/bin/env bash
# Are there pages of the manual for all programs and commands, without a complaint of groff, and is docs/reference/flags.md what the
# programs say?
set -euo pipefail

out=$TEST_TMPDIR
failed=0
fail() {
  echo "FAILED: $*" >&2
  failed=1
}

tools/manual/manual pages "$out/man" .
count=0
while read -r page; do
  count=$((count + 1))
  name=$(basename "$page")
  [ -s "$out/man/$page" ] || { fail "$page is missing"; continue; }
  complaints=$(groff -ww -man -Tutf8 -P-c -z "$out/man/$page" 2>&1) || fail "$page: groff fails"
  [ -z "$complaints" ] || fail "$page: $complaints"
  shown=$(groff -man -Tutf8 -P-c -P-b -P-u -P-o "$out/man/$page")
  for section in NAME SYNOPSIS DESCRIPTION OPTIONS 'EXIT STATUS'; do
    grep -qx "$section" <<< "$shown" || fail "$page has no section $section"
  done
  # whatis(1): "name - what it is", on one line.
  grep -q "^ *${name%.*} - " <<< "$shown" || fail "$page: no one-line description"
done < <(tools/manual/manual list .)
[ "$count" -ge 18 ] || fail "only $count pages"
grep -q 'doctor' "$out/man/man1/kvatlas.1" || fail "kvatlas(1) does not name its commands"

# One number for all of them, on every page too.
version=$(tools/kvatlas/kvatlas --version)
version=${version#kvatlas }
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(\ \(commit\ [0-9a-f]+(-dirty)?\))?$ ]] || fail "version $version"
for program in indexer/leaf/kvatlas-leaf hierarchy/kvatlas-hierarchy frontend/kvatlas-frontend publisher/kvatlas-relay; do
  said=$($program --version)
  [ "$said" = "$(basename "$program") $version" ] || fail "$program says $said, and kvatlas $version"
done
version=${version%% *}
while read -r page; do
  grep -q "\"kvatlas $version\"" "$out/man/$page" || fail "$page is not of $version"
done < <(tools/manual/manual list .)
[ -f "docs/releases/$version.md" ] || fail "docs/releases/$version.md is missing"

# man(1) itself, where it is installed.
if command -v man > /dev/null && LC_ALL=C.UTF-8 man -l "$out/man/man8/kvatlas-leaf.8" > "$out/shown" 2> "$out/complaints"; then
  grep -q 'lease_ttl' "$out/shown" || fail "man -l shows no flags"
  [ ! -s "$out/complaints" ] || fail "man -l: $(cat "$out/complaints")"
fi

tools/manual/manual flags . > "$out/flags.md"
if ! diff -u docs/reference/flags.md "$out/flags.md" > "$out/difference"; then
  head -60 "$out/difference" >&2
  fail "docs/reference/flags.md is not what the programs say: tools/manual/manual flags > docs/reference/flags.md"
fi
exit $failed
