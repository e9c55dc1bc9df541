#!/usr/bin/env bash
# Runs page_data_test.py beside it.
set -euo pipefail
exec python3 "$(dirname "$0")/page_data_test.py" "$@"
