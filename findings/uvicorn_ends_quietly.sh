#!/usr/bin/env bash
# An engine's server ends an idle connection after five seconds, and says nothing of it.
#
# Version: uvicorn 0.54.0, which serves vLLM's and SGLang's HTTP. Seen: the default is five seconds; the answer before has neither Connection: close nor Keep-Alive: timeout=5, so that a
# pool of connections knows of it only when a request has met the end.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check uvicorn==0.54.0
"$here/venv/bin/python" - <<'PY'
import socket, threading, time, uvicorn
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})
config = uvicorn.Config(app, port=0, log_level="error", lifespan="off")
server = uvicorn.Server(config)
threading.Thread(target=server.run, daemon=True).start()
while not server.started: time.sleep(0.02)
connection = socket.create_connection(("127.0.0.1", server.servers[0].sockets[0].getsockname()[1]))
connection.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
head = b""
while not head.endswith(b"ok"): head += connection.recv(4096).lower()
start = time.monotonic()
end = connection.recv(1)
idle = time.monotonic() - start
print(f"closed after {idle:.1f} s idle; default {config.timeout_keep_alive}; headers: {head.splitlines()[1:3]}")
assert end == b"" and 4.5 < idle < 7 and b"keep-alive" not in head and b"connection" not in head
PY
echo "as described"
