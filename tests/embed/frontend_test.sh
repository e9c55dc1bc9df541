#!/bin/sh
# Debian's Python, whatever else is first in a developer's PATH.
exec /usr/bin/python3 tests/embed/frontend_test.py "$@"
