#!/bin/sh
# Builds the frontend's wheel, installs it into a clean virtual environment without a network, beside the publisher's package, and runs the checks
# in there. Usage: frontend_wheel_test.sh LEAF PUBLISHER_LIBRARY FRONTEND_LIBRARY SENTENCEPIECE_LIBRARY
set -eu
leaf=$(readlink -f "$1") publisher=$(readlink -f "$2") frontend=$(readlink -f "$3") sentencepiece=$(readlink -f "$4")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
/usr/bin/python3 -m venv "$work/venv"
export PYTHONDONTWRITEBYTECODE=1
/usr/bin/python3 frontend/python/build_wheel --library "$frontend" --more "$sentencepiece" --out "$work/dist"
/usr/bin/python3 publisher/python/build_wheel --library "$publisher" --out "$work/dist"
"$work/venv/bin/pip" install --quiet --no-index --disable-pip-version-check "$work"/dist/*.whl
"$work/venv/bin/python" -I tests/embed/frontend_wheel_test.py "$leaf" "$work"/dist/kvatlas_frontend*.whl
