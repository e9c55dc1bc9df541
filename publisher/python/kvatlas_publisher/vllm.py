"""vLLM's KV events into kvatlas, from inside the engine. Installing this package is all there is to install:

    vllm serve MODEL --kv-events-config '{"enable_kv_cache_events": true, "publisher": "zmq",
        "endpoint": "kvatlas://leaf-0:7410?model=MODEL&worker=pod-7"}'

vLLM finds `register` as a plug-in (vllm.general_plugins) and with it a publisher for endpoints that begin with kvatlas://;
every other endpoint is served as before. vLLM's configuration knows two publishers by name, hence "zmq"; where a name is
free (`EventPublisherFactory` alone) it is "kvatlas". Options: `kvatlas_publisher.engine`.
"""

from vllm.distributed.kv_events import EventPublisher, EventPublisherFactory

from kvatlas_publisher.engine import EngineBatches, by_endpoint, options_of


class KvatlasEventPublisher(EventPublisher):
    """One data-parallel rank's."""

    def __init__(self, data_parallel_rank=0, endpoint="", **_):
        # The rest of vLLM's configuration is about ZeroMQ.
        super().__init__(data_parallel_rank)
        self.batches = EngineBatches(options_of(endpoint), data_parallel_rank)

    def publish(self, events):
        if events.data_parallel_rank is None:
            events.data_parallel_rank = self._data_parallel_rank
        self.batches.publish(events)

    def shutdown(self):
        self.batches.shutdown()


def register():
    """Makes vLLM know the publisher. Idempotent."""
    registry = EventPublisherFactory._registry
    if "kvatlas" not in registry:
        EventPublisherFactory.register_publisher("kvatlas", KvatlasEventPublisher)
        registry["zmq"] = by_endpoint(KvatlasEventPublisher, registry["zmq"])
