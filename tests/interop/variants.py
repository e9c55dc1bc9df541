"""What is tried: each variant is some engines, what they are asked to do, and when an indexer comes to hear them."""

from dataclasses import dataclass, field, replace


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
    branches: float = 0  # the share of requests that fork an earlier one anywhere in it, as agents do
    requests: float = 1.0  # of what the user asked for
    stretch: int = 1  # prompts are so many times as long
    hybrid: bool = False  # layers keep different parts of a prompt
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
    for key in ("groups", "topic", "lookahead", "report", "running", "block_size", "hash_block_size", "eagle",
                "retention", "batch_tokens"):
        if key in rest:
            options[key] = rest.pop(key)
    if rest.get("loras_used"):
        options["loras"] = True
        rest["loras"] = rest.pop("loras_used")
    return Variant(name, [EngineSpec("vllm", options, env or {}, instance, rank)], **rest)


def _sglang(name, *, cache="radix", blocks=PLENTY, rank=0, **rest):
    options = {"cache": cache, "blocks": blocks}
    for key in ("eagle", "format", "topic", "window", "window_blocks", "states", "state_every", "components"):
        if key in rest:
            options[key] = rest.pop(key)
    if rest.get("loras_used"):
        rest["loras"] = rest.pop("loras_used")
    return Variant(name, [EngineSpec("sglang", options, {}, 1, rank)], **rest)


def _sglang_hybrids():
    """SGLang's hybrid models, told in each of the proposed forms, and as the released version tells them."""
    window = {"window": 64, "window_blocks": 140}
    state = {"states": 40, "state_every": 32}
    for form in ("one", "snapshot", "tuple"):
        for name, parts in (("window", window), ("mamba", state), ("mamba-window", {**window, **state})):
            yield _sglang(f"sglang-{name}-{form}", cache="unified-python", blocks=TIGHT_TWICE, components=form,
                          branches=0.5, **parts)
        yield _sglang(f"sglang-window-odd-{form}", cache="unified-python", blocks=TIGHT_TWICE, components=form,
                      branches=0.5, window=100, window_blocks=160)
        yield _sglang(f"sglang-window-reset-{form}", cache="unified-python", blocks=TIGHT_TWICE, components=form,
                      phases=("run half", "reset", "run half"), **window)
    for name, parts in (("window", window), ("mamba", state)):
        yield _sglang(f"sglang-{name}-released", cache="unified-python", blocks=TIGHT_TWICE, branches=0.5, expected=False,
                      note="the released version tells nothing of windows and states: too many", **parts)


SALTS = (None, "tenant-a", "tenant-b")
TAGGED = (None, "dynamo-cache-salt:a", "dynamo-cache-salt:b")
LORAS = (None, "sql-adapter", "chat-adapter")
BYTES = {"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0"}

def window(tokens, **more):
    return {"kind": "window", "window": tokens, **more}


def state(**more):
    return {"kind": "mamba", **more}


def chunk(tokens, **more):
    return {"kind": "chunk", "chunk": tokens, **more}


def full(**more):
    return {"kind": "full", **more}


def _hybrids():
    """Models whose layers keep different parts of a prompt: what can be reused is less than what full attention holds."""
    tight, agents = {"blocks": TIGHT_THRICE}, {"branches": 0.5}
    small = {"block_size": 64, "groups": ["full", window(32, block_size=16)]}
    yield _vllm("vllm-window-64", groups=["full", 64], blocks=900)
    yield _vllm("vllm-window-64-agents", groups=["full", 64], **agents)
    yield _vllm("vllm-window-64-tight", groups=["full", 64], **tight, **agents)
    yield _vllm("vllm-window-512", groups=["full", 512], stretch=4, blocks=4000, **agents)
    yield _vllm("vllm-window-512-tight", groups=["full", 512], stretch=4, blocks=1200, **agents)
    yield _vllm("vllm-windows-two", groups=[48, "full", 160], **tight, **agents)
    yield _vllm("vllm-window-smaller-blocks", block_size=32, groups=["full", window(64, block_size=16)], **tight,
                **agents)
    yield _vllm("vllm-window-sparse-blocks", **small, blocks=TIGHT, **agents)
    yield _vllm("vllm-window-sparse-roomy", **small, **agents)
    yield _vllm("vllm-window-larger-blocks", groups=["full", window(100, block_size=32)], **tight, **agents)
    yield _vllm("vllm-window-odd-blocks", groups=["full", window(100, block_size=24)], **tight, **agents)
    yield _vllm("vllm-window-many-blocks", block_size=64, groups=[
        window(40, block_size=8), "full", window(64, block_size=16), window(64, block_size=16)], blocks=TIGHT_TWICE, **agents)
    yield _vllm("vllm-mamba", groups=["full", state()], **agents)
    yield _vllm("vllm-mamba-tight", groups=[state(), "full"], **tight, **agents)
    yield _vllm("vllm-mamba-chunks", groups=["full", state()], batch_tokens=64, **tight, **agents)
    yield _vllm("vllm-mamba-three", groups=[state(), state(), state(), "full"], blocks=900, **agents)
    yield _vllm("vllm-mamba-window", groups=["full", state(), 64], **tight, **agents)
    yield _vllm("vllm-mamba-fine", block_size=64, hash_block_size=16, groups=["full", state()], blocks=TIGHT, **agents,
                expected=False, note="states inside a block of full attention cannot be placed: too few")
    yield _vllm("vllm-mamba-larger-blocks", groups=["full", state(block_size=32)], **tight, **agents)
    yield _vllm("vllm-mamba-smaller-blocks", block_size=32, groups=["full", state(block_size=16)], **tight, **agents)
    for interval in (0, 64):
        yield _vllm(f"vllm-retention-{interval}-window", groups=["full", 64], retention=interval, **tight, **agents)
        yield _vllm(f"vllm-retention-{interval}-mamba", groups=["full", state()], retention=interval, **tight, **agents)
        yield _vllm(f"vllm-retention-{interval}-sparse-blocks", retention=interval, **small, blocks=TIGHT, **agents)
        yield _vllm(f"vllm-retention-{interval}-mamba-window", retention=interval, groups=["full", state(), 64], **tight,
                    **agents)
    yield _vllm("vllm-eagle-drop", eagle=True, blocks=TIGHT, **agents)
    yield _vllm("vllm-eagle-drop-window", eagle=True, groups=["full", 64], **tight, **agents)
    yield _vllm("vllm-eagle-drop-full-of-two", eagle=True, groups=[full(eagle=True), 64], **tight, **agents)
    yield _vllm("vllm-eagle-drop-window-of-two", eagle=True, groups=["full", window(64, eagle=True)], **tight, **agents)
    yield _vllm("vllm-eagle-drop-draft", eagle=True, groups=["full", 64, full(eagle=True, head_size=2)], **tight, **agents,
                expected=False, note="layers of different shape look like one class: too few")
    yield _vllm("vllm-eagle-drop-larger-blocks", eagle=True, groups=["full", window(100, block_size=32)], **tight, **agents)
    yield _vllm("vllm-eagle-drop-smaller-blocks", eagle=True, block_size=32,
                groups=["full", window(64, block_size=16)], **tight, **agents)
    yield _vllm("vllm-eagle-drop-sparse-blocks", eagle=True, block_size=64,
                groups=["full", window(32, block_size=16, eagle=True)], **tight, **agents)
    for interval in (0, 128):
        yield _vllm(f"vllm-eagle-drop-retention-{interval}-sparse", eagle=True, retention=interval, block_size=64, groups=[
            "full", window(32, block_size=16, eagle=True), window(40, block_size=8)], blocks=TIGHT, **agents)
    # As DeepSeek-V4: a large latent block, windows in small ones; with its multi-token prediction the first window drops.
    deep = {"block_size": 256, "stretch": 8, "requests": 0.5, "blocks": 1500}
    yield _vllm("vllm-deep", groups=["full", *(window(128, block_size=size) for size in (64, 64, 4, 8))], **deep, **agents)
    yield _vllm("vllm-deep-eagle", eagle=True, groups=[
        "full", window(128, block_size=64, eagle=True), *(window(128, block_size=size) for size in (64, 4, 8))],
        **deep, **agents)
    yield _vllm("vllm-eagle-drop-mamba", eagle=True, groups=["full", state()], **tight, **agents)
    yield _vllm("vllm-eagle-drop-mamba-window", eagle=True, groups=[state(), "full", 64], **tight, **agents)
    yield _vllm("vllm-eagle-drop-retention-0", eagle=True, retention=0, groups=["full", 64], **tight, **agents)
    yield _vllm("vllm-window-alone", groups=[64], **agents)
    yield _vllm("vllm-window-alone-tight", groups=[64], blocks=TIGHT, **agents)
    yield _vllm("vllm-window-alone-retention-0", groups=[64], retention=0, blocks=TIGHT, **agents,
                expected=False, note="gaps in a window without full attention cannot be placed: too few")
    yield _vllm("vllm-window-alone-eagle", groups=[64], eagle=True, blocks=TIGHT, **agents)
    yield _vllm("vllm-mamba-alone", groups=[state()], **agents)
    yield _vllm("vllm-mamba-alone-tight", groups=[state()], blocks=TIGHT, **agents)
    yield _vllm("vllm-chunk", groups=["full", chunk(64)], **agents)
    yield _vllm("vllm-chunk-tight", groups=[chunk(128), "full"], **tight, **agents)
    yield _vllm("vllm-chunk-odd", groups=["full", chunk(72)], **tight, **agents)
    yield _vllm("vllm-chunk-window-mamba", groups=["full", chunk(128), 64, state()], **tight, **agents)
    yield _vllm("vllm-window-namespaces", groups=["full", 64], salts=SALTS, loras_used=LORAS, **tight)
    yield _vllm("vllm-mamba-reset", groups=["full", state(), 64], phases=("run half", "reset", "run half"), **tight)
    yield _vllm("vllm-mamba-restart", groups=["full", state(), 64], phases=("run half", "restart", "run half"), **tight)
    yield Variant("vllm-window-ranks", [EngineSpec("vllm", {
        "hash": "sha256", "blocks": TIGHT_TWICE, "groups": ["full", 64]}, {}, 1, rank) for rank in (0, 1, 2)], branches=0.5)
    yield _vllm("vllm-window-bytes", env=BYTES, groups=["full", 64], **tight)
    yield _vllm("vllm-window-replay", groups=["full", 64], phases=("run half", "register", "run half"), replay=True,
                **tight)
    yield _vllm("vllm-window-trace", groups=["full", 512, state()], phases=("trace",), blocks=1800, running=4)
    yield _vllm("vllm-window-report-full", groups=["full", 64], report="full", expected=False, **tight, **agents,
                note="hits are announced again, for windows with blocks that are not there")


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
    *(replace(variant, hybrid=True) for variant in _hybrids()),
    *(replace(variant, hybrid=True) for variant in _sglang_hybrids()),
]
