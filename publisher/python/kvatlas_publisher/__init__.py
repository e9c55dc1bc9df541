"""How does an engine in Python tell kvatlas which KV cache blocks it has?

    from kvatlas_publisher import Publisher

    publisher = Publisher(["leaf-0:7410"], worker="worker-3", model="llama-70b", block_size=16)
    publisher.stored([7001, 7002], tokens)               # 32 token ids
    publisher.stored([7003], more_tokens, parent=7002)   # 16, behind them
    publisher.removed([7003])

Calls copy their arguments into a queue and return; hashing, copies, connections, snapshots are the business of a thread of
the library, which never takes the interpreter's lock. Only hashes leave the host, never token ids. For vLLM and SGLang
there is nothing to write: see `kvatlas_publisher.vllm` and `kvatlas_publisher.sglang`.

Threads: any. Fork: in a child, a publisher of the parent's raises `PublisherError`, and the parent's goes on; a child makes
its own if the parent had made none before the fork (importing this is harmless). Bounds and the rest: kvatlas_publisher.h.
"""

import ctypes
import importlib.metadata
import weakref
from array import array

from kvatlas_publisher import _native

__all__ = ["Publisher", "PublisherError", "__version__", "library_version"]

_TIERS = {"device": 0, "host": 1, "disk": 2, "external": 3}
_MASK = (1 << 64) - 1
_NUMBERS = "Q" if array("Q").itemsize == 8 else "L"
_TOKENS = "I" if array("I").itemsize == 4 else "L"
_TEXT_BYTES = 1024
_KINDS = ("full", "window", "state", "chunk")  # KVATLAS_GROUP_…


class PublisherError(RuntimeError):
    """`code` is one of kvatlas_publisher.h's: 3 a wrong argument, 9 stopped or in a forked child, 14 a ZeroMQ endpoint."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def library_version():
    return _native.library().version().decode()


def __getattr__(name):
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.metadata.version(__name__)
    except importlib.metadata.PackageNotFoundError:  # not installed: beside a library of its own
        return library_version()


def _numbers(values, code, bits):
    """(address, count, what must stay alive) of integers: a buffer of the right width as it is, anything else copied."""
    try:
        view = memoryview(values)
    except TypeError:
        try:
            numbers = array(code, values)
        except OverflowError:  # engines that publish signed names
            numbers = array(code, [value & _MASK for value in values] if bits == 64 else values)
        address, count = numbers.buffer_info()
        return address, count, numbers
    if view.itemsize * 8 != bits or not view.c_contiguous or view.format not in "QqLlIi":
        raise TypeError(f"a contiguous buffer of {bits}-bit integers is wanted, not of {view.format!r}")
    if view.nbytes == 0:
        return None, 0, view
    if view.readonly:
        copy = array(code)
        copy.frombytes(view.cast("B"))
        return copy.buffer_info()[0], len(copy), copy
    return ctypes.addressof(ctypes.c_char.from_buffer(view)), view.nbytes // view.itemsize, view


def _digests(blocks):
    """Bytes names of equal length, one after the other, and that length; None when the names are integers."""
    if not isinstance(blocks, (list, tuple)) or not blocks or not isinstance(blocks[0], bytes):
        return None
    size = len(blocks[0])
    if any(len(block) != size for block in blocks):
        raise ValueError("names of different lengths in one call")
    return b"".join(blocks), size


def _names(blocks):
    """Where the blocks' names lie, of how many bytes each (0: 64-bit numbers), and what must stay alive."""
    digests = _digests(blocks)
    if digests is not None:
        return digests[0], digests[1], digests
    address, _, alive = _numbers(blocks, _NUMBERS, 64)
    return address, 0, alive


def _tier(name):
    try:
        return _TIERS[name]
    except KeyError:
        raise ValueError(f"tier {name!r}: one of {', '.join(_TIERS)}") from None


def _text(value):
    return value.encode() if value else None


class Publisher:
    """One data-parallel rank of one engine. Also a context manager."""

    def __init__(self, leaves=(), *, worker, model, tenant="", dp_rank=0, block_size=16, hash_seed=None,
                 lora_name="", cache_salt="", labels=None, batch_blocks=None, batch_age_s=None,
                 queue_bytes_max=None, zmq_endpoint=None, zmq_replay_endpoint=None, zmq_topic="",
                 redis_url=None, redis_cell=None, redis_shards=None, cell=None, eagle_drop=None, chunk_tokens=None,
                 window_tokens=None, hybrid=None, tls_ca=None, tls_cert=None, tls_key=None):
        """`leaves`: "host:port" of every replica of the cell's leaf, or where they are found, whenever they come and go:
        "dns:host:port", "redis://host:port" (those of `cell`). `labels`: {name: value}. `zmq_…`: the same calls as
        vLLM's KV events, for consumers that are not ours. `redis_…`: through a log in Redis, beside the leaves or instead
        of them. Of `publish` and hybrid models, what no event says: `eagle_drop`, the attention groups of a speculating engine
        whose last matched block is not reused ("all", or "1,2"); `chunk_tokens`, of chunked local attention;
        `window_tokens`, of SGLang's sliding window; `hybrid`, whether there are windows or recurrent states of which events may
        not tell, so that answers are marked as degraded until they do. `tls_…`: paths of PEM files; with `tls_ca` the leaves are reached by
        TLS, with a certificate and its key as worker/CELL/NAME. None: the library's default."""
        self._native = _native.library()
        options = _native.Options()
        self._native.options_init(options, ctypes.sizeof(options))
        leaves = [leaf.encode() for leaf in ([leaves] if isinstance(leaves, str) else leaves)]
        options.leaves = (ctypes.c_char_p * len(leaves))(*leaves)
        options.leaves_count = len(leaves)
        labels = [_native.Label(_text(name) or b"", _text(value) or b"")
                  for name, value in (labels or {}).items()]
        options.labels = (_native.Label * len(labels))(*labels)
        options.labels_count = len(labels)
        for name, value in (("worker", worker), ("model", model), ("tenant", tenant),
                            ("zmq_endpoint", zmq_endpoint), ("zmq_replay_endpoint", zmq_replay_endpoint),
                            ("zmq_topic", zmq_topic), ("redis_url", redis_url), ("redis_cell", redis_cell),
                            ("cell", cell), ("eagle_drop", eagle_drop), ("tls_ca", tls_ca),
                            ("tls_cert", tls_cert), ("tls_key", tls_key)):
            setattr(options, name, _text(value))
        options.within.lora_name = _text(lora_name)
        options.within.cache_salt = _text(cache_salt)
        options.dp_rank = dp_rank
        options.block_size = block_size
        for name, value in (("hash_seed", hash_seed), ("batch_blocks", batch_blocks),
                            ("queue_bytes_max", queue_bytes_max), ("redis_shards", redis_shards),
                            ("chunk_tokens", chunk_tokens), ("window_tokens", window_tokens),
                            ("hybrid", None if hybrid is None else int(hybrid)),
                            ("batch_age_us", None if batch_age_s is None else round(batch_age_s * 1e6))):
            if value is not None:
                setattr(options, name, value)
        handle = ctypes.c_void_p()
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._native.create(options, handle, text, len(text))
        if code != _native.OK:
            raise PublisherError(code, text.value.decode(errors="replace"))
        self._handle = handle.value
        self.block_size = block_size
        # Also when the interpreter ends. In a forked child it touches nothing.
        self._end = weakref.finalize(self, self._native.destroy, self._handle)

    # ---- What the engine says ----

    def stored(self, blocks, tokens=(), parent=None, tier="device", *, lora_name=None, cache_salt=None):
        """A run of consecutive blocks under the engine's own names (integers, or bytes of one length) is now in `tier`,
        after `parent`. `tokens` has block_size for each; or none: the blocks are held in another tier already."""
        within = None
        if lora_name is not None or cache_salt is not None:
            within = ctypes.byref(_native.Namespace(_text(lora_name), _text(cache_salt)))
        at, count, alive = _numbers(tokens, _TOKENS, 32)
        digests = _digests(blocks)
        if digests is not None:
            names, size = digests
            if parent is not None and len(parent) != size:
                raise ValueError("a parent of another length than the blocks' names")
            code = self._native.stored_bytes(self._live(), _tier(tier), names, size, len(blocks), parent,
                                             at, count, within)
        else:
            names_at, names, names_alive = _numbers(blocks, _NUMBERS, 64)
            after = None if parent is None else ctypes.byref(ctypes.c_uint64(parent & _MASK))
            code = self._native.stored(self._live(), _tier(tier), names_at, names, after, at, count, within)
            del names_alive
        del alive
        self._check(code)

    def removed(self, blocks, tier="device"):
        """One copy less of each."""
        digests = _digests(blocks)
        if digests is not None:
            self._check(self._native.removed_bytes(self._live(), _tier(tier), digests[0], digests[1],
                                                   len(blocks)))
            return
        at, count, alive = _numbers(blocks, _NUMBERS, 64)
        self._check(self._native.removed(self._live(), _tier(tier), at, count))
        del alive

    def stored_hashed(self, position, parent, blocks, tier="device"):
        """Blocks by the contract's sequence hashes; `parent` is 0 at position 0. Removed by `removed_hashed`."""
        at, count, alive = _numbers(blocks, _NUMBERS, 64)
        self._check(self._native.stored_hashed(self._live(), _tier(tier), position, parent, at, count))
        del alive

    def removed_hashed(self, blocks, tier="device"):
        at, count, alive = _numbers(blocks, _NUMBERS, 64)
        self._check(self._native.removed_hashed(self._live(), _tier(tier), at, count))
        del alive

    def stored_in_group(self, group, kind, blocks, tokens, parent=None, tier="device", *, block_size=0, window=0,
                        lora_name=None, cache_salt=None):
        """For hybrid models: a run of consecutive blocks of the engine's group number `group`, those of the group with full
        attention included. `kind`: "full", "window" (of `window` tokens, as vLLM counts them), "state", "chunk".
        `block_size`: the group's, where it is another. For engines that say everything so, or by `publish`."""
        if kind not in _KINDS:
            raise ValueError(f"kind {kind!r}: expected one of {', '.join(_KINDS)}")
        of = _native.Group(ctypes.sizeof(_native.Group), group, _KINDS.index(kind), block_size, window)
        within = None
        if lora_name is not None or cache_salt is not None:
            within = ctypes.byref(_native.Namespace(_text(lora_name), _text(cache_salt)))
        at, count, alive = _numbers(tokens, _TOKENS, 32)
        names, size, names_alive = _names(blocks)
        after = parent
        if parent is not None and size == 0:
            after = ctypes.byref(ctypes.c_uint64(parent & _MASK))
        elif parent is not None and len(parent) != size:
            raise ValueError("a parent of another length than the blocks' names")
        code = self._native.stored_in_group(self._live(), of, _tier(tier), names, size, len(blocks), after, at, count,
                                            within)
        del alive, names_alive
        self._check(code)

    def removed_in_group(self, group, blocks, tier="device"):
        """One copy less of each of these blocks of the group."""
        names, size, alive = _names(blocks)
        self._check(self._native.removed_in_group(self._live(), group, _tier(tier), names, size, len(blocks)))
        del alive

    def cleared(self, *tiers):
        """Nothing is left in these tiers; without any, in all."""
        mask = sum({1 << _tier(tier) for tier in tiers}) if tiers else _native.TIERS_ALL
        self._check(self._native.cleared(self._live(), mask))

    def publish(self, engine_batch):
        """A batch of events in the engine's own words: the msgpack, as bytes, that vLLM's and SGLang's publishers send. An
        engine speaks so, or by the calls above, not both."""
        code = self._native.publish(self._handle, engine_batch, len(engine_batch))
        if code:
            self._check(code)

    def set_load(self, *, running_requests=0, waiting_requests=0, used_blocks=0, free_blocks=0,
                 waiting_prefill_blocks=0, tokens_per_s=0.0):
        load = _native.Load(ctypes.sizeof(_native.Load), running_requests, waiting_requests, used_blocks,
                            free_blocks, waiting_prefill_blocks, tokens_per_s)
        self._check(self._native.set_load(self._live(), load))

    def flush(self):
        """What waits is sent at once. Does not wait."""
        self._check(self._native.flush(self._live()))

    # ---- How it goes ----

    def wait_acknowledged(self, timeout_s):
        """Whether, in time, everything said so far was acknowledged by every replica that is connected, at least by one."""
        code = self._native.wait_acknowledged(self._live(), round(timeout_s * 1000))
        if code == _native.DEADLINE_EXCEEDED:
            return False
        self._check(code)
        return True

    def stats(self):
        """Counters by the names of kvatlas_publisher.h; `last_error`, what went wrong last in words; and `replicas`, one for each
        leaf, each with `error`: why it is not told, such as "Connection refused" or another block size."""
        stats = _native.Stats(ctypes.sizeof(_native.Stats))
        self._check(self._native.get_stats(self._live(), stats))
        result = {name: getattr(stats, name) for name, _ in stats._fields_[1:]}
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._native.last_error(self._live(), text, len(text))
        result["last_error"] = text.value.decode(errors="replace")
        result["replicas"] = [self._replica(i) for i in range(stats.replicas)]
        return result

    def _replica(self, number):
        stats = _native.ReplicaStats(ctypes.sizeof(_native.ReplicaStats))
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._check(self._native.get_replica(self._live(), number, stats, text, len(text)))
        result = {name: getattr(stats, name) for name, _ in stats._fields_[1:]}
        return {**result, "error": text.value.decode(errors="replace")}

    @property
    def zmq_endpoint(self):
        """As bound, with the port that was taken; None: there is none."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._native.zmq_endpoint(self._live(), text, len(text))
        return text.value.decode() if code == _native.OK else None

    # ---- The end ----

    def stop(self, goodbye=True, flush_for_s=1.0):
        """Sends for at most `flush_for_s` what is due. With `goodbye` the leaves forget the worker at once. Idempotent."""
        self._check(self._native.stop(self._live(), int(goodbye), round(flush_for_s * 1000)))

    def close(self):
        """Ends without a goodbye, so that a restart within the lease goes unnoticed. Idempotent."""
        self._handle = None
        self._end()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _live(self):
        if self._handle is None:
            raise PublisherError(_native.FAILED_PRECONDITION, "the publisher is closed")
        return self._handle

    def _check(self, code):
        if code == _native.OK:
            return
        self._live()
        why = self._native.code_name(code).decode()
        if code == _native.FAILED_PRECONDITION:
            why += ": stopped, or made before this process was forked"
        if code == _native.INVALID_ARGUMENT:
            text = ctypes.create_string_buffer(_TEXT_BYTES)
            self._native.last_error(self._live(), text, len(text))
            why += ": " + text.value.decode(errors="replace")
        raise PublisherError(code, why)
