"""Requests of every shape that clients send, for run_vllm_cpu.py: (name, door, body). `text` is a prefix of some blocks that no other
request has; a body is sent by the SDK of its door."""

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "chat", "completions", "responses", "messages"


def tool(name, **more):
    return {"type": "function", "function": {"name": name, "description": f"Does {name}", "parameters": {
        "type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer", "default": 10}}}, **more}}


def called(arguments, **more):
    return {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": arguments}}], **more}


def result(content="line 1\nline 2"):
    return {"role": "tool", "tool_call_id": "call_1", "content": content}


def chats(text):
    system, user = {"role": "system", "content": text}, {"role": "user", "content": "Hello"}
    yield "system", {"messages": [system, user]}
    yield "user alone", {"messages": [{"role": "user", "content": text}]}
    yield "turns", {"messages": [system, user, {"role": "assistant", "content": "Hi."}, user]}
    yield "parts", {"messages": [system, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}
    yield "system of parts", {"messages": [{"role": "system", "content": [{"type": "text", "text": text}]}, user]}
    yield "developer", {"messages": [{"role": "developer", "content": text}, user]}
    yield "system and developer", {"messages": [system, {"role": "developer", "content": "D"}, user]}
    yield "content null", {"messages": [system, user, {"role": "assistant", "content": None}, user]}
    yield "SDK's nulls", {"messages": [system, user, {"role": "assistant", "content": "x", "refusal": None, "tool_calls": None}, user]}
    yield "tools", {"messages": [system, user], "tools": [tool("read"), tool("write")]}
    yield "tools strict", {"messages": [system, user], "tools": [tool("read", strict=True)]}
    yield "tools bare", {"messages": [system, user], "tools": [{"function": {"name": "f"}, "type": "function"}]}
    yield "tool_choice none", {"messages": [system, user], "tools": [tool("read")], "tool_choice": "none"}
    yield "tool loop", {"messages": [system, user, called('{"path":"/a","limit":1}'), result()], "tools": [tool("read")]}
    yield "tool loop odd arguments", {"messages": [system, user, called('{"x":1.0,"y":1e5,"é":"\\u00e9"}'), result()]}
    yield "tool loop no arguments", {"messages": [system, user, called(""), result()]}
    yield "tool result of parts", {"messages": [system, user, called("{}"), result([{"type": "text", "text": "l1"}, {"type": "text", "text": "l2"}])]}
    yield "reasoning_content", {"messages": [system, user, called("{}", reasoning_content="I look."), result()]}
    yield "reasoning", {"messages": [system, user, called("{}", reasoning="I look."), result()]}
    yield "effort none", {"messages": [system, user], "reasoning_effort": "none"}
    yield "effort high", {"messages": [system, user], "reasoning_effort": "high"}
    yield "template kwargs", {"messages": [system, user], "chat_template_kwargs": {"enable_thinking": False}}
    yield "prefill", {"messages": [system, user, {"role": "assistant", "content": "The answer"}], "continue_final_message": True, "add_generation_prompt": False}
    yield "last assistant", {"messages": [system, user, {"role": "assistant", "content": "The answer"}]}
    yield "streamed", {"messages": [system, user], "stream": True, "stream_options": {"include_usage": True}}
    yield "logprobs", {"messages": [system, user], "logprobs": True, "top_logprobs": 2}
    yield "prompt_logprobs", {"messages": [system, user], "prompt_logprobs": 1}
    yield "truncated", {"messages": [system, user], "truncate_prompt_tokens": 160}
    yield "salt", {"messages": [system, user], "cache_salt": "s1"}
    yield "unicode", {"messages": [system, {"role": "user", "content": "naïve “天気” 👩‍👧"}]}


def completions(text):
    yield "text", {"prompt": text}
    yield "streamed", {"prompt": text, "stream": True, "stream_options": {"include_usage": True}}
    yield "ids", {"prompt": [7 + sum(map(ord, text[:80])) % 900, *range(20, 270)]}
    yield "no special tokens", {"prompt": text, "add_special_tokens": False}
    yield "truncated right", {"prompt": text, "truncate_prompt_tokens": 160, "truncation_side": "right"}
    yield "echo and logprobs", {"prompt": text, "echo": True, "logprobs": 1}


def responses(text):
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
    function = {"type": "function", "name": "read", "description": "Reads", "parameters": {"type": "object", "properties": {}}, "strict": False}
    yield "text", {"instructions": text, "input": "Hello"}
    yield "items", {"instructions": text, "input": [message]}
    yield "tools", {"instructions": text, "input": [message], "tools": [function]}
    yield "call loop", {"instructions": text, "tools": [function], "input": [
        message, {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{\"a\":1}"},
        {"type": "function_call_output", "call_id": "c1", "output": "12"}]}
    yield "effort none", {"instructions": text, "input": [message], "reasoning": {"effort": "none"}}
    yield "streamed", {"instructions": text, "input": [message], "stream": True}


def messages(text):
    system, user = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}], {"role": "user", "content": "Hello"}
    read = {"name": "read", "description": "Reads", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}
    yield "text", {"system": text, "messages": [user]}
    yield "blocks", {"system": system, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}
    yield "tools", {"system": system, "messages": [user], "tools": [read]}
    yield "tool loop", {"system": system, "tools": [read], "messages": [
        user, {"role": "assistant", "content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "/a"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "12"}, {"type": "text", "text": "go on"}]}]}
    yield "billing header", {"system": [{"type": "text", "text": "x-anthropic-billing-header: v=1"}, *system], "messages": [user]}
    yield "thinking disabled", {"system": system, "messages": [user], "thinking": {"type": "disabled"}}
    yield "streamed", {"system": system, "messages": [user], "stream": True}


def all_shapes(prefix_of):
    """(name, door, body); `prefix_of(name)` makes the text that only this one has."""
    for door, makers in ((CHAT, chats), (COMPLETIONS, completions), (RESPONSES, responses), (MESSAGES, messages)):
        names = [name for name, _ in makers("")]
        for at, name in enumerate(names):
            full = f"{door}: {name}"
            yield full, door, list(makers(prefix_of(full)))[at][1]
