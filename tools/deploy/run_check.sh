#!/usr/bin/env bash
# Runs a check of this workspace on the binaries of a release. Usage: run_check.sh CHECK BINARY...
set -euo pipefail
root=$(dirname "$(readlink -f WORKSPACE)")
check=$1
shift
binaries=$(mktemp -d)
trap 'rm -rf "$binaries"' EXIT
for binary in "$@"; do ln -s "$(readlink -f "$binary")" "$binaries/"; done
# A test has a home of its own; Go and Python keep what they fetched in the user's.
HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
PATH=$PATH:/usr/sbin:/sbin:/usr/local/go/bin
export HOME PATH
"$root/$check" --bin "$binaries"
