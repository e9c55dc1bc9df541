#!/usr/bin/env bash
# Twenty gRPC channels are one connection.
#
# Version: grpcio 1.85.3. Seen: channels of one process to one address with the same arguments share a subchannel, and with it one TCP connection and its
# window; any other argument, or grpc.use_local_subchannel_pool, gives each its own.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check grpcio==1.85.3
"$here/venv/bin/python" - <<'PY'
import concurrent.futures, grpc
server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
handler = grpc.unary_unary_rpc_method_handler(lambda request, context: context.peer().encode())
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s.S", {"M": handler}),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
def connections(options):
    channels = [grpc.insecure_channel(f"127.0.0.1:{port}", options=options(i)) for i in range(20)]
    return len({channel.unary_unary("/s.S/M")(b"") for channel in channels})
seen = (connections(lambda i: []), connections(lambda i: [("any.name", i)]), connections(lambda i: [("grpc.use_local_subchannel_pool", 1)]))
print("20 channels: %d connection, with other arguments %d, with pools of their own %d" % seen)
assert seen == (1, 20, 20), seen
server.stop(0)
PY
echo "as described"
