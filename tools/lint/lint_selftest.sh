#!/bin/sh
# Runs the lint's own test.
set -eu
PYTHONDONTWRITEBYTECODE=1 exec python3 tools/lint/lint_selftest.py
