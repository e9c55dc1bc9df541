#!/usr/bin/env bash
# The tests in the Rust sources. Usage: rust_test.sh BUILD
set -euo pipefail
# Bazel's tests have another home or none: cargo's downloads are the user's.
HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
export HOME
exec "$1" --test
