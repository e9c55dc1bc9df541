#!/usr/bin/env bash
# Does tools/test_versions build the tag that it is given, and test with that? In a repository of its own, with a bazel that only writes
# down what it is told.
set -euo pipefail
script=$PWD/tools/test_versions
scratch=$(cd "$TEST_TMPDIR" && pwd -P)/versions
export HOME=$scratch GIT_CONFIG_NOSYSTEM=1 GIT_CEILING_DIRECTORIES=$scratch TMPDIR=$scratch/tmp
fail() { echo "FAIL: $*" >&2; cat "$scratch/out" >&2 2> /dev/null || true; exit 1; }
git_in() { git -C "$1" -c user.name=a -c user.email=a@b -c init.defaultBranch=main "${@:2}" > /dev/null 2>&1; }
# run STATUS ARGUMENT...: of the script, whose words are kept.
run() {
  local wanted=$1 status=0
  shift
  "$tree/tools/test_versions" "$@" > "$scratch/out" 2>&1 || status=$?
  [ "$status" = "$wanted" ] || fail "test_versions $*: exit status $status, expected $wanted"
}
says() { grep -qF -- "$1" "$scratch/out" || fail "it does not say: $1"; }
is_tidy() {
  [ -z "$(ls "$TMPDIR")" ] || fail "left behind: $(ls "$TMPDIR")"
  [ "$(git -C "$tree" worktree list | wc -l)" = 1 ] || fail "left behind: $(git -C "$tree" worktree list)"
}

tree=$scratch/tree
mkdir -p "$tree/tools" "$scratch/path" "$TMPDIR"
cp -L "$script" "$tree/tools/test_versions"
printf '#!/bin/sh\ntouch "$(dirname "$0")/installed"\n' > "$tree/tools/install"
# A bazel that builds programs which say the tree's version, where that was made ready, and writes down its tests.
cat > "$scratch/path/bazel" << 'END'
#!/usr/bin/env bash
case "$1" in
  shutdown) exit ;;
  test) echo "$@" > "$BAZEL_TESTED"; exit ;;
esac
[ -e tools/installed ] && [ ! -e broken ] || { echo "cannot be built" >&2; exit 1; }
for target in "$@"; do
  case "$target" in
    //*:*)
      file=bazel-bin/${target#//}
      file=${file/://}
      mkdir -p "${file%/*}"
      printf '#!/bin/sh\necho %s\n' "$(cat version)" > "$file"
      chmod +x "$file"
      ;;
  esac
done
END
chmod +x "$tree/tools/install" "$scratch/path/bazel"
export PATH=$scratch/path:$PATH BAZEL_TESTED=$scratch/tested

run 2 v1
says "this is no repository"
git_in "$tree" init
echo of-v1 > "$tree/version"
git_in "$tree" add .
git_in "$tree" commit -m one
run 2 v1
says "'v1' is neither a tag nor a commit"
says "it has no tags"
git_in "$tree" tag v1
echo of-today > "$tree/version"
git_in "$tree" commit -am two
run 2 v2
says "its latest tags: v1"

run 0 v1
says "old: of-v1"
grep -q "OLD_PROGRAMS=$TMPDIR.* //tests:versions_test" "$BAZEL_TESTED" || fail "the test was: $(cat "$BAZEL_TESTED")"
is_tidy

# Kept for the next time, which builds nothing.
run 0 v1 --keep "$scratch/kept"
is_tidy
rm "$BAZEL_TESTED"
run 0 --old "$scratch/kept"
says "old: of-v1"
grep -q "OLD_PROGRAMS=$scratch/kept " "$BAZEL_TESTED" || fail "the test was: $(cat "$BAZEL_TESTED")"
rm "$scratch/kept/kvatlas-relay"
run 2 --old "$scratch/kept"
says "kvatlas-relay is missing"

# What cannot be built fails, and leaves nothing behind.
touch "$tree/broken"
git_in "$tree" add broken
git_in "$tree" commit -m broken
git_in "$tree" tag v3
rm "$BAZEL_TESTED"
run 1 v3
[ ! -e "$BAZEL_TESTED" ] || fail "it went on without the programs"
is_tidy
