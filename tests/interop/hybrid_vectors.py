#!/usr/bin/env python3
"""Makes hybrid_vectors.txt: what vLLM's own search finds in caches filled at random, a line each.

    $KVATLAS_INTEROP_DIR/venv-vllm/bin/python tests/interop/hybrid_vectors.py $KVATLAS_INTEROP_DIR/vllm-0.33.0

It also asks hybrid_reference.py, and exits with 1 if that says something else.
"""

import math
import random
import sys
from pathlib import Path

import hybrid_reference
import vllm_engine

HEADER = """\
# What vLLM's `find_longest_cache_hit` finds in caches filled at random; made by hybrid_vectors.py. A line has:
#   classes   in the engine's order: kind:block size:window or chunk in tokens:1 if hits drop a block
#   tokens    of the prompt; one more token follows it, which no cache has
#   held      blocks of each class, counted from 0: ranges joined by commas (none: -), classes by bars
#   reusable  tokens
"""
KINDS = {"full": "full_attention", "window": "sliding_window", "mamba": "mamba", "chunk": "chunked_local_attention"}


def layouts(rng):
    """Groups and whether hits drop blocks."""
    full, state = {"kind": "full"}, {"kind": "mamba"}

    def window(tokens, size=16, **more):
        return {"kind": "window", "window": tokens, "block_size": size, **more}

    def chunk(tokens):
        return {"kind": "chunk", "chunk": tokens}

    plain = [
        [full], [full, window(64)], [full, window(2)], [full, window(16)], [full, window(17)], [full, window(100, 32)],
        [{**full, "block_size": 32}, window(64)], [{**full, "block_size": 64}, window(32)], [full, window(100, 24)],
        [full, window(48), window(160)], [full, state], [full, state, window(64)], [full, {**state, "block_size": 16}, window(80, 32)],
        [full, chunk(64)], [full, chunk(72)], [full, chunk(128), window(64), state], [window(64)], [state], [window(64), state],
        [chunk(64)], [{**full, "block_size": 64}, window(40, 8), window(64, 16), window(128, 4)],
    ]
    for groups in plain:
        yield groups, False
    for groups in plain:
        if not any(group["kind"] == "chunk" for group in groups):
            yield groups, True
            if len(groups) > 1:
                marked = rng.randrange(len(groups))
                yield [{**group, "eagle": i == marked} for i, group in enumerate(groups)], True


class Pool:
    """A block pool of the engine, of which only the cached blocks are set."""

    def __init__(self, engine, groups, eagle):
        from vllm.v1.core.kv_cache_coordinator import get_kv_cache_coordinator
        from vllm.v1.kv_cache_interface import KVCacheConfig

        sizes = [group["block_size"] for group in groups]
        self.unit = math.gcd(*sizes)
        self.groups = groups
        self.coordinator = get_kv_cache_coordinator(
            kv_cache_config=KVCacheConfig(num_blocks=2, kv_cache_tensors=[], hash_block_size=self.unit, kv_cache_groups=[
                engine._group_spec(i, group) for i, group in enumerate(groups)]),
            max_model_len=1 << 16, max_in_flight_tokens=512, use_eagle=eagle, enable_caching=True,
            enable_kv_cache_events=False, dcp_world_size=1, pcp_world_size=1, scheduler_block_size=math.lcm(*sizes),
            hash_block_size=self.unit)

    def find(self, tokens, held):
        from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

        hashes = [b"%032d" % i for i in range((tokens + 1) // self.unit)]
        pool = self.coordinator.block_pool
        cached = pool.cached_block_hash_to_block
        cached._cache.clear()
        for group, blocks in enumerate(held):
            scale = self.groups[group]["block_size"] // self.unit
            for block in blocks:
                cached.insert(make_block_hash_with_group_id(hashes[(block + 1) * scale - 1], group), pool.blocks[1])
        return self.coordinator.find_longest_cache_hit(hashes, tokens)[1]


def fill(rng, group, tokens):
    """Blocks held: an unbroken start, of windows and states rather pieces."""
    blocks = tokens // group["block_size"]
    start = min(blocks, int(blocks * rng.choice((0.5, 0.8, 1, 1)) + rng.randrange(2)))
    if group["kind"] == "full":
        return list(range(start))
    share = rng.choice((0.2, 0.6, 0.85, 0.97, 1))
    return [i for i in range(blocks) if rng.random() < share]


def ranges(blocks):
    text, i = [], 0
    while i < len(blocks):
        end = i
        while end + 1 < len(blocks) and blocks[end + 1] == blocks[end] + 1:
            end += 1
        text.append(f"{blocks[i]}-{blocks[end]}" if end > i else str(blocks[i]))
        i = end + 1
    return ",".join(text) or "-"


def twin(groups, eagle, unit, tokens, held):
    classes = [(KINDS[g["kind"]], g["block_size"], g.get("window", 0), g.get("chunk", 0)) for g in groups]
    ends = {cls: {(block + 1) * cls[1] for block in blocks} for cls, blocks in zip(classes, held)}
    return hybrid_reference.Lookup(classes, dict(zip(classes, eagle)), unit,
                                   lambda cls, end: end in ends[cls]).longest(tokens)


def main():
    vllm_engine.load(sys.argv[1])
    rng = random.Random(1)
    lines, wrong = [], 0
    for groups, drops in layouts(rng):
        groups = [vllm_engine.group_of(group, 16) for group in groups]
        marked = any(group.get("eagle") for group in groups)
        eagle = [drops and (group.get("eagle", False) or not marked) for group in groups]
        pool = Pool(vllm_engine.VllmEngine, groups, drops)
        seen = set()
        for _ in range(400):
            tokens = rng.randrange(1, 400)
            held = [fill(rng, group, tokens) for group in groups]
            found = pool.find(tokens, held)
            wrong += found != twin(groups, eagle, pool.unit, tokens, held)
            if found in seen and len(seen) < 12 and rng.random() < 0.9 or len(seen) >= 12:
                continue
            seen.add(found)
            names = ",".join(f"{'state' if g['kind'] == 'mamba' else g['kind']}:{g['block_size']}:"
                             f"{g.get('window') or g.get('chunk') or 0}:{int(e)}" for g, e in zip(groups, eagle))
            lines.append(f"{names} {tokens} {'|'.join(ranges(blocks) for blocks in held)} {found}")
    (Path(__file__).parent / "hybrid_vectors.txt").write_text(HEADER + "\n".join(lines) + "\n")
    print(f"{len(lines)} lines; the twin differs in {wrong}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
