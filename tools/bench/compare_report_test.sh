#!/bin/sh
# Runs the test of compare's table.
set -eu
PYTHONDONTWRITEBYTECODE=1 exec python3 tools/bench/compare_report_test.py
