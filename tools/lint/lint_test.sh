#!/bin/sh
# Runs the lint over the real workspace, which the link to its WORKSPACE file leads to.
set -eu
root=$(dirname "$(readlink -f WORKSPACE)")
PYTHONDONTWRITEBYTECODE=1 exec python3 "$root/tools/lint/lint.py" --root "$root"
