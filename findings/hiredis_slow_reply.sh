#!/usr/bin/env bash
# A time-out of hiredis is no bound on how long an answer takes.
#
# Version: hiredis 1.5.0 (in C, of PyPI's hiredis 3.5.0). Seen: with a command time-out of 300 ms, a reply that comes a byte every 100 ms is waited for as long
# as it takes, some seconds, and returned without an error, in the blocking and in the asynchronous interface: each byte begins the time-out again.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary :all: --dest "$here" hiredis==3.5.0
tar -xzf "$here/hiredis-3.5.0.tar.gz" -C "$here" --strip-components=3 hiredis-3.5.0/vendor/hiredis
cat > "$here/server.py" <<'PY'
import socket, threading, time
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def serve(client):
    client.recv(1000)
    for byte in b"$24\r\n" + 24 * b"x" + b"\r\n":
        client.sendall(bytes([byte]))
        time.sleep(0.1)
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
PY
cat > "$here/client.c" <<'C'
#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "async.h"

static const struct timeval kTimeout = {0, 300000};
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static double due = 1e18;
static int length = -1;
static void schedule(void *none, struct timeval in) { (void)none; due = now() + in.tv_sec + in.tv_usec * 1e-6; }
static void answered(redisAsyncContext *ac, void *reply, void *none) { (void)ac; (void)none; length = reply ? (int)((redisReply *)reply)->len : -2; }

int main(int argc, char **argv) {
  (void)argc;
  const int port = atoi(argv[1]);
  double begin = now();
  redisContext *c = redisConnect("127.0.0.1", port);
  redisSetTimeout(c, kTimeout);
  redisReply *reply = redisCommand(c, "GET k");
  const double blocking = now() - begin;
  printf("blocking: %s after %.1f s\n", reply ? "an answer" : c->errstr, blocking);
  if (!reply || reply->len != 24 || blocking < 2) return 1;

  begin = now();
  redisOptions options = {0};
  REDIS_OPTIONS_SET_TCP(&options, "127.0.0.1", port);
  options.command_timeout = &kTimeout;
  redisAsyncContext *ac = redisAsyncConnectWithOptions(&options);
  ac->ev.scheduleTimer = schedule;
  redisAsyncCommand(ac, answered, NULL, "GET k");
  struct pollfd ready = {ac->c.fd, POLLOUT, 0};
  while (length == -1) {
    poll(&ready, 1, 10);
    if (ready.revents & POLLIN) redisAsyncHandleRead(ac);
    else if (ready.revents & POLLOUT) { redisAsyncHandleWrite(ac); ready.events = POLLIN; }
    else if (now() >= due) redisAsyncHandleTimeout(ac);
  }
  printf("asynchronous: %s after %.1f s\n", length == 24 ? "an answer" : "none", now() - begin);
  return length == 24 && now() - begin > 2 ? 0 : 1;
}
C
cc -w -DNDEBUG -I "$here" -o "$here/client" "$here/client.c" "$here"/{alloc,async,hiredis,net,read,sds}.c
python3 "$here/server.py" > "$here/port" &
server=$!
trap 'kill "$server"; rm -rf "$here"' EXIT
until [ -s "$here/port" ]; do sleep 0.1; done
"$here/client" "$(cat "$here/port")"
echo "as described"
