#!/usr/bin/env bash
# `omit_defaults` omits nothing where a struct is an array.
#
# Version: msgspec 0.22.0, with which engines write their KV events (array_like=True, omit_defaults=True). Seen: the array has all fields, nil where they
# are unset; a shorter one is read with defaults, and what a longer one has behind the known fields is dropped without an error.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check msgspec==0.22.0
"$here/venv/bin/python" - <<'PY'
import msgspec
class Array(msgspec.Struct, array_like=True, omit_defaults=True):
    hashes: list
    parent: int | None = None
    medium: str | None = None
class Map(msgspec.Struct, omit_defaults=True):
    hashes: list
    parent: int | None = None
    medium: str | None = None
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode
seen = [unpack(pack(Array([1]))), unpack(pack(Map([1]))), unpack(pack([[1], 7]), type=Array), unpack(pack([[1], 7, "GPU", "later"]), type=Array)]
for one in seen: print(one)
assert seen == [[[1], None, None], {"hashes": [1]}, Array([1], 7), Array([1], 7, "GPU")], seen
PY
echo "as described"
