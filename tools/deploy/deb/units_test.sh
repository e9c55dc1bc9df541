#!/bin/sh
# Checks units and configuration of the package: see units_test.py.
set -eu
PYTHONDONTWRITEBYTECODE=1 exec python3 tools/deploy/deb/units_test.py "$@"
