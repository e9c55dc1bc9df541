#!/usr/bin/env bash
# orjson reads numbers otherwise than Python's json.
#
# Versions: orjson 3.11.4, Python 3's json. Seen: an integer above 2^64 - 1 becomes a float in orjson (1e+20 when it is printed) and stays an
# integer in json; json takes NaN and Infinity, orjson raises; 1e400 is infinity in json, and orjson raises.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check orjson==3.11.4
"$here/venv/bin/python" - <<'PY'
import json, orjson
def read(loads, text):
    try: return repr(loads(text))
    except ValueError: return "refused"
seen = {text: (read(orjson.loads, text), read(json.loads, text)) for text in ("18446744073709551615", "100000000000000000000", "NaN", "1e400")}
for text, (a, b) in seen.items(): print(f"{text:22} orjson {a}, json {b}")
assert seen == {"18446744073709551615": ("18446744073709551615",) * 2, "100000000000000000000": ("1e+20", "100000000000000000000"),
                "NaN": ("refused", "nan"), "1e400": ("refused", "inf")}, seen
PY
echo "as described"
