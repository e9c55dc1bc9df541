"""SGLang's KV events into kvatlas, from inside the engine. Installing this package is all there is to install:

    python -m sglang.launch_server --model-path MODEL --page-size 16 --kv-events-config '{"publisher": "kvatlas",
        "endpoint": "kvatlas://leaf-0:7410?model=MODEL&worker=pod-7&block_size=16"}'

SGLang finds `register` as a plug-in (sglang.srt.plugins); "publisher": "zmq" with such an endpoint means the same. block_size is its --page-size and must be told: pages may be
shorter at a sequence's end. Options: `kvatlas_publisher.engine`.
"""

from sglang.srt.disaggregation.kv_events import EventPublisher, EventPublisherFactory

from kvatlas_publisher.engine import EngineBatches, by_endpoint, options_of


class KvatlasEventPublisher(EventPublisher):
    """One data-parallel rank's."""

    def __init__(self, attn_dp_rank=0, endpoint="", **_):
        # The rest of SGLang's configuration is about ZeroMQ.
        options = options_of(endpoint)
        if "block_size" not in options:
            raise ValueError("no block_size: &block_size=N, or KVATLAS_BLOCK_SIZE=N; it is SGLang's --page-size")
        if has_states():
            options.setdefault("hybrid", 1)  # SGLang's events tell of full attention alone
        self._rank = attn_dp_rank
        self.batches = EngineBatches(options, attn_dp_rank)

    def publish(self, events):
        if events.attn_dp_rank is None:
            events.attn_dp_rank = self._rank
        self.batches.publish(events)

    def shutdown(self):
        self.batches.shutdown()


def has_states():
    """Whether the model that this process serves has recurrent states, as far as SGLang says so."""
    try:
        from sglang.srt.runtime_context import get_exec

        return bool(get_exec().mamba.uses_mamba_radix_cache)
    except Exception:  # another version, or none that was configured: the option says it
        return False


def register():
    """Makes SGLang know the publisher. Idempotent."""
    registry = EventPublisherFactory._registry
    if "kvatlas" not in registry:
        EventPublisherFactory.register_publisher("kvatlas", KvatlasEventPublisher)
        registry["zmq"] = by_endpoint(KvatlasEventPublisher, registry["zmq"])
