"""vLLM's or SGLang's caches with our plug-in in them, found and made as the engine itself would: through the entry point of the
installed wheel and the engine's own factory. Usage: plugin_engine.py vllm|sglang SOURCE (commands: engine_process.py)
"""

import sys
import time
from importlib.metadata import entry_points

GROUPS = {"vllm": "vllm.general_plugins", "sglang": "sglang.srt.plugins"}
ACKNOWLEDGED_S = 60


class NoSocket:
    """Where a driver looks for its publisher's sockets."""

    def setsockopt(self, *_):
        pass


def plugged(base, kind):
    class PluggedEngine(base):
        def __init__(self, source):
            super().__init__(source)
            for point in entry_points(group=GROUPS[kind]):
                point.load()()
            self.publish_ns = []

        def open(self, command):
            # What the drivers of engines with sockets look at.
            module = sys.modules[f"kvatlas_publisher.{kind}"]
            module.KvatlasEventPublisher._pub = module.KvatlasEventPublisher._replay = None
            publish = module.KvatlasEventPublisher.publish

            def timed(publisher, batch):
                start = time.perf_counter_ns()
                publish(publisher, batch)
                self.publish_ns.append(time.perf_counter_ns() - start)

            module.KvatlasEventPublisher.publish = timed
            answer = super().open(command)
            assert type(self.publisher) is module.KvatlasEventPublisher, type(self.publisher)
            return answer

        def publisher_socket(self):
            return NoSocket()

        def wait_sent(self):
            publisher = self.publisher.batches.publisher
            if publisher is not None and not publisher.wait_acknowledged(ACKNOWLEDGED_S):
                raise RuntimeError(f"not acknowledged: {publisher.stats()}")

        def facts(self):
            stats = self.publisher.batches.publisher.stats()
            assert stats["engine_batches"] <= self.published() and stats["invalid_calls"] == 0, stats
            return {**super().facts(), "publisher": stats, "publish_ns": self.publish_ns}

    return PluggedEngine


def main():
    kind, source = sys.argv[1:3]
    if kind == "vllm":
        from vllm_engine import VllmEngine as base
    else:
        from sglang_engine import SglangEngine as base
    plugged(base, kind)(source).serve()


if __name__ == "__main__":
    main()
