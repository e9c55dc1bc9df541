#!/bin/sh
# Checks that the dashboards are what make_dashboards.py writes.
set -eu
cd tools/deploy/dashboards
exec /usr/bin/python3 make_dashboards.py --check .
