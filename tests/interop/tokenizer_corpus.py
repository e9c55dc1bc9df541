"""Texts and conversations to compare tokenizers with: languages, code, signs, tools, turns that grow, odd white space."""

import random

TEXTS = [
    "",
    " ",
    "\n",
    "Hello",
    " Hello",
    "Hello ",
    "  two  spaces   three",
    "tabs\tand\r\nlines\n\n\nand more\n",
    "line\nline\n  indented\nDone.\n\nNext paragraph\n \n\nodd",
    "It's I'll we've THEY'RE can't DON'T o'clock 'tis",
    "numbers 1 12 123 1234 12345 1,234,567.89 3.14159 0x1F 1e-9 ½ ² ٣ 五",
    "CamelCaseWords snake_case_words kebab-case-words SCREAMING_SNAKE",
    "Ça va? Où est l'été? Größe, Straße, naïve, coöperate, fiancé",
    "Cafe\u0301 and Café, A\u030a and Å, ﬁ ligature, ｆｕｌｌ width, Ⅳ, ℌ",
    "Zażółć gęślą jaźń. Příliš žluťoučký kůň. Tiếng Việt có dấu.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Η γρήγορη καφέ αλεπού. שלום עולם. مرحبا بالعالم، كيف حالك؟",
    "नमस्ते दुनिया। আমার সোনার বাংলা। தமிழ் எழுத்து. ภาษาไทยไม่มีเว้นวรรค",
    "你好，世界！机器学习很有趣。日本語のテキスト、カタカナとひらがな。한국어 문장입니다.",
    "emoji 😀 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 👍🏽 ✈️ ☃ \u200d \ufe0f",
    "zero\u200bwidth nb\u00a0space ideographic\u3000space \u2028line\u2029para \u0085next \ufeffbom",
    "control \x01\x02\x1b[31mred\x1b[0m \x7f \x00 null",
    "math ∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β = ¬(¬α ∨ β), ∑ᵢ aᵢ² ≤ √∞",
    "𝒜𝓁𝓅𝒽𝒶 𐍈 𠜎 \U0010ffff \ue000",
    "<s> </s> <unk> <pad> <bos> <eos> <mask> [INST] [/INST] <<SYS>>",
    "<|im_start|>user\nhi<|im_end|> <|endoftext|><|eot_id|> <|begin_of_text|><|start_header_id|>x<|end_header_id|>",
    "<｜User｜>hi<｜Assistant｜> <｜begin▁of▁sentence｜> <start_of_turn>user\nhi<end_of_turn>",
    "half <|im_sta rt|> <|im_start <|im_end|><|im_end|>\n\n<|im_end|> a<|im_end|>b",
    "\n\n\n   \n\t\n <|im_end|>   \n<|eot_id|>\n\nword\n\nWord",
    "▁under▁score▁block ▁ ▁▁ Ġ Ċ <0x0A> ##piece",
    "def f(x: int) -> str:\n    \"\"\"Doc.\"\"\"\n    return f\"{x!r:>10}\"  # comment\n\n\nclass A(B):\n\tpass\n",
    "#include <vector>\nint main() { std::vector<int> v{1,2,3}; for (auto& x : v) x <<= 2; return v[0]; }\n",
    "SELECT a.id, COUNT(*) FROM t AS a WHERE a.x >= 10 AND b <> 'y' GROUP BY 1;",
    "{\"key\": [1, 2.5, null, true], \"nested\": {\"a\\n\": \"\\u00e9\"}}",
    "https://example.com/a/b?c=d&e=%20#frag user.name+tag@example.org 192.168.0.1:8080",
    "| a | b |\n|---|---|\n| **1** | `2` |\n\n- item\n  - item\n\n> quote\n\n```sh\nls -la | grep x\n```\n",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "!!!!!!!!!!????????.........-------______=====#####@@@@@",
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit.\nSed do eiusmod tempor.\n" * 40,
]

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Wetter für einen Ort — 天气",
        "parameters": {"type": "object", "required": ["place"], "properties": {
            "place": {"type": "string", "description": "City & country, e.g. \"Köln\" <DE>"},
            "unit": {"type": "string", "enum": ["c", "f"]},
            "days": {"type": "integer", "minimum": 1, "default": 3}, "exact": {"type": "boolean", "default": False},
            "limit": {"type": "number", "default": 0.5}}}}},
    {"type": "function", "function": {
        "name": "search", "description": "Searches it's index",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}}},
]


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def system(text):
    return {"role": "system", "content": text}


def chats():
    """Bodies as engines' /tokenize takes them, without a model."""
    yield {"messages": [user("Hi")]}
    yield {"messages": [user("")]}
    yield {"messages": [system("Be brief."), user("Warum ist der Himmel blau?\n")]}
    yield {"messages": [system("Be brief."), user(" leading and trailing ")], "add_generation_prompt": False}
    for text in TEXTS[2:]:
        yield {"messages": [system("You help."), user(text), assistant(text.strip() or "ok"), user("More: " + text)]}
    conversation = [system("Sei höflich.\n\nAnswer in the user's language.")]
    for number, text in enumerate(TEXTS[3:23]):
        conversation = conversation + [user(text)]
        yield {"messages": conversation}
        conversation = conversation + [assistant(f"Answer {number}:\n\n{text[::-1]}\n")]
        yield {"messages": conversation, "add_generation_prompt": False}
    thinking = "<think>\nLet me see: 1 < 2.\n</think>\n\nYes."
    yield {"messages": [user("1<2?"), assistant(thinking), user("Sure?")]}
    yield {"messages": [user("1<2?"), assistant(thinking), user("Sure?")],
           "chat_template_kwargs": {"enable_thinking": False}}
    yield {"messages": [user("1<2?")], "chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "high"}}
    yield {"messages": [user("Q"), {"role": "assistant", "content": "A", "reasoning_content": "because\n"}, user("R")]}
    yield {"messages": [user("Tell me"), assistant("Once upon a time ")], "continue_final_message": True,
           "add_generation_prompt": False}
    yield {"messages": [user("Tell me"), assistant("Es war einmal")], "continue_final_message": True,
           "add_generation_prompt": False}
    yield {"messages": [user("Weather?")], "tools": TOOLS}
    yield {"messages": [system("Use tools."), user("Weather in Köln?")], "tools": TOOLS}
    called = {"role": "assistant", "content": "", "tool_calls": [
        {"id": "abcdefghi", "type": "function",
         "function": {"name": "get_weather", "arguments": {"place": "Köln", "days": 2, "exact": True, "limit": 1e-7}}}]}
    answered = {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefghi", "content": "{\"t\": 21.5, \"sky\": \"☀\"}"}
    yield {"messages": [user("Weather in Köln?"), called, answered], "tools": TOOLS}
    yield {"messages": [user("Weather in Köln?"), called, answered, assistant("21.5 °C and sunny."), user("And Bonn?")],
           "tools": TOOLS}
    two = {"role": "assistant", "content": None, "tool_calls": called["tool_calls"] + [
        {"id": "123456789", "type": "function", "function": {"name": "search", "arguments": {"query": "Köln \"Dom\"\n"}}}]}
    yield {"messages": [user("Both"), two, answered,
                        {"role": "tool", "name": "search", "tool_call_id": "123456789", "content": "gefunden"}],
           "tools": TOOLS}
    # What some templates refuse.
    yield {"messages": [assistant("I begin"), user("Odd")]}
    yield {"messages": [user("one"), user("two")]}
    yield {"messages": [user("one"), system("late")]}
    yield {"messages": [{"role": "user", "content": [{"type": "text", "text": "part one"},
                                                     {"type": "text", "text": "part two"}]}]}
    yield {"messages": [user("Documents?")], "chat_template_kwargs": {
        "documents": [{"title": "T", "text": "Es steht geschrieben"}]}}


def random_text(rng, size):
    """Anything: words, signs, white space, special tokens cut in half, strange characters."""
    parts = []
    length = 0
    while length < size:
        kind = rng.randrange(8)
        if kind < 3:
            part = rng.choice(TEXTS)
            start = rng.randrange(len(part) + 1)
            part = part[start:start + rng.randrange(1, 80)]
        elif kind == 3:
            part = "".join(rng.choice(" \n\t\r\u00a0") for _ in range(rng.randrange(1, 5)))
        elif kind == 4:
            part = rng.choice(["<|im_start|>", "<|im_end|>", "<|eot_id|>", "</s>", "<s>", "<end_of_turn>", "<｜User｜>",
                               "[INST]", "<|endoftext|>", "<|end", "|>", "<", "<eos>", "<bos>"])
        elif kind == 5:
            part = "".join(chr(rng.choice([rng.randrange(32, 127), rng.randrange(0xa0, 0x2ff), rng.randrange(0x300, 0x370),
                                           rng.randrange(0x4e00, 0x4f00), rng.randrange(0x1f300, 0x1f650)]))
                           for _ in range(rng.randrange(1, 12)))
        elif kind == 6:
            part = str(rng.randrange(10 ** rng.randrange(1, 9)))
        else:
            part = "\n" * rng.randrange(1, 4) + rng.choice(["Word", "the", "x", "Über", "1", "- "])
        parts.append(part)
        length += len(part)
    return "".join(parts)


def random_conversation(rng, turns):
    """The bodies of a conversation's turns; each begins as the one before."""
    messages = [system(random_text(rng, 600))] if rng.randrange(2) else []
    for _ in range(turns):
        messages = messages + [user(random_text(rng, rng.randrange(1, 3000)))]
        yield {"messages": messages}
        messages = messages + [assistant(random_text(rng, rng.randrange(1, 2000)))]


def prompts(seed):
    """Texts for completions; the random ones grow, so that a memory of beginnings is put to use."""
    yield from TEXTS
    rng = random.Random(seed)
    for _ in range(8):
        text = ""
        for _ in range(6):
            text += random_text(rng, rng.randrange(1, 4000))
            yield text
