#!/usr/bin/env bash
# curl waits a second before it sends a prompt of more than a MiB.
#
# Version: pycurl 7.49.0 with libcurl 8.23.0. Seen: from 1,048,577 bytes on a body is announced by Expect: 100-continue, and held back for a second where the server
# does not say 100; one byte less goes at once, and so does any with an empty Expect header.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check pycurl==7.49.0
"$here/venv/bin/python" - <<'PY'
import socket, threading, time, pycurl
listener = socket.create_server(("127.0.0.1", 0))
def serve():  # reads the whole request before it says anything, as servers may
    while True:
        connection, _ = listener.accept()
        data = b""
        while b"\r\n\r\n" not in data: data += connection.recv(65536)
        head, body = data.split(b"\r\n\r\n", 1)
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        while len(body) < length: body += connection.recv(1 << 20)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        connection.close()
threading.Thread(target=serve, daemon=True).start()
def took(size, *headers):
    curl = pycurl.Curl()
    curl.setopt(pycurl.URL, "http://127.0.0.1:%d/" % listener.getsockname()[1])
    curl.setopt(pycurl.POSTFIELDS, b"x" * size)
    if headers: curl.setopt(pycurl.HTTPHEADER, list(headers))
    start = time.monotonic()
    curl.perform()
    return time.monotonic() - start
seen = [took(1 << 20), took((1 << 20) + 1), took((1 << 20) + 1, "Expect:")]
print("1 MiB: %.2f s, a byte more: %.2f s, without Expect: %.2f s" % tuple(seen))
assert seen[0] < 0.9 and seen[1] > 0.99 and seen[2] < 0.9, seen
PY
echo "as described"
