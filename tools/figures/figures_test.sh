#!/bin/sh
# The tables of the real workspace, which the link to its WORKSPACE file leads to, are those of docs/figures.json.
set -eu
root=$(dirname "$(readlink -f WORKSPACE)")
PYTHONDONTWRITEBYTECODE=1 exec python3 "$root/tools/figures/figures.py" --root "$root" check
