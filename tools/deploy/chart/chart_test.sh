#!/bin/sh
# Checks the chart without helm: see chart_test.py.
set -eu
PYTHONDONTWRITEBYTECODE=1 exec python3 tools/deploy/chart/chart_test.py "$@"
