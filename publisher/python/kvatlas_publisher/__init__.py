"""How does an engine in Python tell kvatlas which KV cache blocks it has?

    from kvatlas_publisher import Publisher

    publisher = Publisher(["leaf-0:7410"], worker="worker-3", model="llama-70b", block_size=16)
    publisher.stored([7001, 7002], tokens)               # 32 token ids
    publisher.stored([7003], more_tokens, parent=7002)   # 16, behind them
    publisher.removed([7003])

Calls copy their arguments into a queue and return; hashing, copies, connections, snapshots are the business of a thread of
the library, which never takes the interpreter's lock. Only hashes leave the host, never token ids. For vLLM and SGLang
there is nothing to write: see `kvatlas_publisher.vllm` and `kvatlas_publisher.sglang`.

Threads: any; `close` waits for calls under way. Fork: in a child, a publisher of the parent's raises `PublisherError`, and the parent's goes on; a child makes
its own if the parent had made none before the fork (importing this is harmless). Bounds and the rest: kvatlas_publisher.h.
"""

import atexit
import ctypes
import importlib.metadata
import time
import weakref
from array import array

from kvatlas_publisher import _native

__all__ = ["Publisher", "PublisherError", "__version__", "library_version"]

_TIERS = {"device": 0, "host": 1, "disk": 2, "external": 3}
_MASK = (1 << 64) - 1
_NUMBERS = "Q" if array("Q").itemsize == 8 else "L"
_TOKENS = "I" if array("I").itemsize == 4 else "L"
_TEXT_BYTES = 1024
_WAIT_SLICE_S = 0.1  # of `wait_acknowledged`, after which it looks whether it was closed
_KINDS = ("full", "window", "state", "chunk")  # KVATLAS_GROUP_…
_publishers = weakref.WeakSet()


@atexit.register
def _end():
    """Daemon threads go on until later, and may be in calls."""
    for publisher in list(_publishers):
        publisher.close()


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


def _name(value):
    """A block's name as C has it. Engines may publish signed ones."""
    if not -1 << 63 <= value <= _MASK:
        raise OverflowError(f"a block's name {value}: does not fit in 64 bits")
    return value & _MASK


def _numbers(values, code, bits):
    """(address, count, what must stay alive) of integers: a buffer of the right width as it is, anything else copied."""
    try:
        view = memoryview(values)
    except TypeError:
        values = values if isinstance(values, (list, tuple, range)) else list(values)
        try:
            numbers = array(code, values)
        except OverflowError:
            if bits != 64:
                raise
            numbers = array(code, [_name(value) for value in values])
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
    """Where the blocks' names lie, of how many bytes each (0: 64-bit numbers), how many, and what must stay alive."""
    digests = _digests(blocks)
    if digests is not None:
        return *digests, len(blocks), digests
    address, count, alive = _numbers(blocks, _NUMBERS, 64)
    return address, 0, count, alive


def _parent(parent, size):
    """Of blocks whose names have `size` bytes."""
    if parent is None:
        return None
    if size == 0:
        return ctypes.byref(ctypes.c_uint64(_name(parent)))
    if len(parent) != size:
        raise ValueError("a parent of another length than the blocks' names")
    return parent


def _within(lora_name, cache_salt):
    if lora_name is None and cache_salt is None:
        return None
    within = _native.Namespace()
    _native.fill(within, lora_name=lora_name, cache_salt=cache_salt)
    return ctypes.byref(within)


def _tier(name):
    try:
        return _TIERS[name]
    except KeyError:
        raise ValueError(f"tier {name!r}: one of {', '.join(_TIERS)}") from None


def _units(name, seconds, per_second):
    """Whole units of a time, also of one that is without end."""
    if not seconds >= 0:
        raise ValueError(f"{name}: {seconds} seconds; expected 0 or more")
    return round(min(seconds * per_second, 1 << 62))


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
        leaves = [_native.text("leaves", leaf) for leaf in ([leaves] if isinstance(leaves, str) else leaves)]
        options.leaves = (ctypes.c_char_p * len(leaves))(*leaves)
        options.leaves_count = len(leaves)
        labels = [_native.Label(_native.text("labels", name), _native.text("labels", value))
                  for name, value in (labels or {}).items()]
        options.labels = (_native.Label * len(labels))(*labels)
        options.labels_count = len(labels)
        given = {"hash_seed": hash_seed, "batch_blocks": batch_blocks, "queue_bytes_max": queue_bytes_max,
                 "redis_shards": redis_shards, "chunk_tokens": chunk_tokens, "window_tokens": window_tokens,
                 "hybrid": hybrid, "batch_age_us": None if batch_age_s is None else _units("batch_age_s", batch_age_s, 1e6)}
        _native.fill(options, worker=worker, model=model, tenant=tenant, zmq_endpoint=zmq_endpoint,
                     zmq_replay_endpoint=zmq_replay_endpoint, zmq_topic=zmq_topic, redis_url=redis_url,
                     redis_cell=redis_cell, cell=cell, eagle_drop=eagle_drop, tls_ca=tls_ca, tls_cert=tls_cert,
                     tls_key=tls_key, dp_rank=dp_rank, block_size=block_size,
                     **{name: value for name, value in given.items() if value is not None})
        _native.fill(options.within, lora_name=lora_name, cache_salt=cache_salt)
        handle = _native.Handle(self._native.destroy)
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._native.create(options, handle, text, _TEXT_BYTES)
        if code != _native.OK:
            raise PublisherError(code, text.value.decode(errors="replace"))
        self._handle = handle  # None: closed; calls then return INVALID_ARGUMENT
        self.block_size = block_size
        _publishers.add(self)

    # ---- What the engine says ----

    def stored(self, blocks, tokens=(), parent=None, tier="device", *, lora_name=None, cache_salt=None):
        """A run of consecutive blocks under the engine's own names (integers, or bytes of one length) is now in `tier`,
        after `parent`. `tokens` has block_size for each; or none: the blocks are held in another tier already."""
        tier, within = _tier(tier), _within(lora_name, cache_salt)
        at, count, alive = _numbers(tokens, _TOKENS, 32)
        names, size, blocks_count, names_alive = _names(blocks)
        after = _parent(parent, size)
        if size:
            code = self._native.stored_bytes(self._handle, tier, names, size, blocks_count, after, at, count, within)
        else:
            code = self._native.stored(self._handle, tier, names, blocks_count, after, at, count, within)
        del alive, names_alive
        self._check(code)

    def removed(self, blocks, tier="device"):
        """One copy less of each."""
        tier = _tier(tier)
        names, size, count, alive = _names(blocks)
        if size:
            code = self._native.removed_bytes(self._handle, tier, names, size, count)
        else:
            code = self._native.removed(self._handle, tier, names, count)
        del alive
        self._check(code)

    def stored_hashed(self, position, parent, blocks, tier="device"):
        """Blocks by the contract's sequence hashes; `parent` is 0 at position 0. Removed by `removed_hashed`."""
        tier = _tier(tier)
        _native.number("position", position, ctypes.c_uint32)
        _native.number("parent", parent, ctypes.c_uint64)
        at, count, alive = _numbers(blocks, _NUMBERS, 64)
        self._check(self._native.stored_hashed(self._handle, tier, position, parent, at, count))
        del alive

    def removed_hashed(self, blocks, tier="device"):
        tier = _tier(tier)
        at, count, alive = _numbers(blocks, _NUMBERS, 64)
        self._check(self._native.removed_hashed(self._handle, tier, at, count))
        del alive

    def stored_in_group(self, group, kind, blocks, tokens, parent=None, tier="device", *, block_size=0, window=0,
                        lora_name=None, cache_salt=None):
        """For hybrid models: a run of consecutive blocks of the engine's group number `group`, those of the group with full
        attention included. `kind`: "full", "window" (of `window` tokens, as vLLM counts them), "state", "chunk".
        `block_size`: the group's, where it is another. For engines that say everything so, or by `publish`."""
        if kind not in _KINDS:
            raise ValueError(f"kind {kind!r}: expected one of {', '.join(_KINDS)}")
        of = _native.Group(ctypes.sizeof(_native.Group))
        _native.fill(of, number=group, kind=_KINDS.index(kind), block_size=block_size, window_tokens=window)
        tier, within = _tier(tier), _within(lora_name, cache_salt)
        at, count, alive = _numbers(tokens, _TOKENS, 32)
        names, size, blocks_count, names_alive = _names(blocks)
        after = _parent(parent, size)
        code = self._native.stored_in_group(self._handle, of, tier, names, size, blocks_count, after, at, count, within)
        del alive, names_alive
        self._check(code)

    def removed_in_group(self, group, blocks, tier="device"):
        """One copy less of each of these blocks of the group."""
        tier = _tier(tier)
        _native.number("group", group, ctypes.c_uint32)
        names, size, count, alive = _names(blocks)
        self._check(self._native.removed_in_group(self._handle, group, tier, names, size, count))
        del alive

    def cleared(self, *tiers):
        """Nothing is left in these tiers; without any, in all."""
        mask = sum({1 << _tier(tier) for tier in tiers}) if tiers else _native.TIERS_ALL
        self._check(self._native.cleared(self._handle, mask))

    def publish(self, engine_batch):
        """A batch of events in the engine's own words: the msgpack, as bytes, that vLLM's and SGLang's publishers send. An
        engine speaks so, or by the calls above, not both."""
        size = len(engine_batch)
        code = self._native.publish(self._handle, engine_batch, size)
        if code:
            self._check(code)

    def set_load(self, *, running_requests=0, waiting_requests=0, used_blocks=0, free_blocks=0,
                 waiting_prefill_blocks=0, tokens_per_s=0.0):
        load = _native.Load(ctypes.sizeof(_native.Load))
        _native.fill(load, running_requests=running_requests, waiting_requests=waiting_requests, used_blocks=used_blocks,
                     free_blocks=free_blocks, waiting_prefill_blocks=waiting_prefill_blocks, tokens_per_s=tokens_per_s)
        self._check(self._native.set_load(self._handle, load))

    def flush(self):
        """What waits is sent at once. Does not wait."""
        self._check(self._native.flush(self._handle))

    # ---- How it goes ----

    def wait_acknowledged(self, timeout_s):
        """Whether, in time, everything said so far was acknowledged by every replica that is connected, at least by one."""
        until = time.monotonic() + timeout_s
        code = _native.DEADLINE_EXCEEDED
        while code == _native.DEADLINE_EXCEEDED:
            left_s = max(until - time.monotonic(), 0)
            slice_ms = _units("timeout_s", min(left_s, _WAIT_SLICE_S), 1000)
            code = self._native.wait_acknowledged(self._handle, slice_ms)
            if code == _native.DEADLINE_EXCEEDED and left_s <= _WAIT_SLICE_S:
                return False
        self._check(code)
        return True

    def stats(self):
        """Counters by the names of kvatlas_publisher.h; `last_error`, what went wrong last in words; and `replicas`, one for each
        leaf, each with `error`: why it is not told, such as "Connection refused" or another block size."""
        stats = _native.Stats(ctypes.sizeof(_native.Stats))
        self._check(self._native.get_stats(self._handle, stats))
        result = {name: getattr(stats, name) for name, _ in stats._fields_[1:]}
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._native.last_error(self._handle, text, _TEXT_BYTES)
        result["last_error"] = text.value.decode(errors="replace")
        result["replicas"] = [self._replica(i) for i in range(stats.replicas)]
        return result

    def _replica(self, number):
        stats = _native.ReplicaStats(ctypes.sizeof(_native.ReplicaStats))
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._check(self._native.get_replica(self._handle, number, stats, text, _TEXT_BYTES))
        result = {name: getattr(stats, name) for name, _ in stats._fields_[1:]}
        return {**result, "error": text.value.decode(errors="replace")}

    @property
    def zmq_endpoint(self):
        """As bound, with the port that was taken; None: there is none."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._native.zmq_endpoint(self._handle, text, _TEXT_BYTES)
        if code == _native.NOT_FOUND:
            return None
        self._check(code)
        return text.value.decode()

    # ---- The end ----

    def stop(self, goodbye=True, flush_for_s=1.0):
        """Sends for at most `flush_for_s` what is due. With `goodbye` the leaves forget the worker at once. Idempotent."""
        goodbye, flush_for_ms = int(goodbye), _units("flush_for_s", max(flush_for_s, 0), 1000)
        self._check(self._native.stop(self._handle, goodbye, flush_for_ms))

    def close(self):
        """Ends without a goodbye, so that a restart within the lease goes unnoticed. Calls are refused from now on; those under
        way are waited for. Idempotent; done when the interpreter ends."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        code, ended = self._native.stop(handle, 0, 0), handle.ended
        del handle
        if code == _native.OK:  # not in a forked child: the calls under way at the fork do not end there
            ended.wait()

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
            self._native.last_error(self._handle, text, _TEXT_BYTES)
            why += ": " + text.value.decode(errors="replace")
        raise PublisherError(code, why)
