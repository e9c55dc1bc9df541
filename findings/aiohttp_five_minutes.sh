#!/usr/bin/env bash
# aiohttp ends a stream after five minutes, however well it flows.
#
# Version: aiohttp 3.14.5. Seen: a session's default is total=300 seconds, from the start to the last byte; with a total of half a second a stream of an event
# each 50 ms is broken off in its middle. total=None with sock_read limits silence instead.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check aiohttp==3.14.5
"$here/venv/bin/python" - <<'PY'
import asyncio, aiohttp
async def answer(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    try:
        for _ in range(20):
            writer.write(b"data: {}\n\n")
            await writer.drain()
            await asyncio.sleep(0.05)
    except (ConnectionError, asyncio.CancelledError): pass
    writer.close()
async def read(url, **limits):
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(**limits)) as session, session.get(url) as got:
        return [line async for line in got.content if line.strip()]
async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = "http://127.0.0.1:%d/" % server.sockets[0].getsockname()[1]
    async with aiohttp.ClientSession() as session: default = session.timeout
    whole = await read(url, total=None, sock_read=0.5)
    try: cut = await read(url, total=0.5)
    except asyncio.TimeoutError: cut = "TimeoutError"
    print("default total", default.total, "s;", len(whole), "events with sock_read alone; with a total of 0.5 s:", cut)
    assert default.total == 300 and len(whole) == 20 and cut == "TimeoutError"
asyncio.run(main())
PY
echo "as described"
