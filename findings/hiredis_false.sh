#!/usr/bin/env bash
# hiredis says "not yet" and "false" with the same word.
#
# Version: hiredis 3.5.0 (hiredis-py). Seen: `Reader.gets()` returns False while a reply is incomplete, and False for RESP3's boolean false; only a sentinel of
# one's own (notEnoughData=) tells them apart. RESP3's big numbers come as bytes, sets as lists.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check hiredis==3.5.0
"$here/venv/bin/python" - <<'PY'
import hiredis
reader = hiredis.Reader()
nothing = reader.gets()
reader.feed(b"#f\r\n")
false = reader.gets()
waiting = object()
own = hiredis.Reader(notEnoughData=waiting)
before = own.gets()
own.feed(b"#f\r\n")
after = own.gets()
reader.feed(b"(18446744073709551616\r\n~1\r\n:1\r\n")
rest = [reader.gets(), reader.gets()]
print("incomplete:", nothing, " false:", false, " big number:", rest[0], " set:", rest[1])
assert nothing is False and false is False and before is waiting and after is False and rest == [b"18446744073709551616", [1]]
PY
echo "as described"
