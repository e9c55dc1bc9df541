#!/usr/bin/env bash
# Runs browser_test.py beside it.
set -euo pipefail
exec python3 "$(dirname "$0")/browser_test.py" "$@"
