#!/usr/bin/env bash
# Do releases name the commit that they were built of? In a repository, in a work tree of one, and in none.
set -euo pipefail
scripts=$PWD/tools/deploy
scratch=$(cd "$TEST_TMPDIR" && pwd -P)/trees
export HOME=$scratch GIT_CONFIG_NOSYSTEM=1 GIT_CEILING_DIRECTORIES=$scratch
fail() { echo "FAIL: $*" >&2; exit 1; }
expect() { # WHAT WANTED FOUND
  [ "$2" = "$3" ] || fail "$1: expected $2, found $3"
}
git_in() { git -C "$1" -c user.name=a -c user.email=a@b -c init.defaultBranch=main "${@:2}" > /dev/null 2>&1; }

# A tree with the scripts, and what they copy.
repository=$scratch/repository
mkdir -p "$repository/tools/deploy"
cp -L "$scripts/commit" "$scripts/collect_binaries" "$repository/tools/deploy/"
git_in "$repository" init
expect "before the first commit" unknown "$("$repository/tools/deploy/commit")"
git_in "$repository" add tools
git_in "$repository" commit -m one
one=$(git -C "$repository" rev-parse HEAD)
expect "a repository" "$one" "$("$repository/tools/deploy/commit")"
expect "from another folder" "$one" "$(cd / && "$repository/tools/deploy/commit")"

git_in "$repository" worktree add -b other "$scratch/other"
echo more > "$scratch/other/file"
git_in "$scratch/other" add file
expect "a work tree with a change" "$one-dirty" "$("$scratch/other/tools/deploy/commit")"
git_in "$scratch/other" commit -m two
two=$(git -C "$scratch/other" rev-parse HEAD)
[ "$one" != "$two" ] || fail "nothing was committed"
expect "a work tree" "$two" "$("$scratch/other/tools/deploy/commit")"
expect "the repository beside it" "$one" "$("$repository/tools/deploy/commit")"

# What was unpacked of an archive has no commit, wherever it lies.
mkdir -p "$scratch/unpacked" "$repository/unpacked"
for tree in "$scratch/unpacked" "$repository/unpacked"; do
  cp -r "$repository/tools" "$tree/"
  expect "$tree" unknown "$("$tree/tools/deploy/commit")"
done

# Who makes a release of a tree builds it with its commit; binaries that are given stay as they are.
mkdir "$scratch/path"
cat > "$scratch/path/bazel" << 'END'
#!/usr/bin/env bash
echo "$@" >> "$BAZEL_SAID"
for target in "$@"; do
  case "$target" in //*:*) file=bazel-bin/${target#//}; file=${file/://}; mkdir -p "${file%/*}"; cp /bin/true "$file" ;; esac
done
END
chmod +x "$scratch/path/bazel"
export BAZEL_SAID=$scratch/said PATH=$scratch/path:$PATH
"$scratch/other/tools/deploy/collect_binaries" --to "$scratch/binaries"
grep -q -- "--define=commit=$two " "$BAZEL_SAID" || fail "the build was: $(cat "$BAZEL_SAID")"
grep -q -- "-c opt" "$BAZEL_SAID" || fail "the build was: $(cat "$BAZEL_SAID")"
rm "$BAZEL_SAID"
"$scratch/other/tools/deploy/collect_binaries" --to "$scratch/again" --bin "$scratch/binaries"
[ ! -e "$BAZEL_SAID" ] || fail "binaries were given, and were built all the same"
expect "binaries" "$(ls "$scratch/binaries")" "$(ls "$scratch/again")"
