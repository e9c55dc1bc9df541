"""The C interface, kvatlas_publisher.h, through ctypes: structs and signatures, and where the library lies."""

import ctypes
import os
import threading
from ctypes import POINTER, c_char_p, c_double, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

ABI = 1

OK = 0
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
INTERNAL = 13
UNAVAILABLE = 14

TIERS_ALL = 15


class Label(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("value", c_char_p)]


class Namespace(ctypes.Structure):
    _fields_ = [("lora_name", c_char_p), ("cache_salt", c_char_p)]


class Group(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("number", c_uint32), ("kind", c_uint32),
                ("block_size", c_uint32), ("window_tokens", c_uint32)]


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("leaves", POINTER(c_char_p)), ("leaves_count", c_size_t),
        ("worker", c_char_p), ("model", c_char_p), ("tenant", c_char_p), ("dp_rank", c_uint32),
        ("block_size", c_uint32), ("hash_seed", c_uint64), ("within", Namespace),
        ("labels", POINTER(Label)), ("labels_count", c_size_t), ("batch_blocks", c_size_t),
        ("batch_age_us", c_uint64), ("queue_bytes_max", c_size_t), ("window_batches", c_uint64),
        ("digest_every_ms", c_uint64), ("heartbeat_every_ms", c_uint64), ("zmq_endpoint", c_char_p),
        ("zmq_replay_endpoint", c_char_p), ("zmq_topic", c_char_p), ("zmq_attach", c_int32),
        ("zmq_legacy_events", c_int32), ("zmq_replay_without_topic", c_int32),
        ("redis_url", c_char_p), ("redis_cell", c_char_p), ("redis_shards", c_uint32),
        ("cell", c_char_p), ("eagle_drop", c_char_p), ("chunk_tokens", c_uint32),
        ("window_tokens", c_uint32), ("tls_ca", c_char_p), ("tls_cert", c_char_p),
        ("tls_key", c_char_p), ("hybrid", c_int32)]


class Load(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("running_requests", c_uint32), ("waiting_requests", c_uint32),
        ("used_blocks", c_uint64), ("free_blocks", c_uint64), ("waiting_prefill_blocks", c_uint64),
        ("tokens_per_s", c_double)]


class Stats(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t)] + [(name, c_uint64) for name in (
        "blocks_stored", "blocks_removed", "clears", "blocks_stored_passed", "blocks_removed_passed",
        "batches", "blocks_held", "unknown_parents", "unknown_removed", "renamed", "invalid_calls",
        "engine_batches", "engine_unreadable", "engine_refused", "engine_parked", "inline_records",
        "queue_bytes", "replicas")]


class ReplicaStats(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("connected", c_int32), ("welcomed", c_int32),
                ("at_rest", c_int32), ("status", c_int32)] + [(name, c_uint64) for name in (
                    "last_number", "acknowledged", "bytes_sent", "snapshots_sent", "batches_dropped")]


def text(name, value):
    """A C string of a `str` or of `bytes`. A NUL would end it: two salts would be one."""
    value = value.encode() if isinstance(value, str) else value
    if not isinstance(value, bytes):
        raise TypeError(f"{name}: a str or bytes is wanted, not {type(value).__name__}")
    if 0 in value:
        raise ValueError(f"{name}: has a NUL")
    return value


def number(name, value, kind):
    """The value, if it is what C will see: ctypes would wrap it."""
    try:
        fits = kind(value).value == value
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    if not fits:  # nor does a NaN
        raise ValueError(f"{name}: {value} is out of range")
    return value


def fill(struct, **values):
    """Sets fields by their names. A text may be None, and is that when it is empty."""
    kinds = dict(struct._fields_)
    for name, value in values.items():
        if kinds[name] is not c_char_p:
            value = number(name, value, kinds[name])
        elif value is not None:
            value = text(name, value) or None
        setattr(struct, name, value)


class Handle(c_void_p):
    """A publisher of the library's, which ends with its last reference. A call under way has one, so that none is ended under
    it. Between loading an argument that is a handle and the call, nothing else is called: a signal's handler that closes would
    wait for the very thread that it has interrupted."""

    def __init__(self, destroy):
        super().__init__()
        self._destroy = destroy
        self.ended = threading.Event()

    def __del__(self):
        self._destroy(self)  # in a forked child this touches nothing
        self.ended.set()


# What the engine says costs less than giving up the interpreter's lock and getting it back would; what may wait gives it
# up. The publisher's own threads never want it.
_HELD = {
    "stored": [c_int32, c_void_p, c_size_t, c_void_p, c_void_p, c_size_t, c_void_p],
    "removed": [c_int32, c_void_p, c_size_t],
    "stored_bytes": [c_int32, c_void_p, c_size_t, c_size_t, c_void_p, c_void_p, c_size_t, c_void_p],
    "removed_bytes": [c_int32, c_void_p, c_size_t, c_size_t],
    "stored_hashed": [c_int32, c_uint32, c_uint64, c_void_p, c_size_t],
    "removed_hashed": [c_int32, c_void_p, c_size_t],
    "stored_in_group": [POINTER(Group), c_int32, c_void_p, c_size_t, c_size_t, c_void_p, c_void_p, c_size_t, c_void_p],
    "removed_in_group": [c_uint32, c_int32, c_void_p, c_size_t, c_size_t],
    "cleared": [c_uint32],
    "publish": [c_char_p, c_size_t],
    "set_load": [POINTER(Load)],
    "flush": [],
}
_RELEASED = {
    "wait_acknowledged": [c_uint64],
    "stop": [c_int32, c_uint64],
    "get_stats": [POINTER(Stats)],
    "last_error": [c_char_p, c_size_t],
    "get_replica": [c_size_t, POINTER(ReplicaStats), c_char_p, c_size_t],
    "zmq_endpoint": [c_char_p, c_size_t],
}


def library_path():
    """The bundled library, or what KVATLAS_PUBLISHER_LIBRARY names."""
    named = os.environ.get("KVATLAS_PUBLISHER_LIBRARY")
    return named or str(Path(__file__).resolve().parent / "lib" / f"libkvatlas_publisher.so.{ABI}")


class Library:
    """Loaded with RTLD_LOCAL: no other library sees the gRPC and Protobuf in it."""

    def __init__(self, path):
        released = ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
        held = ctypes.PyDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
        released.kvatlas_publisher_abi.restype = c_uint32
        found = released.kvatlas_publisher_abi()
        if found != ABI:
            raise ImportError(f"{path} has interface {found}, this package needs {ABI}")
        for signatures, source in ((_HELD, held), (_RELEASED, released)):
            for name, arguments in signatures.items():
                setattr(self, name, self._function(source, "kvatlas_publisher_" + name,
                                                   [c_void_p, *arguments], c_int32))
        self.create = self._function(
            released, "kvatlas_publisher_create",
            [POINTER(Options), POINTER(c_void_p), c_char_p, c_size_t], c_int32)
        self.destroy = self._function(released, "kvatlas_publisher_destroy", [c_void_p], None)
        self.options_init = self._function(
            released, "kvatlas_publisher_options_init", [POINTER(Options), c_size_t], None)
        self.version = self._function(released, "kvatlas_publisher_version", [], c_char_p)
        self.code_name = self._function(released, "kvatlas_code_name", [c_int32], c_char_p)

    @staticmethod
    def _function(source, name, arguments, result):
        function = getattr(source, name)
        function.argtypes = arguments
        function.restype = result
        return function


_library = None


def library():
    """Loaded by who first makes a publisher, not by an import: a process may import this, fork, and publish in its children."""
    global _library
    if _library is None:
        _library = Library(library_path())
    return _library
