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

Threads: any. A future's done-callback runs in a thread of the library's: there `route` is refused and `close` does not wait. Fork: in a child, a frontend of the parent's raises `FrontendError`; a child makes its own if the
parent had made none before. Meanings, bounds and codes: kvatlas_frontend.h.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import ctypes
import importlib.metadata
import itertools
import json
import os
import weakref
from array import array
from ctypes import byref, c_char_p, c_size_t, c_uint64, c_void_p

from kvatlas_frontend import _native

__all__ = ["Frontend", "FrontendError", "Route", "__version__", "library_version"]

_TEXT_BYTES = 1024
_TOKENS = "I" if array("I").itemsize == 4 else "L"
_NUMBERS = "Q" if array("Q").itemsize == 8 else "L"
_INVALID_ARGUMENT = 3
_WHY = {8: "routes_max routes are under way, or there is no memory", 9: "made before this process was forked"}
_frontends = weakref.WeakSet()
_waiting = {}  # by number: (future, the frontend's handle as a number)
_questions = itertools.count(1)


@atexit.register
def _end():
    """No answer may come when the interpreter has ended."""
    for frontend in list(_frontends):
        frontend.close()


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


def _units(name, seconds, per_second):
    """Whole units of a time, also of one that is without end."""
    if not seconds >= 0:
        raise ValueError(f"{name}: {seconds} seconds; expected 0 or more")
    return round(min(seconds * per_second, 1 << 62))


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


def _report(library, **said):
    report = _native.Report()
    library.route_report_init(report, ctypes.sizeof(report))
    _native.fill(report, **said)
    return report


@_native.CALLBACK
def _answered(question, code, error, route):
    """In a thread of the library's, or within `submit`."""
    before, _native.here.callback = _native.in_callback(), True
    library = _native.library()
    try:
        future, frontend = _waiting.pop(question)
        if not future.set_running_or_notify_cancel():
            if route:  # which is of no use any more
                library.frontend_report(frontend, library.route_decision_id(route), _report(library, abandoned=True))
        elif code == _native.OK:
            try:
                future.set_result(Route(library, route))
            except Exception as failed:  # noqa: BLE001: it is the future's
                future.set_exception(failed)
        else:
            future.set_exception(FrontendError(code, (error or b"").decode(errors="replace")))
    finally:
        library.route_free(route)
        _native.here.callback = before


class Frontend:
    """Options are those of `kvatlas_frontend_options`; a hierarchy or a leaf must be named."""

    def __init__(self, *, hierarchy=None, leaves=(), deadline=None, in_flight_ttl=None, **options):
        self._library = _native.library()
        given = _native.Options()
        self._library.frontend_options_init(given, ctypes.sizeof(given))
        leaves = [_native.text("leaves", leaf) for leaf in ([leaves] if isinstance(leaves, str) else leaves)]
        given.leaves = (c_char_p * len(leaves))(*leaves)
        given.leaves_count = len(leaves)
        if deadline is not None:
            given.deadline_us = _units("deadline", deadline, 1e6)
        if in_flight_ttl is not None:
            given.in_flight_ttl_ms = _units("in_flight_ttl", in_flight_ttl, 1e3)
        known = {name for name, _ in given._fields_} - {"struct_size", "leaves_count", "deadline_us", "in_flight_ttl_ms"}
        for name in options:
            if name not in known:
                raise TypeError(f"Frontend has no option {name!r}; it has {', '.join(sorted(known))}, deadline, in_flight_ttl")
        _native.fill(given, hierarchy=hierarchy, **options)
        handle = _native.Handle()
        error = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._library.frontend_create(given, handle, error, len(error))
        if code != _native.OK:
            raise FrontendError(code, error.value.decode(errors="replace"))
        self._handle = handle  # None: closed; calls then return INVALID_ARGUMENT
        _frontends.add(self)

    def route(self, model=None, **prompt):
        """Waits for the choice. See `submit`."""
        if _native.in_callback():
            raise FrontendError(9, "route() in a future's done-callback would wait for the thread that it is in: use submit()")
        code, why, route = self._ask(self._request(model, **prompt))
        if code != _native.OK:
            self._check(code, why)
        try:
            return Route(self._library, route)
        finally:
            self._library.route_free(route)

    def submit(self, model=None, **prompt):
        """A future of the route. Prompts and the rest: `kvatlas_route_request`; `deadline` is in seconds. When it is cancelled
        before the answer comes, the choice is reported as abandoned."""
        request = self._request(model, **prompt)
        future = concurrent.futures.Future()
        question = next(_questions)
        _waiting[question] = future, self._open().value
        code = self._library.frontend_route_async(self._handle, request, _answered, question)
        if code != _native.OK:
            del _waiting[question]
            # Arguments that are refused at once are so by `route`, too, which has the words.
            self._check(code, self._ask(request)[1] if code == _INVALID_ARGUMENT else "")
        return future

    async def route_async(self, model=None, **prompt):
        future = self.submit(model, **prompt)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            future.cancel()
            future.add_done_callback(self._abandon)  # the answer may have come meanwhile
            raise

    def report(self, route, *, accepted=False, finished=False, abandoned=False, unreachable=False, cached_tokens=None,
               prompt_tokens=None, error=None, decode_unreachable=False):
        """What became of a route, or of a decision's id. Unknown ids are ignored."""
        decision = route.decision_id if isinstance(route, Route) else _native.number("route", int(route), c_uint64)
        report = _report(
            self._library, accepted=bool(accepted), finished=bool(finished), abandoned=bool(abandoned),
            unreachable=bool(unreachable), decode_unreachable=bool(decode_unreachable), error=error,
            cached_tokens=-1 if cached_tokens is None else cached_tokens,
            prompt_tokens=-1 if prompt_tokens is None else prompt_tokens)
        self._check(self._library.frontend_report(self._handle, decision, report))

    def stats(self):
        """{name: count} of `kvatlas_frontend_stats`."""
        stats = _native.Stats(struct_size=ctypes.sizeof(_native.Stats))
        self._check(self._library.frontend_get_stats(self._handle, stats))
        return {name: getattr(stats, name) for name, _ in stats._fields_ if name != "struct_size"}

    def close(self):
        """Calls are refused from now on; waits for the routes under way, at most until their deadlines, but not in a future's
        done-callback. Idempotent; done when the interpreter ends."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        # In a forked child, calls under way at the fork do not end.
        waits, ended = not _native.in_callback() and handle.process == os.getpid(), handle.ended
        del handle
        if waits:
            ended.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _open(self):
        if self._handle is None:
            raise FrontendError(9, "the frontend is closed")
        return self._handle

    def _check(self, code, why=""):
        if code != _native.OK:
            self._open()
            raise FrontendError(code, why or f"{self._library.frontend_code_name(code).decode()}: {_WHY.get(code, 'refused')}")

    def _ask(self, request):
        """(code, words, the route's handle) of a call that waits."""
        route = c_void_p()
        error = ctypes.create_string_buffer(_TEXT_BYTES)
        code = self._library.frontend_route(self._handle, request, route, error, _TEXT_BYTES)
        return code, error.value.decode(errors="replace"), route

    def _abandon(self, future):
        if not future.cancelled() and future.exception() is None:
            with contextlib.suppress(FrontendError):  # closed meanwhile
                self.report(future.result(), abandoned=True)

    def _request(self, model, *, tokens=None, sequence_hashes=None, text=None, messages=None, tools=None,
                 template_kwargs=None, chat_template=None, add_generation_prompt=True, continue_final_message=False,
                 add_special_tokens=None, body=None, tenant=None, lora_name=None, cache_salt=None, session_id=None,
                 allowed_workers=(), expected_output_tokens=0, deadline=None, return_tokens=False, prompt_tokens=0):
        """What it points to lives as long as it does."""
        request = _native.Request()
        self._library.route_request_init(request, ctypes.sizeof(request))
        request.kept = []
        if tokens is not None:
            request.tokens, request.tokens_count, keep = _numbers(tokens, _TOKENS)
            request.kept.append(keep)
        if sequence_hashes is not None:
            request.sequence_hashes, request.sequence_hashes_count, keep = _numbers(sequence_hashes, _NUMBERS)
            request.kept.append(keep)
        if text is not None:
            text = text if isinstance(text, bytes) else text.encode()
            request.text, request.text_size = text, len(text)
        if body is not None:
            body = body.encode() if isinstance(body, str) else bytes(body) if isinstance(
                body, (bytes, bytearray, memoryview)) else _json(body)
            request.body, request.body_size = body, len(body)
        allowed = [_native.text("allowed_workers", worker) for worker in allowed_workers]
        request.allowed_workers = (c_char_p * len(allowed))(*allowed)
        request.allowed_workers_count = len(allowed)
        # 0 would be the options' deadline.
        request.deadline_us = 0 if deadline is None else max(1, _units("deadline", max(deadline, 0), 1e6))
        _native.fill(request, model=model, tenant=tenant, lora_name=lora_name, cache_salt=cache_salt, session_id=session_id,
                     messages_json=_json(messages), tools_json=_json(tools), template_kwargs_json=_json(template_kwargs),
                     chat_template=chat_template, add_generation_prompt=bool(add_generation_prompt),
                     continue_final_message=bool(continue_final_message),
                     add_special_tokens=-1 if add_special_tokens is None else bool(add_special_tokens),
                     expected_output_tokens=expected_output_tokens, return_tokens=bool(return_tokens), prompt_tokens=prompt_tokens)
        return request
