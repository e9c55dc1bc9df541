#!/bin/sh
# Does this program start, and say what it is for? help_test.sh PROGRAM
set -u
said=$("$1" --help) || { echo "$1 --help exited with $?; expected 0"; exit 1; }
[ -n "$said" ] || { echo "$1 --help said nothing on standard output"; exit 1; }
