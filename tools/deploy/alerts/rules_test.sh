#!/bin/sh
# Checks the alerts, their tests and their runbooks, with promtool.
set -eu
cd tools/deploy/alerts
exec /usr/bin/python3 rules_test.py kvatlas.rules.yaml ../../../docs/runbooks.md ./*_test.yaml
