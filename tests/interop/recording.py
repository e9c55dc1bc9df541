"""Recordings of what engines sent, with what their pools held afterwards: written here, replayed by recordings_test.cc.

A file is gzip of (all integers little-endian; a text is its length as u32 and its bytes):

    "kvatlas recording 2\\n"
    text    what it is: engine, version, variant, seed, as JSON
    u32     streams; of each: text instance, u32 rank, u32 block size, u32 number of the first message that is
            live (earlier ones can only be had by replay), u32 classes of the engine's cache (none: full attention
            alone), of each: u32 kind (0 full, 1 window, 2 state, 3 chunk), u32 block size, u32 tokens of the window or
            chunk, u32 1 if a hit drops its last block
    u32     frames, in the order in which they are to be sent; of each: u32 stream, text topic, u64 number, text payload
    u32     questions; of each: text lora, text salt (empty: none), u32 earlier question whose tokens it begins with
            (2^32 - 1: none), u32 how many of them, u32 further tokens, u32 of each; then per stream u32 blocks that
            the engine would reuse if more tokens followed, u32 blocks of the main class that it holds

Version 1 had no classes, and one number per stream, which stood for both.
"""

import gzip
import json
import pathlib
import struct

MAGIC = b"kvatlas recording 2\n"
EARLIER = b"kvatlas recording 1\n"
NONE = 0xFFFFFFFF


def _u32(value):
    return struct.pack("<I", value)


def _text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return _u32(len(data)) + data


def write(path, about, streams, frames, questions):
    """`frames` are (stream, topic, number, payload); questions have tokens, lora, salt, and depths and held, one
    per stream; the classes of a stream are (kind, block size, tokens, drops)."""
    out = [MAGIC, _text(json.dumps(about, sort_keys=True)), _u32(len(streams))]
    for stream in streams:
        out += [_text(str(stream["instance"])), _u32(stream["rank"]), _u32(stream["block_size"]),
                _u32(stream.get("live_from", 0)), _u32(len(stream.get("classes", ())))]
        out += [_u32(value) for of_class in stream.get("classes", ()) for value in of_class]
    out.append(_u32(len(frames)))
    for stream, topic, number, payload in frames:
        out += [_u32(stream), _text(topic), struct.pack("<Q", number), _text(payload)]
    out.append(_u32(len(questions)))
    earlier = []
    for question in questions:
        tokens = question["tokens"]
        shared, best = 0, NONE
        for i, other in enumerate(earlier):
            length = _common(tokens, other)
            if length > shared:
                shared, best = length, i
        earlier.append(tokens)
        out += [_text(question["lora"] or ""), _text(question["salt"] or ""), _u32(best), _u32(shared),
                _u32(len(tokens) - shared)]
        out += [_u32(token) for token in tokens[shared:]]
        out += [_u32(value) for pair in zip(question["depths"], question["held"]) for value in pair]
    with open(path, "wb") as file:
        file.write(gzip.compress(b"".join(out), 9, mtime=0))


def read(path):
    """{"about", "streams", "frames", "questions"}, as `write` was given them."""
    data = gzip.decompress(pathlib.Path(path).read_bytes())
    earlier_version = data.startswith(EARLIER)
    if not data.startswith(MAGIC) and not earlier_version:
        raise ValueError(f"{path}: not a recording")
    at = len(MAGIC)

    def number(form="<I"):
        nonlocal at
        value, = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        return value

    def text():
        nonlocal at
        size = number()
        at += size
        return data[at - size:at]

    about = json.loads(text())
    streams = [{"instance": text().decode(), "rank": number(), "block_size": number(), "live_from": number(),
                "classes": [] if earlier_version else [tuple(number() for _ in range(4)) for _ in range(number())]}
               for _ in range(number())]
    frames = [(number(), text().decode(), number("<Q"), text()) for _ in range(number())]
    questions = []
    for _ in range(number()):
        lora, salt = text().decode(), text().decode()
        earlier, shared, further = number(), number(), number()
        tokens = [] if earlier == NONE else questions[earlier]["tokens"][:shared]
        tokens = tokens + [number() for _ in range(further)]
        pairs = [(depth := number(), depth if earlier_version else number()) for _ in streams]
        questions.append({"lora": lora, "salt": salt, "tokens": tokens, "depths": [depth for depth, _ in pairs],
                          "held": [held for _, held in pairs]})
    return {"about": about, "streams": streams, "frames": frames, "questions": questions}


def _common(a, b):
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    low, high = 0, n  # a[:low] equal, a[:high] not
    while high - low > 1:
        middle = (low + high) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle
    return low
