"""gRPC's and Protobuf's own Python packages in the same process as ours: both must work, in either order of loading.
Usage: grpc_beside_test.py LEAF SITE_PACKAGES (by wheel_test.sh, with an interpreter that has them)
"""

import os
import subprocess
import sys
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
LEAF, SITE = sys.argv[1:3]
LONG_S = 120

# Theirs: a message through Protobuf, and a call through a server and a channel of gRPC.
THEIRS = """
def theirs():
    import grpc
    from concurrent import futures
    from google.protobuf import struct_pb2
    asked = struct_pb2.Struct()
    asked["question"] = "anybody there?"

    def answer(request, context):
        request["answer"] = "yes"
        return request

    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", {
        "Ask": grpc.unary_unary_rpc_method_handler(answer, struct_pb2.Struct.FromString,
                                                   struct_pb2.Struct.SerializeToString)}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        ask = channel.unary_unary("/t.T/Ask", struct_pb2.Struct.SerializeToString, struct_pb2.Struct.FromString)
        for _ in range(50):
            assert ask(asked, wait_for_ready=True, timeout=60)["answer"] == "yes"
    server.stop(None)
"""

OURS = """
def ours(worker):
    import kvatlas_publisher
    publisher = kvatlas_publisher.Publisher([sys.argv[1]], worker=worker, model="m", block_size=16)
    for block in range(50):
        publisher.stored([block + 1], range(16 * block, 16 * block + 16), parent=block or None)
    assert publisher.wait_acknowledged(60), publisher.stats()
    return publisher
"""


class GrpcBesideTest(unittest.TestCase):
    def setUp(self):
        sys.path.insert(0, str(HERE))
        from leaf_process import Leaf

        self.leaf = self.enterContext(Leaf(LEAF))

    def run_both(self, body):
        done = subprocess.run(
            [sys.executable, "-c", f"import sys\nsys.path.insert(0, sys.argv[2])\n{THEIRS}\n{OURS}\n{body}",
             self.leaf.grpc, SITE], capture_output=True, text=True, timeout=LONG_S, check=False,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.leaf.query("m", range(800)), {("1", 0): 800})

    def test_theirs_first(self):
        self.run_both("theirs(); publisher = ours('1'); theirs(); publisher.close()")

    def test_ours_first(self):
        self.run_both("publisher = ours('1'); theirs(); publisher.flush(); publisher.close()")

    def test_theirs_for_all_to_see(self):
        self.run_both("import os; sys.setdlopenflags(os.RTLD_GLOBAL | os.RTLD_NOW); theirs(); publisher = ours('1'); theirs()")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
