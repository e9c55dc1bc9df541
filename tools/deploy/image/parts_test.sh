#!/bin/sh
# The image's parts: see parts_test.py.
set -eu
PYTHONDONTWRITEBYTECODE=1 exec python3 tools/deploy/image/parts_test.py
