#!/usr/bin/env bash
# Starts the cluster of tools/run and leaves it up until Ctrl-C. Flags as of tools/run.
# Bazel starts this in the runfiles' root, where all binaries lie by their path.
set -euo pipefail
exec tools/testing/cluster/run_cluster --binaries="$PWD" --requests=0 --keep "$@"
