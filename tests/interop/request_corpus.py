"""Random requests as clients send them, from a seed: `random_request(rng)` gives a path and a body; `text_of(body)` its JSON.

Most are valid somewhere. A number that Python's json would print in another way (1e5, -0, 1.0) is a `Raw`, which goes into the text as it is.
"""

import json

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
PATHS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)

TEXTS = ["Hello", "fix the bug", "What is the weather in Zürich?", "天気はどうですか", "naïve café — “quoted” …", "👩‍👩‍👧 ok 🇨🇭", "שלום עולם", "e\u0301", "", " ",
         "\n", "  lead and trail  \n", "line 1\nline 2\n\n\nline 4", "tab\there", "a\r\nb", "<b>&amp; 'x' \"y\"</b>", "{\"a\": 1}", "{{ messages }} {% x %}",
         "```python\nprint('hi')\n```", "back\\slash \\n", "\u2028sep\u00a0nbsp\u200b", "1 + 1 = 2", "<think>\nhm\n</think>\n\nfour", "<think>no end",
         "</think>tail", "<|im_end|>", "<|im_start|>user\n", "<tool_call>\n{}\n</tool_call>", "\u0007bell", "word " * 20, "x" * 70, "1234567890 123",
         "I should look.", "done", "OK."]
NAMES = ["now", "read_file", "get_weather", "calc", "mcp__fs__list-dir", "f"]
KEYS = ["path", "x", "limit", "city", "Größe", "a b", "items", "type", "name", "default", "$ref"]
NUMBERS = ["0", "-0", "1", "-7", "12", "1.0", "-0.0", "0.1", "1e5", "1E5", "1e-7", "1.5e3", "1e16", "1e22", "2.50", "3.14159265358979", "123456789012345678",
           "9223372036854775808", "18446744073709551616", "100000000000000000000", "-9223372036854775809", "1e300", "0.30000000000000004", "5e-324"]
EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Raw(str):
    """JSON text that is written as it is."""


def text_of(value, separators=(",", ":"), ascii_only=False, indent=None, depth=0):
    comma, colon = separators
    if isinstance(value, Raw):
        return str(value)
    if not isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=ascii_only)
    inner = [text_of(v, separators, ascii_only, indent, depth + 1) for v in (value.values() if isinstance(value, dict) else value)]
    if isinstance(value, dict):
        inner = [json.dumps(key, ensure_ascii=ascii_only) + colon + item for key, item in zip(value, inner)]
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
        return {self.one(KEYS): self.value(depth) for _ in range(self.rng.randrange(4))}

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
            return {"type": "object", "x-note": self.value()}
        schema = {"type": self.one(["string", "integer", "number", "boolean", ["string", "null"], "array"])}
        schema.update(self.some({
            "description": (0.5, self.text), "default": (0.3, self.value), "enum": (0.2, lambda: [self.text(), self.text(), None]),
            "minimum": (0.3, self.number), "items": (0.2, lambda: {"type": "string"}), "anyOf": (0.1, lambda: [{"type": "null"}, {"const": self.value()}]),
            "title": (0.1, self.text)}))
        return self.shuffled(schema)

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
        odd = ["", "null", "[]", "[1]", "not json", "{\"a\":1", " {\"x\": 1} ", "1", "\"s\"", "{\"x\":1,\"x\":2}", "{\"x\":NaN}"]
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
            parts.append(self.one([{"type": "refusal", "refusal": "no"}, {"type": "thinking", "thinking": "hm"}, {"type": "input_text", "text": "t"}, "bare"]))
        return parts if self.likely(0.97) else []

    def content(self):
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
            "reasoning_content": (0.2, self.text), "reasoning": (0.12, self.text), "refusal": (0.1, lambda: None), "annotations": (0.05, lambda: []),
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
        return self.shuffled(call, 0.1)

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
                results = [{"role": "tool", "tool_call_id": call["id"], "content": self.content()} for call in calls]
                if self.likely(0.1):
                    results.reverse()
                if self.likely(0.1):
                    results[0]["name"] = calls[0]["function"]["name"]
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
        elif self.likely(0.03):
            body["tools"] = self.one([[], None])
        if body["messages"][-1]["role"] == "assistant" and self.likely(0.6):
            body.update(self.one([{"continue_final_message": True, "add_generation_prompt": False}, {"continue_final_message": True},
                                  {"add_generation_prompt": False}]))
        elif self.likely(0.06):
            body["add_generation_prompt"] = self.one([True, False])
        body.update(self.some({
            "reasoning_effort": (0.15, lambda: self.one([*EFFORTS, None])), "reasoning": (0.04, lambda: self.one([{"effort": self.one(EFFORTS)}, {"enabled": self.one([True, False])}])),
            "chat_template_kwargs": (0.12, lambda: self.one([{"enable_thinking": self.one([True, False])}, {"thinking": self.one([True, False])}, {}, None, {"reasoning_effort": "low"}])),
            "add_special_tokens": (0.04, lambda: self.one([True, False])), "documents": (0.03, lambda: [{"title": "t", "text": self.text()}]),
            "truncate_prompt_tokens": (0.03, lambda: self.one([10, 50, -1])), "response_format": (0.04, lambda: {"type": "json_object"}),
            "parallel_tool_calls": (0.08, lambda: self.one([True, False])), "prompt_logprobs": (0.01, lambda: 1)}))
        return body | self.sampling("max_tokens", body)

    def sampling(self, limit, body):
        """Fields that are no part of the prompt, but for those that an engine refuses with others of the body."""
        fields = self.some({"temperature": (0.3, lambda: Raw(self.one(["0", "0.7", "1", "1.0"]))), "stream": (0.3, lambda: self.one([True, False])), limit: (0.3, lambda: 64),
                          "top_p": (0.1, lambda: 0.9), "user": (0.1, self.text), "seed": (0.05, lambda: 7)})
        if "prompt_logprobs" in body:
            fields.pop("stream", None)
        if "n" in body:
            fields.pop("temperature", None)
        return fields

    # ---- The other doors ----
    def completion(self):
        ids = [self.rng.randrange(900) for _ in range(self.rng.randrange(1, 9))]
        prompt = self.one([self.text, self.text, self.text, lambda: ids, lambda: [self.text(), self.text()], lambda: [ids, ids[:1]], lambda: [self.text()]])()
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
                    if isinstance(part, dict) and part["type"] == "output_text":
                        part["annotations"] = []
        if self.likely(0.3):
            del message["type"]
        return message

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
        body = {"input": self.text() if self.likely(0.15) else items}
        if names:
            body["tools"] = [self.shuffled({"type": "function", **self.function(name)}, 0.1) for name in names]
            if self.likely(0.25):
                body["tool_choice"] = self.one(["auto", "none", "required", {"type": "function", "name": self.one(names)}])
        body.update(self.some({
            "instructions": (0.4, self.text), "reasoning": (0.25, lambda: self.one([{"effort": self.one(EFFORTS)}, {"effort": "low", "summary": "auto"}, {}, None])),
            "store": (0.3, lambda: False), "parallel_tool_calls": (0.2, lambda: self.one([True, False])), "include": (0.1, lambda: ["reasoning.encrypted_content"]),
            "text": (0.1, lambda: {"format": {"type": "text"}}), "truncation": (0.1, lambda: self.one(["auto", "disabled"])),
            "chat_template_kwargs": (0.05, lambda: {"enable_thinking": self.one([True, False])}), "prompt_cache_key": (0.1, lambda: "k"),
            "previous_response_id": (0.01, lambda: "resp_1"), "metadata": (0.05, lambda: {"a": "b"})}))
        return body | self.sampling("max_output_tokens", body)

    def reasoning_item(self):
        item = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": self.text()}] if self.likely(0.4) else []}
        if self.likely(0.6):
            item["content"] = [{"type": "reasoning_text", "text": self.text()}]
        if self.likely(0.2):
            item["encrypted_content"] = self.one([None, "gAAA"])
        return item

    def block(self, kind="text"):
        block = {"type": kind, "text": self.words() if self.likely(0.9) else self.text()}
        if self.likely(0.2):
            block["cache_control"] = {"type": "ephemeral"}
        return block

    def blocks(self):
        return [self.block() for _ in range(self.rng.randrange(1, 4))]

    def tool_result(self, number):
        block = {"type": "tool_result", "tool_use_id": f"toolu_{number}"}
        block.update(self.some({"content": (0.9, lambda: self.blocks() if self.likely(0.5) else self.text()), "is_error": (0.15, lambda: self.one([True, False])),
                                "cache_control": (0.15, lambda: {"type": "ephemeral"})}))
        return block

    def anthropic(self):
        names = self.tool_names() if self.likely(0.5) else []
        messages, number = [], 0
        for _ in range(self.rng.randrange(1, 4)):
            messages.append({"role": "user", "content": self.blocks() if self.likely(0.5) else self.text()})
            while names and self.likely(0.4):
                content = [{"type": "thinking", "thinking": self.text(), "signature": "s"}] if self.likely(0.3) else []
                content += [self.block()] if self.likely(0.4) else []
                uses = range(number, number + (1 if self.likely(0.8) else 2))
                content += [{"type": "tool_use", "id": f"toolu_{n}", "name": self.one(names), "input": self.object()} for n in uses]
                messages.append({"role": "assistant", "content": content})
                results = [self.tool_result(n) for n in uses]
                if self.likely(0.25):
                    results.insert(self.one([0, len(results)]), self.block())
                messages.append({"role": "user", "content": results})
                number = uses.stop
            if self.likely(0.6):
                content = self.text() if self.likely(0.5) else self.blocks()
                if isinstance(content, list) and self.likely(0.3):
                    content.insert(0, self.one([{"type": "thinking", "thinking": self.text(), "signature": "s"}, {"type": "redacted_thinking", "data": "zz"}]))
                messages.append({"role": "assistant", "content": content})
            if self.likely(0.03):
                messages.append({"role": "system", "content": self.text()})
        if messages[-1]["role"] == "assistant" and self.likely(0.7):
            messages.append({"role": "user", "content": self.text()})
        body = {"max_tokens": 2048, "messages": messages}
        if names:
            body["tools"] = [self.shuffled({"name": name, "input_schema": self.schema(), **self.some({
                "description": (0.8, self.text), "cache_control": (0.15, lambda: {"type": "ephemeral"}), "type": (0.1, lambda: "custom"), "strict": (0.05, lambda: True)})}) for name in names]
            if self.likely(0.25):
                body["tool_choice"] = self.one([{"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": self.one(names)},
                                                {"type": "auto", "disable_parallel_tool_use": True}])
        header = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2"}
        body.update(self.some({
            "system": (0.6, lambda: self.text() if self.likely(0.4) else ([header] if self.likely(0.2) else []) + self.blocks()),
            "thinking": (0.2, lambda: self.one([{"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, {"type": "adaptive"}])),
            "output_config": (0.05, lambda: {"effort": self.one(EFFORTS)}), "temperature": (0.3, lambda: 1), "stream": (0.3, lambda: True),
            "metadata": (0.2, lambda: {"user_id": "u"}), "stop_sequences": (0.05, lambda: ["x"])}))
        return body


def random_request(rng, path=None):
    path = path or rng.choice(PATHS)
    chance = Chance(rng)
    return path, {CHAT: chance.chat, COMPLETIONS: chance.completion, RESPONSES: chance.response, MESSAGES: chance.anthropic}[path]()
