#!/usr/bin/env bash
# What an engine puts into an answer comes back in the next request, known to the SDK or not.
#
# Version: openai 3.57.0. Seen: a message of an answer that is appended to the history is sent with exactly the fields that the server had set: reasoning_content and
# a field of another system's making too, and no nulls for those that it had not.
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

answers.append((200, {}, good))
first = ask()
ask(first.choices[0].message, {"role": "user", "content": "e"})
sent = json.loads(calls[-1][2])["messages"][1]
print(json.dumps(sent))
assert sent == message, sent
PY
echo "as described"
