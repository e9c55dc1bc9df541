#!/bin/sh
# Builds the wheel of the programs, installs it into a clean virtual environment without a network, and runs them from there.
# Usage: commands_wheel_test.sh KVATLAS LEAF HIERARCHY FRONTEND RELAY SENTENCEPIECE_LIBRARY
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
kvatlas=$(readlink -f "$1")
shift
programs=kvatlas
for file in "$@"; do
  shift
  # --config=dev links libraries of the build, hundreds of them, which are no matter of a wheel.
  if ldd "$file" | grep -q bazel-out; then continue; fi
  set -- "$@" --more "$(readlink -f "$file")"
  programs="$programs $(basename "$file")"
done
/usr/bin/python3 -m venv "$work/venv"
export PYTHONDONTWRITEBYTECODE=1
/usr/bin/python3 tools/wheel/commands/build_wheel --library "$kvatlas" "$@" --out "$work/dist"
"$work/venv/bin/pip" install --quiet --no-index --disable-pip-version-check "$work"/dist/*.whl
/usr/bin/python3 tests/embed/commands_wheel_test.py "$work/venv" "$work"/dist/*.whl $programs
