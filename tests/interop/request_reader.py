"""What token ids does an engine make of a request? One JSON object a line in and one out; the engine's own HTTP application, without weights.

    {"model": "qwen3", "folder": "/models/qwen3", "path": "/v1/chat/completions", "body": {"messages": […]}}
                                -> {"ids": [151644, …]} or {"error": {"status": 400, "reason": "…"}}
    … "text": "{\\"messages\\": …"    instead of `body`: its JSON text as it goes over the wire, `model` left out
    … "flags": {"reasoning_parser": "qwen3"}                         the engine's options, by their names
    {"model": "qwen3", "folder": "/models/qwen3", "decode": [151644, …]}        -> {"text": "<|im_start|>…"}

An answer can also have `prompts` (the ids of each prompt of a list; `ids` is the first), `reads_cache` false (the engine will not read its
prefix cache for this request) and `any` ([[from, to], …], places whose ids are today's date).

A driver derives from `Reader`: vllm_requests.py, sglang_requests.py. A folder is opened once, at its first request.
"""

import asyncio
import datetime
import json
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

DATE_FORMS = ("%Y-%m-%d", "%d %b %Y", "%d %B %Y", "%B %d, %Y")
REASON_MAX = 160


class Refused(Exception):
    """The engine's own refusal of a request."""

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Reader:
    def __init__(self):
        self.opened = {}

    # ---- What a driver provides ----
    async def open(self, model, folder, flags):
        """Returns whatever `read` wants of a model."""
        raise NotImplementedError

    async def read(self, opened, path, text):
        """Returns {"prompts": [ids, …]} and perhaps "reads_cache"; raises Refused."""
        raise NotImplementedError

    def tokenizer(self, opened):
        raise NotImplementedError

    # ---- Lines ----
    async def answer(self, line):
        key = (line["model"], line["folder"], json.dumps(line.get("flags", {}), sort_keys=True))
        if key not in self.opened:
            self.opened[key] = await self.open(line["model"], line["folder"], line.get("flags", {}))
        opened = self.opened[key]
        if "decode" in line:
            try:
                return {"text": self.tokenizer(opened).decode(line["decode"])}
            except OverflowError:  # the client's own ids, beyond any vocabulary
                return {"text": ""}
        text = line["text"] if "text" in line else json.dumps(line["body"], ensure_ascii=True)
        try:
            read = await self.read(opened, line["path"], with_model(text, line["model"]))
        except Refused as refusal:
            reason = refusal.reason.replace(line["folder"], "<path>")[:REASON_MAX]
            return {"error": {"status": refusal.status, "reason": reason}}
        prompts = read["prompts"]
        said = {"ids": prompts[0]}
        if len(prompts) > 1:
            said["prompts"] = prompts
        if not read.get("reads_cache", True):
            said["reads_cache"] = False
        dates = places_of_date(self.tokenizer(opened), prompts[0])
        if dates:
            said["any"] = dates
        return said

    def serve(self):
        answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what engines print is not an answer
        asyncio.run(self._serve(answers))

    async def _serve(self, answers):
        for line in sys.stdin:
            answers.write(json.dumps(await self.answer(json.loads(line))) + "\n")
            answers.flush()


async def post(app, path, text):
    """An HTTP request to an application in this process; returns the status and the body."""
    import httpx

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        answer = await client.post(path, content=text.encode("utf-8", "surrogatepass"), headers={"content-type": "application/json"})
    try:
        return answer.status_code, answer.json()
    except ValueError:
        return answer.status_code, {"message": answer.text}


def reason_of(answer):
    """The sentence in an error body of any of the APIs."""
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    return str(error.get("message", error) if isinstance(error, dict) else error)


def with_model(text, model):
    """The body with `model` in front; what is no object goes on as it is."""
    rest = text.lstrip()[1:]
    if not text.lstrip().startswith("{"):
        return text
    return "{" + json.dumps("model") + ":" + json.dumps(model) + ("" if rest.lstrip().startswith("}") else ",") + rest


def places_of_date(tokenizer, ids):
    """Where today's date is printed, as [first, last + 1] of the ids that make it."""
    try:
        text = tokenizer.decode(ids)
    except OverflowError:  # the client's own ids, beyond any vocabulary
        return []
    today = datetime.date.today()
    places = []
    for form in DATE_FORMS:
        at = text.find(today.strftime(form))
        while at >= 0:
            end = at + len(today.strftime(form))
            lengths = [len(tokenizer.decode(ids[:n])) for n in range(len(ids) + 1)]
            first = max(n for n, length in enumerate(lengths) if length <= at)
            places.append([first, next(n for n, length in enumerate(lengths) if length >= end)])
            at = text.find(today.strftime(form), end)
    return sorted(places)
