#!/usr/bin/env bash
# OpenAI's SDK repeats a chat that failed, unless it is told to wait for long.
#
# Version: openai 3.57.0. Seen: 408, 409, 503 and 504 are asked again by themselves, with x-stainless-retry-count; retry-after of 1 is obeyed to the second, and with 300 the
# request is not repeated at all: the error comes at once. x-should-retry in an answer decides for any status, also 400.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check openai==3.57.0
"$here/venv/bin/python" - <<'PY'
import http.server, json, threading, time
calls, answers = [], []
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *arguments): pass
    def do_POST(self):
        calls.append((time.monotonic(), self.headers, self.rfile.read(int(self.headers["content-length"]))))
        status, headers, body = answers[min(len(calls), len(answers)) - 1]
        self.send_response(status)
        for name, value in {**headers, "content-length": len(body), "content-type": "application/json"}.items(): self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
import openai
client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
def ask(*history): return client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}, *history])
message = {"role": "assistant", "content": "b", "reasoning_content": "c", "own_field": {"d": 1}}
good = json.dumps({"id": "1", "object": "chat.completion", "created": 1, "model": "m",
                   "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}).encode()

def tries(status, **headers):
    calls.clear()
    answers[:] = [(status, {name.replace("_", "-"): value for name, value in headers.items()}, b"{}"), (200, {}, good)]
    try: ask()
    except openai.APIStatusError: pass
    return len(calls)
seen = {"408": tries(408), "409": tries(409), "504": tries(504), "400": tries(400), "503, retry-after 300": tries(503, retry_after="300"),
        "503, x-should-retry false": tries(503, x_should_retry="false"), "400, x-should-retry true": tries(400, x_should_retry="true"),
        "503, retry-after 1": tries(503, retry_after="1")}
waited = calls[1][0] - calls[0][0]
counts = [call[1]["x-stainless-retry-count"] for call in calls]
for what, times in seen.items(): print(f"{what:26} asked {'once' if times == 1 else 'twice'}")
assert list(seen.values()) == [2, 2, 2, 1, 1, 1, 2, 2] and counts == ["0", "1"] and 1 <= waited < 1.9, (seen, counts, waited)
PY
echo "as described"
