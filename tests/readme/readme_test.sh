#!/bin/sh
# Runs what the README shows. Usage: readme_test.sh KVATLAS MOCK_ENGINE LEAF HIERARCHY FRONTEND
set -eu
PYTHONDONTWRITEBYTECODE=1 exec /usr/bin/python3 tests/readme/readme_test.py "$@"
