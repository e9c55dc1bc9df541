"""The C interface, kvatlas_frontend.h, through ctypes: structs and signatures, and where the library lies."""

import ctypes
import os
import threading
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

ABI = 1

OK = 0


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("hierarchy", c_char_p), ("leaves", POINTER(c_char_p)), ("leaves_count", c_size_t),
        ("ask", c_uint32), ("block_size", c_uint32), ("hash_seed", c_uint64), ("deadline_us", c_uint64),
        ("in_flight_ttl_ms", c_uint64), ("zone", c_char_p), ("zone_distance", c_double), ("prefill_weight", c_double),
        ("queue_weight", c_double), ("decode_weight", c_double), ("temperature", c_double), ("seed", c_uint64),
        ("routes_max", c_uint32), ("models", c_char_p), ("prompt_threads", c_uint32), ("prompts_max", c_uint32),
        ("schedule", c_char_p)]


class Request(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("model", c_char_p), ("tenant", c_char_p), ("tokens", c_void_p),
        ("tokens_count", c_size_t), ("sequence_hashes", c_void_p), ("sequence_hashes_count", c_size_t),
        ("lora_name", c_char_p), ("cache_salt", c_char_p), ("session_id", c_char_p),
        ("allowed_workers", POINTER(c_char_p)), ("allowed_workers_count", c_size_t),
        ("expected_output_tokens", c_uint32), ("deadline_us", c_uint64), ("text", c_char_p), ("text_size", c_size_t),
        ("messages_json", c_char_p), ("tools_json", c_char_p), ("template_kwargs_json", c_char_p),
        ("chat_template", c_char_p), ("add_generation_prompt", c_int32), ("continue_final_message", c_int32),
        ("add_special_tokens", c_int32), ("body", c_char_p), ("body_size", c_size_t), ("return_tokens", c_int32),
        ("prompt_tokens", c_uint32)]


class Report(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t), ("accepted", c_int32), ("finished", c_int32), ("abandoned", c_int32),
        ("unreachable", c_int32), ("cached_tokens", c_int64), ("prompt_tokens", c_int64), ("error", c_char_p),
        ("decode_unreachable", c_int32)]


class Stats(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t)] + [(name, c_uint64) for name in (
        "routes", "failed", "fallbacks", "in_flight", "cells", "workers", "under_way")]


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
    """Sets fields by their names. A text may be None."""
    kinds = dict(struct._fields_)
    for name, value in values.items():
        if kinds[name] is not c_char_p:
            value = number(name, value, kinds[name])
        elif value is not None:
            value = text(name, value)
        setattr(struct, name, value)


CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p, c_void_p)

# {function without its prefix kvatlas_: (result, arguments)}
_SIGNATURES = {
    "frontend_version": (c_char_p, []),
    "frontend_options_init": (None, [POINTER(Options), c_size_t]),
    "frontend_create": (c_int32, [POINTER(Options), POINTER(c_void_p), c_char_p, c_size_t]),
    "frontend_destroy": (None, [c_void_p]),
    "frontend_code_name": (c_char_p, [c_int32]),
    "route_request_init": (None, [POINTER(Request), c_size_t]),
    "frontend_route": (c_int32, [c_void_p, POINTER(Request), POINTER(c_void_p), c_char_p, c_size_t]),
    "frontend_route_async": (c_int32, [c_void_p, POINTER(Request), CALLBACK, c_void_p]),
    "route_decision_id": (c_uint64, [c_void_p]),
    "route_worker": (c_char_p, [c_void_p]),
    "route_rank": (c_uint32, [c_void_p]),
    "route_cell": (c_char_p, [c_void_p]),
    "route_url": (c_char_p, [c_void_p]),
    "route_overlap_blocks": (c_uint32, [c_void_p]),
    "route_decode_worker": (c_char_p, [c_void_p]),
    "route_decode_rank": (c_uint32, [c_void_p]),
    "route_decode_cell": (c_char_p, [c_void_p]),
    "route_decode_url": (c_char_p, [c_void_p]),
    "route_prompt_tokens": (c_uint64, [c_void_p]),
    "route_tokenizer": (c_char_p, [c_void_p]),
    "route_tokens": (POINTER(c_uint32), [c_void_p, POINTER(c_size_t)]),
    "route_receipt_json": (c_char_p, [c_void_p]),
    "route_free": (None, [c_void_p]),
    "route_report_init": (None, [POINTER(Report), c_size_t]),
    "frontend_report": (c_int32, [c_void_p, c_uint64, POINTER(Report)]),
    "frontend_get_stats": (c_int32, [c_void_p, POINTER(Stats)]),
}


# `callback`: whether this thread is in one.
here = threading.local()


def in_callback():
    return getattr(here, "callback", False)


class Handle(c_void_p):
    """A frontend of the library's, which ends with its last reference. A call under way has one, so that none is ended under it.
    Between loading an argument that is a handle and the call, nothing else is called: a signal's handler that closes would wait for
    the very thread that it has interrupted."""

    def __init__(self):
        super().__init__()
        self.process = os.getpid()
        self.ended = threading.Event()

    def __del__(self):
        if in_callback():  # which would wait for itself
            threading.Thread(target=_end, args=(self.value, self.ended)).start()
        else:
            _end(self.value, self.ended)


def _end(handle, ended):
    """Waits for the routes under way, and frees; in a forked child it touches nothing."""
    library().frontend_destroy(handle)
    ended.set()


def library_path():
    """The bundled library, or what KVATLAS_FRONTEND_LIBRARY names."""
    named = os.environ.get("KVATLAS_FRONTEND_LIBRARY")
    return named or str(Path(__file__).resolve().parent / "lib" / f"libkvatlas_frontend.so.{ABI}")


class Library:
    """Loaded with RTLD_LOCAL: the gRPC and Protobuf in it are its own."""

    def __init__(self, path):
        loaded = ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
        loaded.kvatlas_frontend_abi.restype = c_uint32
        found = loaded.kvatlas_frontend_abi()
        if found != ABI:
            raise ImportError(f"{path} has interface {found}, this package needs {ABI}")
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, "kvatlas_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)


_library = None


def library():
    global _library
    if _library is None:
        _library = Library(library_path())
    return _library
