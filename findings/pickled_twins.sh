#!/usr/bin/env bash
# Equal values have different pickles: bytes depend on which of them are one object.
#
# Python 3's pickle, cbor2 6.3.0. Seen: (h, h) of one object and (h, h') of two equal ones are equal tuples with different pickles, since the second
# mention of one object is a reference to the first; cbor2's canonical form is the same for both.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check cbor2==6.3.0
"$here/venv/bin/python" - <<'PY'
import cbor2, hashlib, pickle
one = bytes(32)
twin = bytes(bytearray(one))
a, b = (one, (1, 2), one), (one, (1, 2), twin)
assert a == b and one is not twin
def digest(data): return hashlib.sha256(data).hexdigest()[:16]
seen = {"pickle": (digest(pickle.dumps(a)), digest(pickle.dumps(b))),
        "cbor2": (digest(cbor2.dumps(a, canonical=True)), digest(cbor2.dumps(b, canonical=True)))}
for name, (x, y) in seen.items(): print(f"{name:7} {x} {y} {'same' if x == y else 'different'}")
assert seen["pickle"][0] != seen["pickle"][1] and seen["cbor2"][0] == seen["cbor2"][1]
PY
echo "as described"
