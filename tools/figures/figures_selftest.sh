#!/bin/sh
# Runs the tests of figures.py.
set -eu
PYTHONDONTWRITEBYTECODE=1 exec python3 tools/figures/figures_selftest.py
