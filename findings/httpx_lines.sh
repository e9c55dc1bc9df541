#!/usr/bin/env bash
# httpx ends a line of an event stream in the middle of a word.
#
# Versions: httpx 0.28.1; Python 3's json. Seen: `iter_lines` also splits at U+2028, U+0085 and U+001C, which JSON may hold as they are (json.dumps with
# ensure_ascii=False leaves U+2028 and U+0085 so): one event of text comes as several lines, and none of them is JSON.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check httpx==0.28.1
"$here/venv/bin/python" - <<'PY'
import http.server, json, threading, httpx
event = json.dumps({"content": "one\u2028two\x85three"}, ensure_ascii=False)
body = f"data: {event}\n\ndata: [DONE]\n\n".encode()
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments): pass
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(body)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
with httpx.stream("GET", f"http://127.0.0.1:{server.server_port}/") as answer:
    lines = [line for line in answer.iter_lines() if line]
print(lines)
assert lines == ['data: {"content": "one', "two", 'three"}', "data: [DONE]"], lines
PY
echo "as described"
