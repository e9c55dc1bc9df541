#!/usr/bin/env bash
# Two gRPC servers listen on one port, and neither is told.
#
# Version: grpcio 1.85.3, Linux. Seen: `add_insecure_port` of a port that another gRPC server has succeeds (SO_REUSEPORT is on by default), and new connections go to
# one or the other. With grpc.so_reuseport=0 at both the second is refused.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check grpcio==1.85.3
"$here/venv/bin/python" - <<'PY'
import os
os.environ["GRPC_VERBOSITY"] = "NONE"
import collections, concurrent.futures, grpc
def server(name, *options):
    made = grpc.server(concurrent.futures.ThreadPoolExecutor(2), options=options)
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: name)
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s.S", {"M": handler}),))
    return made
first, second = server(b"first"), server(b"second")
port = first.add_insecure_port("127.0.0.1:0")
assert second.add_insecure_port(f"127.0.0.1:{port}") == port
first.start(), second.start()
answers = collections.Counter()
for _ in range(200):
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        answers[channel.unary_unary("/s.S/M")(b"").decode()] += 1
print("200 connections to one port:", dict(answers))
assert min(answers["first"], answers["second"]) > 20, answers
first.stop(0), second.stop(0)
alone = server(b"", ("grpc.so_reuseport", 0))
port = alone.add_insecure_port("127.0.0.1:0")
try:
    server(b"", ("grpc.so_reuseport", 0)).add_insecure_port(f"127.0.0.1:{port}")
    raise SystemExit("the second was not refused")
except RuntimeError as error:
    print("without SO_REUSEPORT the second is refused")
PY
echo "as described"
