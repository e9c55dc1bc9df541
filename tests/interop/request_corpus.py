"""Random requests as clients send them, from a seed: `random_request(rng)` gives a path, a body and a style; `text_of(body, **style)` its JSON.

Most are valid somewhere. A number that Python's json would print in another way (1e5, -0, 1.0) is a `Raw`, which goes into the text as it is; a
key that stands there twice is a `Twice`. One body in twenty has a value somewhere that belongs elsewhere (`altered`).
"""

import json

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
PATHS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)

TEXTS = ["Hello", "fix the bug", "What is the weather in Zürich?", "天気はどうですか", "naïve café — “quoted” …", "👩‍👩‍👧 ok 🇨🇭", "שלום עולם", "e\u0301", "", " ",
         "\n", "  lead and trail  \n", "line 1\nline 2\n\n\nline 4", "tab\there", "a\r\nb", "<b>&amp; 'x' \"y\"</b>", "{\"a\": 1}", "{{ messages }} {% x %}",
         "```python\nprint('hi')\n```", "back\\slash \\n", "\u2028sep\u00a0nbsp\u200b", "1 + 1 = 2", "<think>\nhm\n</think>\n\nfour", "<think>no end",
         "</think>tail", "<|im_end|>", "<|im_start|>user\n", "<tool_call>\n{}\n</tool_call>", "\u0007bell", "word " * 20, "x" * 70, "1234567890 123",
         "I should look.", "done", "OK.", "it's they'll I'M", "a\u3000b\u2003c", "\ufeffmark", "\u0000", "x\u001c\u0085y\u000b", "\x7f", "ﬁ Å ① ｶﾞ", "𝒳 𐍈 🏽",
         "<|eot_id|>", "<|begin_of_text|>x", "<|start_header_id|>user<|end_header_id|>", "<｜User｜>hi<｜end▁of▁sentence｜>", "<|start|>system<|message|>",
         "<|channel|>final", "[gMASK]<sop><|user|>", "<start_of_turn>", "<turn|>", "</tool_call>", "<tool_response>", "/no_think", "/think now", "[TOOL_CALLS]",
         "<think></think>ok", "<think>\n\n</think>\n\n", "a</think>b</think>c", "   x   ", "\t\t\n \n", "0", "null", "true", "[]", "a,b;c:d", "日本語" * 9,
         "-----\n***\n", "$x^2$ \\frac{1}{2}", "C:\\dir\\f.txt", "%s %d {0} {x}", "&lt;&#39;", "'", "\"", "\\", "\u200d", "x\ty\tz"]
# Texts of which no encoder of UTF-8 makes bytes: half a pair of surrogates.
HALVES = ["\ud83d", "a\udc00b", "\udc4d\ud83d"]
NAMES = ["now", "read_file", "get_weather", "calc", "mcp__fs__list-dir", "f"]
KEYS = ["path", "x", "limit", "city", "Größe", "a b", "items", "type", "name", "default", "$ref"]
NUMBERS = ["0", "-0", "1", "-7", "12", "1.0", "-0.0", "0.1", "1e5", "1E5", "1e-7", "1.5e3", "1e16", "1e22", "2.50", "3.14159265358979", "123456789012345678",
           "1e400", "-1E400", "1e-400", "0e0", "0.0", "1E+2", "123456789.123456789", "4" * 45, "1e15", "123e-20", "1.7976931348623157e308", "9007199254740993.0",
           "9223372036854775807", "9223372036854775808", "18446744073709551615", "18446744073709551616", "100000000000000000000", "-9223372036854775809", "1e300", "0.30000000000000004", "5e-324"]
EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Raw(str):
    """JSON text that is written as it is."""


class Twice(str):
    """A key that is no other key's equal."""

    def __eq__(self, other):
        return self is other

    __hash__ = object.__hash__


def quoted(text, ascii_only):
    """Half a pair of surrogates is escaped always, as JSON.stringify does."""
    written = json.dumps(str(text), ensure_ascii=ascii_only)
    return "".join(f"\\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in written)


def text_of(value, separators=(",", ":"), ascii_only=False, indent=None, depth=0):
    comma, colon = separators
    if isinstance(value, Raw):
        return str(value)
    if not isinstance(value, (dict, list)):
        return quoted(value, ascii_only) if isinstance(value, str) else json.dumps(value)
    inner = [text_of(v, separators, ascii_only, indent, depth + 1) for v in (value.values() if isinstance(value, dict) else value)]
    if isinstance(value, dict):
        inner = [quoted(key, ascii_only) + colon + item for key, item in zip(value, inner)]
    ends = "{}" if isinstance(value, dict) else "[]"
    if indent is not None and inner:
        line = "\n" + " " * (indent * (depth + 1))
        return ends[0] + line + (comma.rstrip() + line).join(inner) + "\n" + " " * (indent * depth) + ends[1]
    return ends[0] + comma.join(inner) + ends[1]


class Chance:
    """What is drawn; `rng` is a random.Random."""

    def __init__(self, rng):
        self.rng = rng

    def one(self, of):
        return self.rng.choice(of)

    def likely(self, share):
        return self.rng.random() < share

    def text(self):
        if self.likely(0.001):
            return self.one(HALVES)
        return self.one(TEXTS) if self.likely(0.8) else self.one(TEXTS) + self.one(TEXTS)

    def words(self):
        return self.one([text for text in TEXTS if text.strip()])

    def number(self):
        return Raw(self.one(NUMBERS))

    def value(self, depth=0):
        kind = self.rng.randrange(8 if depth < 3 else 6)
        if kind == 6:
            return [self.value(depth + 1) for _ in range(self.rng.randrange(4))]
        if kind == 7:
            return self.object(depth + 1)
        return [None, True, False, self.number(), self.number(), self.text()][kind]

    def object(self, depth=0):
        some = {self.one(KEYS): self.value(depth) for _ in range(self.rng.randrange(4))}
        if some and self.likely(0.02):
            some[Twice(self.one(list(some)))] = self.value(depth)
        return some

    def shuffled(self, fields, share=0.3):
        items = list(fields.items())
        if self.likely(share):
            self.rng.shuffle(items)
        return dict(items)

    def some(self, fields):
        """Of {name: (share, maker)} those that were drawn."""
        return {name: maker() for name, (share, maker) in fields.items() if self.likely(share)}

    # ---- Tools ----
    def schema(self, depth=0):
        kind = self.rng.randrange(10)
        if depth == 0 and kind < 8:
            names = self.rng.sample(KEYS, self.rng.randrange(4))
            schema = {"type": "object", "properties": {name: self.schema(1) for name in names}}
            schema.update(self.some({"required": (0.5, lambda: names[:1]), "additionalProperties": (0.3, lambda: False),
                                     "$schema": (0.1, lambda: "http://json-schema.org/draft-07/schema#")}))
            return self.shuffled(schema)
        if depth == 0:
            return self.one([lambda: {"type": "object", "x-note": self.value()}, self.referring_schema])()
        schema = {"type": self.one(["string", "integer", "number", "boolean", ["string", "null"], "array"])}
        schema.update(self.some({
            "description": (0.5, self.text), "default": (0.3, self.value), "enum": (0.2, lambda: [self.text(), self.text(), None]),
            "minimum": (0.3, self.number), "items": (0.2, lambda: {"type": "string"}), "anyOf": (0.1, lambda: [{"type": "null"}, {"const": self.value()}]),
            "title": (0.1, self.text)}))
        if depth < 4 and self.likely(0.25):
            schema.update(self.one([
                lambda: {"type": "object", "properties": {self.one(KEYS): self.schema(depth + 1) for _ in range(2)}, "required": []},
                lambda: {"type": "array", "items": self.schema(depth + 1)},
                lambda: {self.one(["oneOf", "allOf", "anyOf"]): [self.schema(depth + 1), {"type": "null"}]},
                lambda: {"additionalProperties": self.schema(depth + 1)},
                lambda: {"patternProperties": {"^x-": self.schema(depth + 1)}, "not": {"type": "null"}},
                lambda: {"type": "array", "prefixItems": [self.schema(depth + 1)], "minItems": 1, "uniqueItems": True}])())
        schema.update(self.some({
            "format": (0.05, lambda: self.one(["date-time", "uri", "uuid"])), "pattern": (0.04, lambda: self.one(["^[a-z]+$", "\\d{3}", "^(a|b)*?$"])),
            "examples": (0.05, lambda: [self.value()]), "nullable": (0.04, lambda: True), "const": (0.03, self.value), "deprecated": (0.02, lambda: False),
            "maxLength": (0.05, lambda: Raw(self.one(["10", "10.0", "0"]))), "exclusiveMinimum": (0.03, lambda: Raw("0")), "multipleOf": (0.02, lambda: Raw("0.01"))}))
        if self.likely(0.03):
            schema["type"] = self.one(["str", "int", "float", "dict", "list", "any", "varchar(10)", "String", ["int", "null"], None, 1])
        return self.shuffled(schema)

    def referring_schema(self):
        """As pydantic and zod write them."""
        names = self.one([["$defs", "#/$defs/"], ["definitions", "#/definitions/"]])
        return {names[0]: {"Node": {"type": "object", "title": "Node", "properties": {"next": {"anyOf": [{"$ref": names[1] + "Node"}, {"type": "null"}], "default": None}}}},
                "properties": {"root": {"$ref": names[1] + "Node"}, "k": self.schema(1)}, "required": ["root"], "title": "Args", "type": "object"}

    def tool_names(self):
        return self.rng.sample(NAMES, self.rng.randrange(1, 4))

    def function(self, name):
        function = {"name": name}
        function.update(self.some({
            "description": (0.8, lambda: self.one([None, ""]) if self.likely(0.1) else self.text()),
            "parameters": (0.85, lambda: self.one([None, {}]) if self.likely(0.1) else self.schema()),
            "strict": (0.25, lambda: self.one([True, False, None]))}))
        return self.shuffled(function)

    def tool(self, name):
        function = self.function(name)
        if self.likely(0.08):
            function[self.one(["cache_control", "returns", "defer_loading", "x"])] = self.one([True, {"type": "ephemeral"}, "s"])
        tool = {"type": "function", "function": function}
        if self.likely(0.08):
            tool["cache_control"] = {"type": "ephemeral"}
        return self.shuffled(tool, 0.1)

    def arguments(self):
        kind = self.rng.randrange(40)
        odd = ["", "null", "[]", "[1]", "not json", "{}}", "{'x': 1}", "{\"x\": 1e400}", "{\"x\": \"\\ud83d\"}", "{\"x\": \"\\u00e9\\n\"}", "\ufeff{}", "{\"x\":" + "9" * 30 + "}", "{\"x\": 01}", "{\"x\": 1,}", "{\"a\":1", " {\"x\": 1} ", "1", "\"s\"", "{\"x\":1,\"x\":2}", "{\"x\":NaN}"]
        if kind == 0:
            return self.one(odd)
        if kind < 4:
            return "{}"
        style = self.one([{}, {"separators": (", ", ": ")}, {"separators": (", ", ": "), "ascii_only": True}, {"separators": (",", ": "), "indent": 2}])
        return text_of(self.object(), **style)

    # ---- Chats ----
    def parts(self, kind="text"):
        parts = [self.shuffled({"type": kind, "text": self.text()}, 0.1) for _ in range(self.rng.randrange(1, 4))]
        if self.likely(0.1):
            parts[-1]["cache_control"] = {"type": "ephemeral"}
        if self.likely(0.03):
            parts.append(self.one([
                {"type": "refusal", "refusal": "no"}, {"type": "thinking", "thinking": "hm"}, {"type": "input_text", "text": "t"}, "bare", {"text": "untyped"},
                {"type": "output_text", "text": "t", "annotations": []}, {"type": "text"}, {"type": "text", "text": None}, {"type": "unknown", "text": "t"},
                {"type": "tool_reference", "name": "f"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}, None, {},
                {"type": "thinking", "thinking": "hm", "closed": True}, {"type": "file", "file": {"file_id": "f"}}, {"type": "redacted_thinking", "data": "x"}]))
        return parts if self.likely(0.97) else []

    def content(self):
        if self.likely(0.004):
            return self.one([None, {}, 1, True])
        return self.parts() if self.likely(0.25) else self.text()

    def user(self):
        message = {"role": "user", "content": self.content()}
        if self.likely(0.05):
            message["name"] = "ann"
        return message

    def assistant(self, calls):
        message = {"role": "assistant", "content": self.content()}
        if calls or self.likely(0.08):
            kind = self.rng.randrange(5)
            if kind < 2:
                message["content"] = None
            elif kind == 2:
                del message["content"]
            elif kind == 3:
                message["content"] = ""
        message.update(self.some({
            "reasoning_content": (0.2, lambda: None if self.likely(0.1) else self.text()), "reasoning": (0.12, lambda: None if self.likely(0.1) else self.text()),
            "reasoning_details": (0.03, lambda: [{"type": "reasoning.text", "text": "hm"}]), "thinking": (0.02, self.text), "provider_specific_fields": (0.02, lambda: None),
            "refusal": (0.1, lambda: None), "annotations": (0.05, lambda: []),
            "audio": (0.05, lambda: None), "function_call": (0.05, lambda: None), "name": (0.03, lambda: "bot")}))
        if calls:
            message["tool_calls"] = calls
        elif self.likely(0.1):
            message["tool_calls"] = self.one([[], None])
        return self.shuffled(message, 0.1)

    def call(self, number, names):
        function = {"name": self.one(names), "arguments": self.arguments()}
        if self.likely(0.02):
            function["arguments"] = self.object()
        elif self.likely(0.02):
            del function["arguments"]
        call = {"id": f"call_{number}", "type": "function", "function": self.shuffled(function, 0.2)}
        if self.likely(0.1):
            call["index"] = 0
        if self.likely(0.03):
            call[self.one(["id", "type", "index", "function", "extra_content"])] = self.one([None, "", 1, "custom"])
        if self.likely(0.01):
            call.pop(self.one(["id", "type"]), None)
        return self.shuffled(call, 0.1)

    def result(self, call, content):
        """A tool's message."""
        message = {"role": "tool", "tool_call_id": call["id"] if "id" in call else "call_x", "content": content}
        if self.likely(0.04):
            message.update(self.some({"name": (0.5, lambda: self.one(NAMES)), "is_error": (0.3, lambda: True), "status": (0.3, lambda: "success"), "tool_calls": (0.1, lambda: None),
                                      "cache_control": (0.2, lambda: {"type": "ephemeral"})}))
        if self.likely(0.01):
            message.pop(self.one(["tool_call_id", "content"]))
        return self.shuffled(message, 0.1)

    def conversation(self, names):
        messages, number = [], 0
        for role, share in (("system", 0.5), ("developer", 0.15), ("system", 0.07)):
            if self.likely(share):
                messages.append({"role": role, "content": self.content()})
        for _ in range(self.rng.randrange(1, 4)):
            messages.append(self.user())
            while names and self.likely(0.45):
                calls = [self.call(number + i, names) for i in range(1 if self.likely(0.8) else 2)]
                messages.append(self.assistant(calls))
                results = [self.result(call, self.content()) for call in calls]
                if self.likely(0.1):
                    results.reverse()
                if self.likely(0.1) and isinstance(calls[0]["function"], dict):
                    results[0]["name"] = calls[0]["function"]["name"]
                if self.likely(0.02):
                    results.pop()
                messages += results
                number += len(calls)
            if self.likely(0.6):
                messages.append(self.assistant([]))
            if self.likely(0.04):
                messages.append({"role": self.one(["system", "developer", "function", "critic"]), "content": self.text()})
        if messages[-1]["role"] == "assistant" and self.likely(0.75):
            messages.append(self.user())
        return messages

    def chat(self):
        names = self.tool_names() if self.likely(0.5) else []
        body = {"messages": self.conversation(names or (NAMES[:2] if self.likely(0.2) else []))}
        if names:
            body["tools"] = [self.tool(name) for name in names]
            if self.likely(0.3):
                body["tool_choice"] = self.one(["auto", "none", "required", {"type": "function", "function": {"name": self.one(names)}}])
            if self.likely(0.03):
                body["tool_choice"] = self.one([None, "any", "", {"type": "function", "name": names[0]}, {"type": "auto"}, {"function": {"name": names[0]}}, names[0], {},
                                                {"type": "function", "function": {"name": "missing"}},
                                                {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": names[0]}}]}}])
            if self.likely(0.03):
                body["tools"].append(self.one([
                    {"type": "custom", "custom": {"name": "c", "description": "d"}}, {"type": "web_search"}, {"type": "function"}, {"name": "bare", "parameters": {}}, None,
                    {"type": "function", "function": {}}, {"function": {"name": "untyped"}}, body["tools"][0]]))
        elif self.likely(0.03):
            body["tools"] = self.one([[], None])
        if self.likely(0.02):
            body.update(self.one([{"functions": [{"name": "old", "parameters": {}}]}, {"functions": []}, {"function_call": "auto"}, {"function_call": {"name": "old"}}]))
        if body["messages"][-1]["role"] == "assistant" and self.likely(0.6):
            body.update(self.one([{"continue_final_message": True, "add_generation_prompt": False}, {"continue_final_message": True},
                                  {"add_generation_prompt": False}]))
        elif self.likely(0.06):
            body["add_generation_prompt"] = self.one([True, False])
        body.update(self.some({
            "reasoning_effort": (0.15, lambda: self.one([*EFFORTS, None])), "reasoning": (0.04, lambda: self.one([{"effort": self.one(EFFORTS)}, {"enabled": self.one([True, False])}])),
            "chat_template_kwargs": (0.12, lambda: self.one([{"enable_thinking": self.one([True, False])}, {"thinking": self.one([True, False])}, {}, None, {"reasoning_effort": "low"}, {"custom": self.value()}, {"clear_thinking": False}, {"preserve_thinking": True}, {"date_string": "1 May 2024"},
                                                                    {"builtin_tools": ["browser"]}, {"model_identity": self.text()}, {"tools_in_user_message": False}, {"enable_thinking": "false"},
                                                                    {"enable_thinking": None}, {"enable_thinking": 0}])),
            "add_special_tokens": (0.04, lambda: self.one([True, False])), "documents": (0.03, lambda: [{"title": "t", "text": self.text()}]),
            "truncate_prompt_tokens": (0.03, lambda: self.one([10, 50, -1])), "response_format": (0.06, lambda: self.one([
                {"type": "json_object"}, {"type": "text"}, None, {"type": "json_schema", "json_schema": {"name": "n", "schema": self.schema(), "strict": True}},
                {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"schema": {}}}])),
            "parallel_tool_calls": (0.08, lambda: self.one([True, False])), "prompt_logprobs": (0.01, lambda: 1)}))
        return body | self.sampling("max_tokens", body)

    def sampling(self, limit, body):
        """Fields that are no part of the prompt, but for those that an engine refuses with others of the body."""
        fields = self.some({"temperature": (0.3, lambda: Raw(self.one(["0", "0.7", "1", "1.0"]))), "stream": (0.3, lambda: self.one([True, False])), limit: (0.3, lambda: 64),
                          "top_p": (0.1, lambda: Raw(self.one(["0.9", "1", "1.0", "0"]) if self.likely(0.2) else "0.9")), "user": (0.1, self.text), "seed": (0.05, lambda: 7),
                          "stop": (0.05, lambda: self.one(["x", ["x", "y"], [], None])), "metadata": (0.03, lambda: {"k": "v"}), "presence_penalty": (0.02, lambda: 0),
                          "frequency_penalty": (0.02, lambda: Raw("0.5")), "logit_bias": (0.02, lambda: self.one([{}, {"5": 1}, None])), "store": (0.03, lambda: self.one([True, False])),
                          "service_tier": (0.03, lambda: "auto"), "top_k": (0.02, lambda: self.one([-1, 0, 20])), "min_p": (0.02, lambda: 0), "cache_salt": (0.01, lambda: "salt"),
                          "prompt_cache_key": (0.02, lambda: "k"), "safety_identifier": (0.02, lambda: "s"), "priority": (0.01, lambda: 0)})
        if limit == "max_tokens":
            fields |= self.some({"max_completion_tokens": (0.05, lambda: 64), "verbosity": (0.02, lambda: "low"), "modalities": (0.01, lambda: ["text"]), "repetition_penalty": (0.02, lambda: 1)})
            if fields.get("stream") is True and self.likely(0.5):
                fields["stream_options"] = {"include_usage": True}
        if "prompt_logprobs" in body:
            fields.pop("stream", None)
        if "n" in body:
            fields.pop("temperature", None)
        return fields

    # ---- The other doors ----
    def completion(self):
        ids = [self.rng.randrange(900) for _ in range(self.rng.randrange(1, 9))]
        prompt = self.one([self.text, self.text, self.text, lambda: ids, lambda: [self.text(), self.text()], lambda: [ids, ids[:1]], lambda: [self.text()]])()
        if self.likely(0.03):
            prompt = self.one(["", [], [""], [[]], None, 1, {}, [1, "a"], ["a", [1]], [Raw("1.0"), Raw("2.0")], ["1", "2"], [True, 2], [[1], []], [None], [Raw("1.5")]])
        body = {"prompt": prompt, **self.some({
            "add_special_tokens": (0.15, lambda: self.one([True, False])), "truncate_prompt_tokens": (0.1, lambda: self.one([3, 10, -1])),
            "truncation_side": (0.05, lambda: self.one(["left", "right"])), "echo": (0.1, lambda: True), "logprobs": (0.1, lambda: 1), "suffix": (0.02, lambda: "s"),
            "prompt_logprobs": (0.03, lambda: 1), "n": (0.05, lambda: 2)})}
        return body | self.sampling("max_tokens", body)

    def response_message(self, role):
        output = role == "assistant"
        message = {"type": "message", "role": role, "content": self.text()}
        if self.likely(0.6):
            message["content"] = self.parts("output_text" if output else "input_text")
        if output and self.likely(0.5):
            message.update(id="msg_1", status="completed")
            if isinstance(message["content"], list):
                for part in message["content"]:
                    if isinstance(part, dict) and part.get("type") == "output_text":
                        part["annotations"] = []
        if isinstance(message["content"], list) and self.likely(0.04):
            message["content"].append(self.one([
                {"type": "refusal", "refusal": "no"}, {"type": "text", "text": "t"}, {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo=", "detail": "auto"},
                {"type": "input_file", "file_id": "f"}, {"type": "output_text", "text": "o", "annotations": [], "logprobs": []}, {"type": "output_text", "text": "o"},
                {"type": "input_text"}, {"type": "summary_text", "text": "s"}, {"type": "reasoning_text", "text": "r"}]))
        if self.likely(0.04):
            message[self.one(["phase", "status", "id", "name", "x"])] = self.one([None, "in_progress", "completed", "incomplete", "commentary", "final_answer", "m"])
        if self.likely(0.3):
            del message["type"]
        return message

    def other_item(self):
        """An item that few clients send back."""
        return self.one([
            {"type": "item_reference", "id": "msg_1"}, {"type": "custom_tool_call", "call_id": "c9", "name": "patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "c9", "output": self.text()}, {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
            {"type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["q"], "results": None},
            {"type": "computer_call", "id": "cu_1", "call_id": "c8", "status": "completed", "action": {"type": "screenshot"}, "pending_safety_checks": []},
            {"type": "local_shell_call", "id": "ls_1", "call_id": "c7", "status": "completed", "action": {"type": "exec", "command": ["ls"], "env": {}}},
            {"type": "local_shell_call_output", "id": "c7", "output": "x"}, {"type": "mcp_list_tools", "id": "ml_1", "server_label": "s", "tools": []},
            {"type": "mcp_call", "id": "mc_1", "server_label": "s", "name": "n", "arguments": "{}", "output": "x"},
            {"type": "mcp_approval_request", "id": "ma_1", "server_label": "s", "name": "n", "arguments": "{}"},
            {"type": "mcp_approval_response", "approval_request_id": "ma_1", "approve": True}, {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": None},
            {"type": "code_interpreter_call", "id": "ci_1", "status": "completed", "container_id": "c", "code": "1", "outputs": []},
            {"type": "compaction", "id": "cm_1", "encrypted_content": "x"}, {"type": "shell_call", "call_id": "c6", "action": {"commands": ["ls"]}},
            {"type": "apply_patch_call", "call_id": "c5", "status": "completed", "operation": {"type": "delete_file", "path": "a"}},
            {"type": "apply_patch_call_output", "call_id": "c5", "status": "completed"}, {"type": "bogus"}, {"role": "tool", "content": "x", "tool_call_id": "c1"}, {}, None, "text",
            {"type": "function_call", "call_id": "c4", "name": "f"}, {"type": "function_call_output", "output": "x"}, {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c3", "name": "f", "arguments": "{}", "namespace": "n"}])

    def other_tool(self):
        return self.one([
            {"type": "web_search"}, {"type": "web_search_preview", "search_context_size": "low"}, {"type": "file_search", "vector_store_ids": ["v"]},
            {"type": "code_interpreter", "container": {"type": "auto"}}, {"type": "mcp", "server_label": "s", "server_url": "http://127.0.0.1:1/x", "require_approval": "never"},
            {"type": "custom", "name": "patch", "description": "d", "format": {"type": "text"}}, {"type": "custom", "name": "patch"}, {"type": "local_shell"}, {"type": "shell"},
            {"type": "image_generation"}, {"type": "apply_patch"}, {"type": "bogus"}, {"type": "function"}, {"name": "untyped", "parameters": {}}, None,
            {"type": "function", "function": {"name": "nested", "parameters": {}}}, {"type": "namespace", "name": "n", "description": "d", "tools": []}])

    def response(self):
        names = self.tool_names() if self.likely(0.5) else []
        items, number = [], 0
        for role, share in (("system", 0.15), ("developer", 0.25)):
            if self.likely(share):
                items.append(self.response_message(role))
        for _ in range(self.rng.randrange(1, 4)):
            items.append(self.response_message("user"))
            while names and self.likely(0.4):
                if self.likely(0.4):
                    items.append(self.reasoning_item())
                if self.likely(0.2):
                    items.append(self.response_message("assistant"))
                calls = range(number, number + (1 if self.likely(0.8) else 2))
                items += [self.some({"id": (0.4, lambda: f"fc_{n}"), "status": (0.3, lambda: "completed")}) |
                          {"type": "function_call", "call_id": f"call_{n}", "name": self.one(names), "arguments": self.arguments()} for n in calls]
                items += [{"type": "function_call_output", "call_id": f"call_{n}",
                           "output": self.parts("input_text") if self.likely(0.15) else self.text()} for n in calls]
                number = calls.stop
            if self.likely(0.5):
                if self.likely(0.3):
                    items.append(self.reasoning_item())
                items.append(self.response_message("assistant"))
            if self.likely(0.05):
                items.append(self.other_item())
        body = {"input": self.text() if self.likely(0.15) else items}
        if self.likely(0.01):
            body["input"] = self.one(["", [], None, {}, ["a"]])
        if names:
            body["tools"] = [self.shuffled({"type": "function", **self.function(name)}, 0.1) for name in names]
            if self.likely(0.25):
                body["tool_choice"] = self.one(["auto", "none", "required", {"type": "function", "name": self.one(names)}])
            if self.likely(0.03):
                body["tool_choice"] = self.one([None, "any", {"type": "web_search"}, {"type": "function", "function": {"name": names[0]}}, {"type": "custom", "name": "patch"},
                                                {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": names[0]}]}, {"type": "mcp", "server_label": "s"}])
        if self.likely(0.05):
            body.setdefault("tools", []).append(self.other_tool())
        body.update(self.some({
            "instructions": (0.4, self.text), "reasoning": (0.25, lambda: self.one([{"effort": self.one(EFFORTS)}, {"effort": "low", "summary": "auto"}, {}, None])),
            "store": (0.3, lambda: False), "parallel_tool_calls": (0.2, lambda: self.one([True, False])), "include": (0.1, lambda: ["reasoning.encrypted_content"]),
            "text": (0.1, lambda: self.one([
                {"format": {"type": "text"}}, {"format": {"type": "json_object"}}, {"verbosity": "low"}, {}, None,
                {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}}, {"format": {"type": "json_schema"}}])), "truncation": (0.1, lambda: self.one(["auto", "disabled"])),
            "chat_template_kwargs": (0.05, lambda: {"enable_thinking": self.one([True, False])}), "prompt_cache_key": (0.1, lambda: "k"),
            "previous_response_id": (0.01, lambda: "resp_1"), "metadata": (0.05, lambda: {"a": "b"}),
            "max_tool_calls": (0.02, lambda: 3), "background": (0.02, lambda: False), "top_logprobs": (0.02, lambda: 1), "conversation": (0.004, lambda: "conv_1"),
            "prompt": (0.004, lambda: {"id": "p"}), "stream_options": (0.01, lambda: {"include_obfuscation": False})}))
        return body | self.sampling("max_output_tokens", body)

    def reasoning_item(self):
        item = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": self.text()}] if self.likely(0.4) else []}
        if self.likely(0.6):
            item["content"] = [{"type": "reasoning_text", "text": self.text()}]
        if self.likely(0.2):
            item["encrypted_content"] = self.one([None, "gAAA"])
        if self.likely(0.1):
            item["status"] = self.one([None, "completed", "in_progress"])
        if self.likely(0.03):
            item["content"] = self.one([None, [], [{"type": "text", "text": "t"}], [{"type": "reasoning_text", "text": "a"}, {"type": "reasoning_text", "text": "b"}]])
        return item

    def block(self, kind="text"):
        block = {"type": kind, "text": self.words() if self.likely(0.9) else self.text()}
        if self.likely(0.2):
            block["cache_control"] = {"type": "ephemeral"} if self.likely(0.8) else self.one([None, {"type": "ephemeral", "ttl": "1h"}])
        if self.likely(0.05):
            block["citations"] = self.one([None, []])
        return self.shuffled(block, 0.1)

    def blocks(self):
        blocks = [self.block() for _ in range(self.rng.randrange(1, 4))]
        if self.likely(0.03):
            blocks.append(self.one([
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}, {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d"}},
                {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "c"}]}, {"type": "tool_reference", "tool_name": "f"}, {"type": "bogus"}, {"text": "untyped"},
                {"type": "text"}, {"type": "text", "text": None}, {"type": "text", "text": ""}, {"type": "container_upload", "file_id": "f"}, {"type": "thinking", "thinking": "late"}, "bare", None,
                {"type": "server_tool_use", "id": "st_1", "name": "web_search", "input": {"query": "q"}},
                {"type": "web_search_tool_result", "tool_use_id": "st_1", "content": [{"type": "web_search_result", "title": "t", "url": "u", "encrypted_content": "x"}]},
                {"type": "mcp_tool_use", "id": "mt_1", "name": "n", "server_name": "s", "input": {}}, {"type": "compaction", "content": "c"}]))
        return blocks if self.likely(0.99) else []

    def thinking_block(self):
        """As the API gave it, or as other engines' answers had it."""
        kind = self.rng.randrange(10)
        if kind == 0:
            return {"type": "redacted_thinking", "data": "zz"}
        block = {"type": "thinking", "thinking": self.text(), "signature": "s" if kind < 7 else ""}
        if kind == 9:
            del block["signature"]
        return block

    def tool_result(self, number):
        block = {"type": "tool_result", "tool_use_id": f"toolu_{number}"}
        block.update(self.some({"content": (0.9, lambda: self.blocks() if self.likely(0.5) else self.text()), "is_error": (0.15, lambda: self.one([True, False])),
                                "cache_control": (0.15, lambda: {"type": "ephemeral"})}))
        if self.likely(0.04):
            block["content"] = self.one([None, [], "", [{"type": "tool_reference", "tool_name": "f"}], [{"type": "text", "text": ""}], [{"type": "text"}], {},
                                         [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}],
                                         [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d"}}], [{"type": "bogus", "text": "b"}]])
        return self.shuffled(block, 0.1)

    def anthropic(self):
        names = self.tool_names() if self.likely(0.5) else []
        messages, number = [], 0
        for _ in range(self.rng.randrange(1, 4)):
            messages.append({"role": "user", "content": self.blocks() if self.likely(0.5) else self.text()})
            while names and self.likely(0.4):
                content = [self.thinking_block()] if self.likely(0.3) else []
                content += [self.block()] if self.likely(0.4) else []
                uses = range(number, number + (1 if self.likely(0.8) else 2))
                content += [{"type": "tool_use", "id": f"toolu_{n}", "name": self.one(names), "input": self.object()} for n in uses]
                messages.append({"role": "assistant", "content": content})
                results = [self.tool_result(n) for n in uses]
                if self.likely(0.02):
                    content[-1].update(self.one([{"input": None}, {"input": "s"}, {"caller": {"type": "direct"}}, {"cache_control": {"type": "ephemeral"}}, {"name": None}, {"id": None}]))
                if self.likely(0.25):
                    results.insert(self.one([0, len(results)]), self.block())
                messages.append({"role": "user", "content": results})
                number = uses.stop
            if self.likely(0.6):
                content = self.text() if self.likely(0.5) else self.blocks()
                if isinstance(content, list) and self.likely(0.3):
                    content.insert(0, self.thinking_block())
                messages.append({"role": "assistant", "content": content})
            if self.likely(0.03):
                messages.append({"role": self.one(["system", "system", "user", "tool", "developer"]), "content": self.text() if self.likely(0.7) else self.blocks()})
        if messages[-1]["role"] == "assistant" and self.likely(0.7):
            messages.append({"role": "user", "content": self.text()})
        body = {"max_tokens": 2048, "messages": messages}
        if names:
            body["tools"] = [self.shuffled({"name": name, "input_schema": self.schema(), **self.some({
                "description": (0.8, self.text), "cache_control": (0.15, lambda: {"type": "ephemeral"}), "type": (0.1, lambda: "custom"), "strict": (0.05, lambda: True)})}) for name in names]
            if self.likely(0.06):
                body["tools"].append(self.one([
                    {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}, {"type": "bash_20250124", "name": "bash"}, {"type": "text_editor_20250728", "name": "edit"},
                    {"type": "computer_20250124", "name": "computer", "display_width_px": 1, "display_height_px": 1}, {"type": "code_execution_20250522", "name": "code_execution"},
                    {"type": "tool_search_tool_regex_20251119", "name": "tool_search"}, {"type": "mcp_toolset", "mcp_server_name": "s"}, {"name": "bare"}, {"input_schema": {}}, None,
                    {"name": "late", "input_schema": {}, "defer_loading": True}, {"name": "e", "input_schema": {"type": "object"}, "input_examples": [{"a": 1}], "eager_input_streaming": True},
                    {"name": "nul", "description": None, "input_schema": {"properties": {}}}, {"name": "c", "input_schema": {"type": "object"}, "allowed_callers": ["direct"]}]))
            if self.likely(0.25):
                body["tool_choice"] = self.one([{"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": self.one(names)},
                                                {"type": "auto", "disable_parallel_tool_use": True}])
        header = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2"}
        body.update(self.some({
            "system": (0.6, lambda: self.text() if self.likely(0.4) else ([header] if self.likely(0.2) else []) + self.blocks()),
            "thinking": (0.2, lambda: self.one([{"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, {"type": "adaptive"}, {"type": "adaptive", "display": "omitted"}, None,
                                               {"type": "enabled"}, {"type": "enabled", "budget_tokens": 4096}, {"type": "disabled", "budget_tokens": 0}])),
            "top_k": (0.05, lambda: self.one([5, -1, 0])), "top_p": (0.05, lambda: Raw(self.one(["1", "0.9"]))), "service_tier": (0.05, lambda: "auto"), "container": (0.02, lambda: None),
            "context_management": (0.05, lambda: {"edits": [{"type": "clear_tool_uses_20250919"}]}), "mcp_servers": (0.03, lambda: []), "betas": (0.02, lambda: ["x"]),
            "cache_control": (0.03, lambda: {"type": "ephemeral"}), "chat_template_kwargs": (0.03, lambda: self.one([{"enable_thinking": False}, {}, None])),
            "output_config": (0.05, lambda: self.one([{"effort": self.one(EFFORTS)}, {}, None, {"effort": None}, {"format": {"type": "json_schema", "schema": {"type": "object"}}}])), "temperature": (0.3, lambda: 1), "stream": (0.3, lambda: True),
            "metadata": (0.2, lambda: {"user_id": "u"}), "stop_sequences": (0.05, lambda: ["x"])}))
        return body


# ---- A value that belongs elsewhere ----

def places(value, found=None, way=()):
    """The ways to all values within, as keys and indices."""
    found = [] if found is None else found
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found.append((*way, key))
        places(inner, found, (*way, key))
    return found


def replaced(value, way, change):
    """`value` with change(container, key) applied to a copy of the container at the end of the way."""
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(way) == 1:
        change(copy, way[0])
    else:
        copy[way[0]] = replaced(copy[way[0]], way[1:], change)
    return copy


def altered(chance, body):
    """A body with one value left out, of another kind, or there twice."""
    ways = places(body)
    if not ways:
        return body

    def change(container, key):
        kind = chance.rng.randrange(10)
        if kind == 0:
            del container[key]
        elif kind == 1 and isinstance(container, dict):
            container[Twice(key)] = chance.one([container[key], chance.value()])
        elif kind == 2:
            container[key] = None
        elif kind == 3 and isinstance(container, dict):
            container[chance.one(["x", "type", "name", "content", "text", "role", "id"])] = chance.value()
        elif kind == 4:
            container[key] = [container[key]]
        elif kind == 5 and isinstance(container[key], bool):
            container[key] = chance.one(["true", "no", 1, 0, Raw("1.0"), "x", 2])
        elif kind == 6 and isinstance(container[key], int):
            container[key] = chance.one([Raw(f"{int(container[key])}.0"), str(int(container[key])), f" {int(container[key])} ", Raw("1e400"), True, Raw("0.5")])
        elif kind == 7:
            container[key] = chance.one(["", [], {}])
        elif kind == 8 and isinstance(container[key], str):
            container[key] = chance.one([container[key].upper(), container[key] + " ", {"text": container[key]}])
        else:
            container[key] = chance.value()

    return replaced(body, chance.one(ways), change)


def random_request(rng, path=None, altered_share=0.05):
    """A path, a body, and how the body is written."""
    path = path or rng.choice(PATHS)
    chance = Chance(rng)
    body = {CHAT: chance.chat, COMPLETIONS: chance.completion, RESPONSES: chance.response, MESSAGES: chance.anthropic}[path]()
    if chance.likely(altered_share):
        body = altered(chance, body)
    style = chance.one([{}, {}, {"separators": (", ", ": ")}, {"separators": (", ", ": "), "ascii_only": True}, {"ascii_only": True}])
    return path, body, style
