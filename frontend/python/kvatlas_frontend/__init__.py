"""Which worker should take this prompt, for gateways in Python?

    from kvatlas_frontend import Frontend

    frontend = Frontend(hierarchy="hierarchy:7420", models="llama-70b=/models/llama-70b")
    route = frontend.route("llama-70b", messages=[{"role": "user", "content": "…"}])
    send_to(route.url)                                    # the engine that has most of the prompt in its cache
    frontend.report(route, accepted=True)
    frontend.report(route, finished=True, cached_tokens=512, prompt_tokens=700)

A prompt is one of `tokens`, `sequence_hashes`, `text`, `messages` and `body` (of /v1/chat/completions or /v1/completions). `route`
waits, `submit` returns a `concurrent.futures.Future`, `route_async` is for asyncio. All of it runs in the library's own threads,
without the interpreter's lock.

Threads: any; `close` comes last. Fork: in a child, a frontend of the parent's raises `FrontendError`; a child makes its own if the
parent had made none before. Meanings, bounds and codes: kvatlas_frontend.h.
"""

import asyncio
import concurrent.futures
import ctypes
import importlib.metadata
import itertools
import json
import threading
from array import array
from ctypes import byref, c_char_p, c_size_t, c_void_p

from kvatlas_frontend import _native

__all__ = ["Frontend", "FrontendError", "Route", "__version__", "library_version"]

_TEXT_BYTES = 1024
_TOKENS = "I" if array("I").itemsize == 4 else "L"
_NUMBERS = "Q" if array("Q").itemsize == 8 else "L"


class FrontendError(RuntimeError):
    """`code` is one of kvatlas_frontend.h's: 3 a wrong argument, 5 no worker or no tokenizer, 8 too much at once, 14 unreachable."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def library_version():
    return _native.library().frontend_version().decode()


def __getattr__(name):
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.metadata.version(__name__)
    except importlib.metadata.PackageNotFoundError:  # not installed: beside a library of its own
        return library_version()


def _text(value):
    return None if value is None else str(value).encode()


def _json(value):
    return None if value is None else json.dumps(value).encode()


def _numbers(values, code):
    """(address, count, what must stay alive) of integers: a buffer of the right width as it is, anything else copied."""
    try:
        view = memoryview(values)
        if view.itemsize != array(code).itemsize or not view.c_contiguous or view.readonly or view.format in ("f", "d"):
            raise TypeError
        kept = (ctypes.c_char * view.nbytes).from_buffer(view.cast("B"))
        return ctypes.addressof(kept), view.nbytes // view.itemsize, (view, kept)
    except TypeError:
        try:
            kept = array(code, [int(value) for value in values])
        except OverflowError as error:
            raise FrontendError(3, f"a number does not fit: {error}") from None
        return kept.buffer_info()[0], len(kept), kept


class Route:
    """Who was chosen. Plain values."""

    def __init__(self, library, handle):
        self.decision_id = library.route_decision_id(handle)
        self.worker = library.route_worker(handle).decode()
        self.rank = library.route_rank(handle)
        self.cell = library.route_cell(handle).decode()
        self.url = library.route_url(handle).decode()  # of its engine; "": not known
        self.overlap_blocks = library.route_overlap_blocks(handle)
        decode = library.route_decode_worker(handle)
        self.decode_worker = None if decode is None else decode.decode()
        self.decode_rank = library.route_decode_rank(handle)
        self.decode_cell = None if decode is None else library.route_decode_cell(handle).decode()
        self.decode_url = None if decode is None else library.route_decode_url(handle).decode()
        self.prompt_tokens = library.route_prompt_tokens(handle)
        self.tokenizer = library.route_tokenizer(handle).decode()
        count = c_size_t()
        tokens = library.route_tokens(handle, byref(count))
        self.tokens = tokens[:count.value] if tokens else None  # where they were wanted
        self.answer = json.loads(library.route_receipt_json(handle))  # `RouteResponse` of frontend.proto

    @property
    def receipt(self):
        """Why this worker."""
        return self.answer.get("receipt", {})

    def __repr__(self):
        return f"Route(worker={self.worker!r}, cell={self.cell!r}, overlap_blocks={self.overlap_blocks})"


class Frontend:
    """Options are those of `kvatlas_frontend_options`; a hierarchy or a leaf must be named."""

    def __init__(self, *, hierarchy=None, leaves=(), deadline=None, in_flight_ttl=None, **options):
        self._library = _native.library()
        given = _native.Options()
        self._library.frontend_options_init(byref(given), ctypes.sizeof(given))
        given.hierarchy = _text(hierarchy)
        leaves = [leaves] if isinstance(leaves, str) else list(leaves)
        given.leaves = (c_char_p * len(leaves))(*(leaf.encode() for leaf in leaves))
        given.leaves_count = len(leaves)
        if deadline is not None:
            given.deadline_us = int(deadline * 1e6)
        if in_flight_ttl is not None:
            given.in_flight_ttl_ms = int(in_flight_ttl * 1e3)
        known = {name for name, _ in given._fields_} - {"struct_size", "leaves_count", "deadline_us", "in_flight_ttl_ms"}
        for name, value in options.items():
            if name not in known:
                raise TypeError(f"Frontend has no option {name!r}; it has {', '.join(sorted(known))}, deadline, in_flight_ttl")
            setattr(given, name, _text(value) if isinstance(value, str) else value)
        self._handle = c_void_p()
        error = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._library.frontend_create(byref(given), byref(self._handle), error, len(error))
        if code != _native.OK:
            raise FrontendError(code, error.value.decode(errors="replace"))
        self._lock = threading.Lock()
        self._waiting = {}  # by number: (future, what must stay alive)
        self._numbers = itertools.count(1)
        self._callback = _native.CALLBACK(self._answered)

    def route(self, model=None, **prompt):
        """Waits for the choice. See `submit`."""
        request, kept = self._request(model, **prompt)
        route = c_void_p()
        error = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._library.frontend_route(self._open(), byref(request), byref(route), error, len(error))
        del kept
        if code != _native.OK:
            raise FrontendError(code, error.value.decode(errors="replace"))
        return self._taken(route)

    def submit(self, model=None, **prompt):
        """A future of the route. Prompts and the rest: `kvatlas_route_request`; `deadline` is in seconds."""
        request, kept = self._request(model, **prompt)
        future = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        number = next(self._numbers)
        with self._lock:
            self._waiting[number] = (future, kept)
        code = self._library.frontend_route_async(self._open(), byref(request), self._callback, number)
        if code != _native.OK:
            with self._lock:
                self._waiting.pop(number, None)
            raise FrontendError(code, self._library.frontend_code_name(code).decode())
        return future

    async def route_async(self, model=None, **prompt):
        return await asyncio.wrap_future(self.submit(model, **prompt))

    def report(self, route, *, accepted=False, finished=False, abandoned=False, unreachable=False, cached_tokens=None,
               prompt_tokens=None, error=None, decode_unreachable=False):
        """What became of a route, or of a decision's id. Unknown ids are ignored."""
        report = _native.Report()
        self._library.route_report_init(byref(report), ctypes.sizeof(report))
        report.accepted, report.finished, report.abandoned = accepted, finished, abandoned
        report.unreachable, report.decode_unreachable = unreachable, decode_unreachable
        report.cached_tokens = -1 if cached_tokens is None else cached_tokens
        report.prompt_tokens = -1 if prompt_tokens is None else prompt_tokens
        report.error = _text(error)
        decision = route.decision_id if isinstance(route, Route) else int(route)
        self._check(self._library.frontend_report(self._open(), decision, byref(report)))

    def stats(self):
        """{name: count} of `kvatlas_frontend_stats`."""
        stats = _native.Stats(struct_size=ctypes.sizeof(_native.Stats))
        self._check(self._library.frontend_get_stats(self._open(), byref(stats)))
        return {name: getattr(stats, name) for name, _ in stats._fields_ if name != "struct_size"}

    def close(self):
        """Waits for the routes under way. Idempotent."""
        handle, self._handle = self._handle, c_void_p()
        if handle:
            self._library.frontend_destroy(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None):
            self.close()

    def _open(self):
        if not self._handle:
            raise FrontendError(9, "the frontend is closed")
        return self._handle

    def _check(self, code):
        if code != _native.OK:
            raise FrontendError(code, self._library.frontend_code_name(code).decode())

    def _taken(self, handle):
        try:
            return Route(self._library, handle)
        finally:
            self._library.route_free(handle)

    def _answered(self, number, code, error, handle):
        """In a thread of the library's."""
        with self._lock:
            future, _ = self._waiting.pop(number)
        try:
            if code != _native.OK:
                raise FrontendError(code, (error or b"").decode(errors="replace"))
            future.set_result(self._taken(handle))
        except Exception as failed:  # noqa: BLE001: it is the future's
            future.set_exception(failed)

    def _request(self, model, *, tokens=None, sequence_hashes=None, text=None, messages=None, tools=None,
                 template_kwargs=None, chat_template=None, add_generation_prompt=True, continue_final_message=False,
                 add_special_tokens=None, body=None, tenant=None, lora_name=None, cache_salt=None, session_id=None,
                 allowed_workers=(), expected_output_tokens=0, deadline=None, return_tokens=False, prompt_tokens=0):
        """The request, and what must stay alive as long as it is used."""
        request = _native.Request()
        self._library.route_request_init(byref(request), ctypes.sizeof(request))
        kept = []
        if tokens is not None:
            request.tokens, request.tokens_count, keep = _numbers(tokens, _TOKENS)
            kept.append(keep)
        if sequence_hashes is not None:
            request.sequence_hashes, request.sequence_hashes_count, keep = _numbers(sequence_hashes, _NUMBERS)
            kept.append(keep)
        if text is not None:
            request.text = text.encode()
            request.text_size = len(request.text)
        if body is not None:
            request.body = body.encode() if isinstance(body, str) else bytes(body) if isinstance(
                body, (bytes, bytearray, memoryview)) else _json(body)
            request.body_size = len(request.body)
        request.model, request.tenant = _text(model), _text(tenant)
        request.lora_name, request.cache_salt, request.session_id = _text(lora_name), _text(cache_salt), _text(session_id)
        request.messages_json, request.tools_json = _json(messages), _json(tools)
        request.template_kwargs_json, request.chat_template = _json(template_kwargs), _text(chat_template)
        request.add_generation_prompt, request.continue_final_message = add_generation_prompt, continue_final_message
        request.add_special_tokens = -1 if add_special_tokens is None else int(add_special_tokens)
        allowed = [worker.encode() for worker in allowed_workers]
        request.allowed_workers = (c_char_p * len(allowed))(*allowed)
        request.allowed_workers_count = len(allowed)
        request.expected_output_tokens = expected_output_tokens
        request.deadline_us = 0 if deadline is None else int(deadline * 1e6)
        request.return_tokens = return_tokens
        request.prompt_tokens = prompt_tokens
        return request, kept
