"""What the plug-ins for vLLM and SGLang share: options out of a URL and the environment, and batches into the library.

    kvatlas://leaf-0:7410,leaf-1:7410?model=llama-70b&worker=pod-7&block_size=16

Options, each also as an environment variable (KVATLAS_MODEL, KVATLAS_WORKER, …; the URL wins):

    leaves      the part between // and ?; each HOST:PORT, or where leaves are found, whenever they come and go:
                dns:HOST:PORT, redis://HOST:PORT (in a URL redis%3A%2F%2FHOST%3APORT)
    cell        whose leaves are found in Redis
    model       the domain's name, as the router asks for it; required
    worker      this instance's name, the same in all of its data-parallel ranks and no other instance's. Unless told, HOST:PORT
                with the port of the engine's server (--port, or the engine's default), which is the same after a restart and
                another one for every engine of a host. A process that serves on no port, or takes it from --config, has
                HOST-PID, which is another one after a restart
    tenant, lora_name, cache_salt, hash_seed, batch_blocks, batch_age_s, queue_bytes_max
    block_size  tokens; unless told, that of the first block of main attention that the engine stores; an engine without main
                attention must be told
    eagle_drop, chunk_tokens, window_tokens, hybrid
                of hybrid models and speculating engines, what no event says (kvatlas_publisher.h); hybrid is 0 or 1
    redis       the URL of a log in Redis, beside leaves or instead of them; redis_cell, redis_shards
    zmq         an endpoint on which the engine's own events go out as well; zmq_replay, zmq_topic
    tls_ca, tls_cert, tls_key
                paths of PEM files: TLS to the leaves, and who this worker is
    label.NAME  labels, e.g. label.zone=a (KVATLAS_LABELS=zone=a,rack=7)
"""

import collections
import logging
import multiprocessing
import os
import pathlib
import socket
import sys
import urllib.parse

from kvatlas_publisher import Publisher

SCHEME = "kvatlas://"
_NUMBERS = {"block_size": int, "hash_seed": int, "batch_blocks": int, "batch_age_s": float,
            "queue_bytes_max": int, "redis_shards": int, "chunk_tokens": int, "window_tokens": int,
            "hybrid": int}
_TEXTS = ("model", "worker", "tenant", "lora_name", "cache_salt", "zmq", "zmq_replay", "zmq_topic", "redis",
          "redis_cell", "cell", "eagle_drop", "tls_ca", "tls_cert", "tls_key")
# Publisher's own names where they are others.
_RENAMED = {"zmq": "zmq_endpoint", "zmq_replay": "zmq_replay_endpoint", "redis": "redis_url"}
# Programs that serve, and on which port unless told.
_SERVERS = {"vllm": 8000, "api_server": 8000, "sglang": 30000, "launch_server": 30000}
_log = logging.getLogger("kvatlas_publisher")
_EARLY_MAX = 1024  # batches kept until the block size is known
_MAIN_ATTENTION = (None, "full_attention", "mla_attention", "sink_full_attention")


def is_ours(endpoint):
    return bool(endpoint) and endpoint.startswith(SCHEME)


def by_endpoint(ours, theirs):
    """A factory's entry that makes ours for an endpoint of ours, and theirs for every other configuration."""

    def make(*args, **config):
        return (ours if is_ours(config.get("endpoint")) else theirs)(*args, **config)

    return make


def default_worker(arguments=None, parent=None):
    """A name that no other engine of this host has; `arguments` and `parent` are those of this process unless told.

    An engine's workers are processes that its server has spawned: they have its arguments."""
    arguments = sys.argv if arguments is None else arguments
    host, port = socket.gethostname(), None
    for argument, following in zip(arguments, [*arguments[1:], ""]):
        if argument == "--port" or argument.startswith("--port="):
            port = argument.partition("=")[2] or following
    program = pathlib.PurePath(arguments[0] if arguments else "")
    program = program.parent.name if program.stem == "__main__" else program.stem
    if port is None and not any(argument.startswith("--config") for argument in arguments):
        port = _SERVERS.get(program)
    if port is not None and str(port).isdigit():
        return f"{host}:{port}"
    parent = multiprocessing.parent_process() if parent is None else parent
    return f"{host}-{os.getpid() if parent is None else parent.pid}"


def options_of(endpoint, environment=os.environ):
    """Arguments for `Publisher`, but for dp_rank; ValueError says which option is wrong."""
    given, leaves = {}, environment.get("KVATLAS_LEAVES", "")
    labels = dict(pair.split("=", 1) for pair in environment.get("KVATLAS_LABELS", "").split(",") if "=" in pair)
    for name in (*_TEXTS, *_NUMBERS):
        value = environment.get("KVATLAS_" + name.upper())
        if value:
            given[name] = value
    if is_ours(endpoint):
        places, _, query = endpoint[len(SCHEME):].partition("?")
        leaves = urllib.parse.unquote(places.rstrip("/")) or leaves
        for name, value in urllib.parse.parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)):
            if name.startswith("label."):
                labels[name[len("label."):]] = value
            elif name in _TEXTS or name in _NUMBERS:
                given[name] = value
            else:
                raise ValueError(f"{endpoint!r}: no option {name!r}")
    options = {_RENAMED.get(name, name): value for name, value in given.items()}
    for name, number in _NUMBERS.items():
        if name in options:
            try:
                options[name] = number(options[name])
            except ValueError:
                raise ValueError(f"{name}={options[name]!r}: not a number") from None
    options["leaves"] = [leaf for leaf in leaves.split(",") if leaf]
    if labels:
        options["labels"] = labels
    if not options.get("worker"):
        options["worker"] = default_worker()
        _log.warning("kvatlas: worker is not set: this engine is called %r (worker=NAME in the endpoint, or KVATLAS_WORKER)",
                     options["worker"])
    if not options["leaves"] and "redis_url" not in options:
        raise ValueError(f"no leaves: {SCHEME}HOST:PORT?model=NAME, or KVATLAS_LEAVES=HOST:PORT")
    if not options.get("model"):
        raise ValueError(f"no model: {SCHEME}HOST:PORT?model=NAME, or KVATLAS_MODEL=NAME")
    return options


class EngineBatches:
    """Batches of an engine (msgspec structs, as its own publisher takes them) into a publisher.

    The batch is encoded where the engine's thread stands, by msgspec, and copied into the library's queue; everything
    else happens in the library's thread, without the interpreter's lock."""

    def __init__(self, options, rank):
        import msgspec

        self._encode = msgspec.msgpack.Encoder().encode
        self._options = {**options, "dp_rank": rank}
        self.publisher = None
        self._early = collections.deque(maxlen=_EARLY_MAX)
        if "block_size" in options:
            self._make(options["block_size"])

    def _make(self, block_size):
        self.publisher = Publisher(**{**self._options, "block_size": block_size})

    def publish(self, batch):
        if self.publisher is None:
            block_size = first_block_size(batch)
            if block_size is None:
                # Nothing of main attention was stored yet, but blocks of windows and states may have been.
                if batch.events:
                    self._early.append(self._encode(batch))
                return
            self._make(block_size)
            if len(self._early) == _EARLY_MAX:
                self.publisher.publish(b"\xc1")  # some may be lost: said as a batch that cannot be read
            for early in self._early:
                self.publisher.publish(early)
            self._early.clear()
        self.publisher.publish(self._encode(batch))

    def shutdown(self):
        """The engine ends, and its blocks with it."""
        if self.publisher is not None:
            self.publisher.stop(goodbye=True, flush_for_s=1.0)
            self.publisher.close()


def first_block_size(batch):
    for event in batch.events:
        if (type(event).__name__ == "BlockStored" and event.block_size
                and getattr(event, "kv_cache_spec_kind", None) in _MAIN_ATTENTION):
            return event.block_size
    return None
