"""What is tried: each variant is some engines, what they are asked to do, and when an indexer comes to hear them."""

from dataclasses import dataclass, field


@dataclass
class EngineSpec:
    kind: str  # "vllm" or "sglang"
    options: dict = field(default_factory=dict)  # of its `open`
    env: dict = field(default_factory=dict)
    instance: int = 1
    rank: int = 0


@dataclass
class Variant:
    name: str
    engines: list
    salts: tuple = (None,)
    loras: tuple = (None,)
    vocab: int = 4000
    # What happens, in order: "run", "run half" (twice makes a whole), "register" (else before everything),
    # "reset", "restart" (all engines die and come back at their addresses), "trace".
    phases: tuple = ("run",)
    copies: int = 1
    together: int = 1
    replay: bool = False
    requests: float = 1.0  # of what the user asked for
    note: str = ""
    # False: the stream does not say enough to be exact; run only when asked for by name.
    expected: bool = True


PLENTY = 1 << 15
# Blocks of a pool in which requests push each other's out: so many per distinct request, but at least for one.
TIGHT = "tight"
TIGHT_TWICE = "tight, twice as large"
TIGHT_THRICE = "tight, thrice as large"


def pool_blocks(blocks, requests):
    times = {TIGHT: 1, TIGHT_TWICE: 2, TIGHT_THRICE: 3}
    return times[blocks] * max(72, int(1.5 * requests)) if blocks in times else blocks


def _vllm(name, *, blocks=PLENTY, algorithm="sha256", env=None, instance=1, rank=0, **rest):
    options = {"hash": algorithm, "blocks": blocks}
    for key in ("groups", "topic", "lookahead", "report", "running"):
        if key in rest:
            options[key] = rest.pop(key)
    if rest.get("loras_used"):
        options["loras"] = True
        rest["loras"] = rest.pop("loras_used")
    return Variant(name, [EngineSpec("vllm", options, env or {}, instance, rank)], **rest)


def _sglang(name, *, cache="radix", blocks=PLENTY, rank=0, **rest):
    options = {"cache": cache, "blocks": blocks}
    for key in ("eagle", "format", "topic"):
        if key in rest:
            options[key] = rest.pop(key)
    if rest.get("loras_used"):
        rest["loras"] = rest.pop("loras_used")
    return Variant(name, [EngineSpec("sglang", options, {}, 1, rank)], **rest)


SALTS = (None, "tenant-a", "tenant-b")
TAGGED = (None, "dynamo-cache-salt:a", "dynamo-cache-salt:b")
LORAS = (None, "sql-adapter", "chat-adapter")
BYTES = {"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0"}

VARIANTS = [
    _vllm("vllm-plain"),
    _vllm("vllm-tight", blocks=TIGHT),
    _vllm("vllm-large-vocabulary", vocab=150000, blocks=TIGHT),
    _vllm("vllm-copies", copies=4, together=2, blocks=TIGHT, requests=0.5),
    _vllm("vllm-hybrid", groups=["full", 64]),
    _vllm("vllm-hybrid-tight", groups=["full", 64], blocks=TIGHT_TWICE),
    _vllm("vllm-hybrid-window-first", groups=[64, "full"], blocks=TIGHT_TWICE),
    _vllm("vllm-hybrid-three", groups=[32, "full", 128], blocks=TIGHT_THRICE),
    _vllm("vllm-hybrid-copies", groups=["full", 64], copies=3, together=2, blocks=TIGHT_TWICE,
          requests=0.5),
    _vllm("vllm-salt", salts=SALTS, blocks=TIGHT_TWICE),
    _vllm("vllm-salt-tagged", salts=TAGGED, blocks=TIGHT_TWICE),
    _vllm("vllm-lora", loras_used=LORAS, blocks=TIGHT_TWICE),
    _vllm("vllm-lora-and-salt", loras_used=LORAS, salts=SALTS, blocks=TIGHT_TWICE),
    _vllm("vllm-bytes", env=BYTES, blocks=TIGHT),
    _vllm("vllm-bytes-xxhash", env=BYTES, algorithm="xxhash", blocks=TIGHT),
    _vllm("vllm-sha256-cbor", algorithm="sha256_cbor", blocks=TIGHT),
    _vllm("vllm-xxhash", algorithm="xxhash", blocks=TIGHT),
    _vllm("vllm-xxhash-cbor", algorithm="xxhash_cbor", blocks=TIGHT),
    _vllm("vllm-rank-1", rank=1, blocks=TIGHT),
    Variant("vllm-ranks", [EngineSpec("vllm", {"hash": "sha256", "blocks": TIGHT}, {}, 1, rank)
                           for rank in (0, 1, 2)]),
    _vllm("vllm-topic", topic="kv@pod-0@model", blocks=TIGHT),
    _vllm("vllm-reset", phases=("run half", "reset", "run half"), blocks=TIGHT),
    _vllm("vllm-restart", phases=("run half", "restart", "run half"), blocks=TIGHT),
    _vllm("vllm-replay", phases=("run half", "register", "run half"), replay=True, blocks=TIGHT),
    _vllm("vllm-lookahead", lookahead=1, blocks=TIGHT,
          note="hashes cover the token behind the block, as with EAGLE"),
    _vllm("vllm-lookahead-namespaces", lookahead=1, salts=SALTS, loras_used=LORAS, blocks=TIGHT_TWICE),
    _vllm("vllm-report-full", report="full", blocks=TIGHT, expected=False,
          note="hits are announced again without a new copy, which looks like a copy"),
    _vllm("vllm-trace", phases=("trace",), blocks=600, running=4,
          note="the excerpt of the conversation trace, a block for each of its blocks"),
    _sglang("sglang-radix"),
    _sglang("sglang-radix-tight", blocks=TIGHT),
    _sglang("sglang-unified", cache="unified", blocks=TIGHT),
    _sglang("sglang-unified-python", cache="unified-python", blocks=TIGHT),
    _sglang("sglang-copies", copies=4, together=2, blocks=TIGHT, requests=0.5),
    _sglang("sglang-eagle", eagle=True, blocks=TIGHT),
    _sglang("sglang-eagle-unified", eagle=True, cache="unified", blocks=TIGHT),
    _sglang("sglang-eagle-salt", eagle=True, salts=SALTS, blocks=TIGHT_TWICE),
    _sglang("sglang-salt", salts=SALTS, blocks=TIGHT_TWICE),
    _sglang("sglang-unified-salt", cache="unified", salts=SALTS, blocks=TIGHT_TWICE),
    _sglang("sglang-lora", loras_used=LORAS, blocks=TIGHT_TWICE),
    _sglang("sglang-dynamo-format", format="dynamo", loras_used=LORAS, salts=SALTS, blocks=TIGHT_TWICE),
    _sglang("sglang-rank-2", rank=2, blocks=TIGHT),
    _sglang("sglang-reset", phases=("run half", "reset", "run half"), blocks=TIGHT),
    _sglang("sglang-restart", phases=("run half", "restart", "run half"), blocks=TIGHT),
    _sglang("sglang-replay", phases=("run half", "register", "run half"), replay=True, blocks=TIGHT),
    Variant("three-engines", [
        EngineSpec("vllm", {"hash": "sha256", "blocks": TIGHT}, {}, 1, 0),
        EngineSpec("vllm", {"hash": "xxhash", "blocks": TIGHT_TWICE}, {}, 2, 0),
        EngineSpec("sglang", {"cache": "radix", "blocks": TIGHT}, {}, 3, 0),
    ]),
]
