#!/bin/sh
# Builds the wheel, installs it into a clean virtual environment without a network, and runs the checks in there.
# Usage: wheel_test.sh LEAF LIBRARY
set -eu
leaf=$(readlink -f "$1") library=$(readlink -f "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
/usr/bin/python3 -m venv "$work/venv"
PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 publisher/python/build_wheel --library "$library" --out "$work/dist"
"$work/venv/bin/pip" install --quiet --no-index --disable-pip-version-check "$work"/dist/*.whl
# No path of the repository but the tests' own.
"$work/venv/bin/python" -I tests/embed/wheel_test.py "$leaf" "$work"/dist/*.whl
site=$(echo "$work"/venv/lib/python3*/site-packages)
/usr/bin/python3 tests/embed/grpc_beside_test.py "$leaf" "$site"
