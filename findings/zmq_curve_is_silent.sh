#!/usr/bin/env bash
# A subscriber without a key connects to an encrypted publisher, and hears nothing, for ever.
#
# Version: pyzmq 27.3.0. Seen: `connect` succeeds, no error comes, and no message; only a monitor of the socket tells of the handshake that failed. Nor does
# the publisher count it.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check pyzmq==27.3.0
"$here/venv/bin/python" - <<'PY'
import time, zmq
from zmq.utils.monitor import recv_monitor_message
context = zmq.Context()
publisher = context.socket(zmq.PUB)
publisher.curve_publickey, publisher.curve_secretkey = zmq.curve_keypair()
publisher.curve_server = True
port = publisher.bind_to_random_port("tcp://127.0.0.1")
subscriber = context.socket(zmq.SUB)
subscriber.subscribe(b"")
monitor = subscriber.get_monitor_socket()
subscriber.connect(f"tcp://127.0.0.1:{port}")
for _ in range(20):
    publisher.send(b"event")
    time.sleep(0.02)
events = set()
while monitor.poll(300) and len(events) < 8: events.add(zmq.Event(recv_monitor_message(monitor)["event"]).name)
heard = subscriber.poll(100)
print("messages:", heard, " monitor:", sorted(events))
assert heard == 0 and "CONNECTED" in events and "HANDSHAKE_SUCCEEDED" not in events, events
context.destroy(linger=0)
PY
echo "as described"
