"""SGLang's own radix caches, event recorder and event publisher, without a GPU or a model.

What runs is the code of the installed package: `RadixCache` or `UnifiedRadixCache` (with its Rust or its Python tree),
`KVCacheEventRecorder`, `SchedulerKvEventsPublisher`'s way of publishing and `ZmqEventPublisher`. What stands in: the
model, the memory pool (slots are numbers), and requests, of which only what the cache reads is there. The page hash
that SGLang compiles at first use is computed here with hashlib; to an indexer it is an opaque number.
"""

import hashlib
import json
import os
import struct
import sys
import time
from array import array
from types import SimpleNamespace

import sglang_hybrid
import stubs
from engine_process import Engine, next_token


def page_hashes(raw, logical_len, unit_width, is_bigram, prior_digest, page_size):
    """SHA-256 of the previous page's digest and this page's tokens as u32, little-endian; bigrams as pairs."""
    if page_size is None:
        return page_hashes(raw, logical_len, unit_width, is_bigram, prior_digest, max(logical_len, 1))[0]
    digests = []
    for start in range(0, logical_len, page_size):
        end = min(start + page_size, logical_len)
        if is_bigram:
            words = [word for i in range(start, end) for word in (raw[i], raw[i + 1])]
        else:
            words = raw[start * unit_width:end * unit_width]
        state = hashlib.sha256(prior_digest or b"")
        state.update(struct.pack(f"<{len(words)}I", *words))
        prior_digest = state.digest()
        digests.append(prior_digest.hex())
    return digests


def load(source):
    stubs.install(never=("msgspec", "zmq", "numpy", "pydantic", "torch", "packaging", "psutil"))
    sys.path.insert(0, source)
    for name in ("", ".srt", ".srt.mem_cache", ".srt.disaggregation", ".srt.managers", ".srt.utils"):
        path = os.path.join(source, "sglang", *name.split(".")[1:])
        stubs.package("sglang" + name, path)
    stubs.stub("sglang.kernels", "sglang.srt.layers", "sglang.srt.configs", "sglang.srt.distributed",
               "sglang.srt.managers.schedule_batch")
    from sglang.srt.mem_cache.cpp_utils import native_hash

    native_hash._load_native_hash_module = lambda: SimpleNamespace(get_hash=page_hashes)


class Slots:
    """The memory pool: pages of token slots that are only numbers."""

    def __init__(self, torch, pages, page_size):
        self.torch = torch
        self.device = "cpu"
        self.page_size = page_size
        self.size_full = pages * page_size
        self.pages = pages
        self.clear()

    def clear(self):
        self.free_pages = list(range(self.pages, 0, -1))

    def mamba_full_cache_donor(self):
        return None

    def available_size(self):
        return len(self.free_pages) * self.page_size

    def alloc(self, pages):
        taken = [self.free_pages.pop() for _ in range(pages)]
        return self.torch.tensor([page * self.page_size + i for page in taken
                                  for i in range(self.page_size)], dtype=self.torch.int64)

    def free_segment(self, indices, start_pos=0):
        pages = {int(i) // self.page_size for i in indices}
        assert not pages & set(self.free_pages), "freed twice"
        self.free_pages.extend(pages)


class Rows:
    """The table from a request's positions to slots."""

    def __init__(self, torch, requests, tokens):
        self.req_to_token = torch.zeros((requests, tokens), dtype=torch.int64)
        self.free_rows = list(range(requests))

    def write(self, where, values):
        self.req_to_token[where] = values


class SglangEngine(Engine):
    def __init__(self, source):
        super().__init__()
        import zmq

        self.watch(zmq)
        load(source)

    def open(self, command):
        """Keys: cache ("radix", "unified" or "unified-python"), blocks, block_size (a page), vocab, rank, endpoint,
        replay_endpoint, topic, eagle, format ("default" or "dynamo"), running, chunk (tokens of a prefill).

        Of hybrid models, whose tree is in Python: window (tokens) and window_blocks (pages of them), states (slots) and
        state_every (tokens between two that are kept), components (a form of `sglang_hybrid`)."""
        import torch
        from sglang.srt.disaggregation.kv_events import EventPublisherFactory
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.events import KvEventLoraNames

        self.torch = torch
        self.block_size = command["block_size"]
        self.vocab = command["vocab"]
        self.running_max = command.get("running", 8)
        self.chunk = command.get("chunk", 256)
        self.eagle = command.get("eagle", False)
        self.window = command.get("window")
        self.state_every = command.get("state_every")
        self.components = None
        if self.window:
            self.slots = sglang_hybrid.window_slots(Slots, torch, command["blocks"], command["window_blocks"],
                                                    self.block_size)
        else:
            self.slots = Slots(torch, command["blocks"], self.block_size)
        if self.state_every:
            self.rows = sglang_hybrid.state_rows(torch, self.running_max + 1, 1 << 14, command["states"])
            sglang_hybrid.configure_states(self.state_every)
        else:
            self.rows = Rows(torch, self.running_max + 1, 1 << 14)
        self.lora_names = KvEventLoraNames()
        params = dict(
            disable=False, req_to_token_pool=self.rows, token_to_kv_pool_allocator=self.slots,
            page_size=self.block_size, is_eagle=self.eagle, enable_kv_cache_events=True,
            dynamo_kv_event_format=command.get("format") == "dynamo",
            kv_event_lora_names=self.lora_names)
        if command["cache"] == "radix":
            from sglang.srt.mem_cache.radix_cache import RadixCache

            self.cache = RadixCache(CacheInitParams(**params))
        else:
            from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
            from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

            core = "rust" if command["cache"] == "unified" else "python"
            components = [ComponentType.FULL]
            if self.window:
                components.append(ComponentType.SWA)
            if self.state_every:
                components.append(ComponentType.MAMBA)
            self.cache = UnifiedRadixCache(CacheInitParams(
                tree_components=tuple(components), tree_core_backend=core, sliding_window_size=self.window,
                enable_mamba_extra_buffer=bool(self.state_every), **params))
            if self.window or self.state_every:
                self.components = sglang_hybrid.Components(self.cache.tree_core, command.get("components"))
        config = {"publisher": "zmq", "endpoint": command["endpoint"], "topic": command.get("topic", ""),
                  "replay_endpoint": command.get("replay_endpoint"),
                  "format": command.get("format", "default")}
        self.publisher = EventPublisherFactory.create(json.dumps(config), command["rank"])
        self.batches = 0
        self.evicted = 0
        return {"endpoint": self._bound(self.publisher._pub),
                "replay_endpoint": self._bound(self.publisher._replay), "rank": command["rank"]}

    @staticmethod
    def _bound(socket):
        import zmq

        return socket.getsockopt_string(zmq.LAST_ENDPOINT) if socket is not None else None

    def publisher_socket(self):
        return self.publisher._pub

    def published(self):
        return self.batches

    def publish(self):
        """As SchedulerKvEventsPublisher.publish_kv_events."""
        from sglang.srt.disaggregation.kv_events import KVEventBatch

        self.changed()
        events = self.components.take() if self.components else self.cache.take_events()
        if events:
            self.batches += 1
            self.publisher.publish(KVEventBatch(ts=time.time(), events=events))

    def changed(self):
        """What the tree's change means for components is found by comparing, which must not miss what comes and goes."""
        if self.components:
            self.components.collect()

    def _key(self, tokens, prompt):
        from sglang.srt.mem_cache.radix_cache import RadixKey

        return RadixKey(array("q", tokens), self._extra_key(prompt), is_bigram=self.eagle,
                        cache_salt=prompt.get("salt"))

    @staticmethod
    def _extra_key(prompt):
        """As Req builds it: the adapter's id, 32 digits."""
        lora = prompt.get("lora")
        return hashlib.md5(lora.encode()).hexdigest() if lora else None

    def _admit(self, job):
        """A request with its prefix matched and locked, or None if the pool has no room for it now."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        tokens = list(job["tokens"])
        key = self._key(tokens[:-1], job).page_aligned(self.block_size)
        match = self.cache.match_prefix(MatchPrefixParams(key=key))
        prefix = match.device_prefix_len
        lock = self.cache.lock(match.last_device_node)
        total = len(tokens) + job["outputs"]
        pages = -(-(total - prefix) // self.block_size)
        if not self._make_room(pages):
            self.cache.unlock(lock)
            return None
        row = self.rows.free_rows.pop()
        held = sglang_hybrid.Held(row, prefix)
        if prefix:
            self.rows.write((row, slice(0, prefix)),
                            self.cache.path_device_indices(match.last_device_node)[:prefix])
        self.rows.write((row, slice(prefix, prefix + pages * self.block_size)), self.slots.alloc(pages))
        request = SimpleNamespace(
            job=job, origin_input_ids=array("q", tokens), output_ids=[], computed=prefix,
            full_untruncated_fill_ids=array("q", tokens), allocated=prefix + pages * self.block_size,
            extra_key=self._extra_key(job), cache_salt=job.get("salt"), lora_id=self._extra_key(job),
            priority=0, lock=lock, last_node=match.last_device_node, done=False, session=None,
            session_id=None, kv_rotation_base=None, rid=str(row), kv=held,
            swa_branching_seqlen=match.swa_branching_seqlen, state_branch=match.mamba_branching_seqlen)
        request.finished = lambda: request.done
        request.get_fill_ids = lambda: request.full_untruncated_fill_ids[:request.computed]
        if self.state_every:
            self.rows.hold(request)
        if job.get("lora"):
            self.lora_names.register(request, job["lora"])
        return request

    def _make_room(self, pages):
        """Also of a window for them, and of a request's two states."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        wanted = pages * self.block_size
        if self.window:
            missing = {"num_tokens": max(0, wanted - self.slots.full_available_size()),
                       "swa_num_tokens": max(0, wanted - self.slots.swa_available_size())}
        else:
            missing = {"num_tokens": max(0, wanted - self.slots.available_size())}
        if self.state_every:
            missing["mamba_num"] = max(0, 2 - self.rows.mamba_allocator.available_size())
        if any(missing.values()):
            self.evicted += self.cache.evict(EvictParams(**missing)).num_tokens_evicted
            self.changed()
        return wanted <= self.slots.available_size() and (
            not self.state_every or self.rows.mamba_allocator.available_size() >= 2)

    def _checkpoint(self, request):
        self.cache.checkpoint(request, up_to=request.computed)
        self.changed()

    def _computed(self, request, start):
        """As the scheduler: which state of the tokens from `start` on was tracked, and what left the window."""
        if self.state_every:
            kept = request.computed // self.state_every * self.state_every
            if request.state_branch is not None and start < request.state_branch <= request.computed:
                kept = request.state_branch
            if kept > start:
                request.kv.mamba_last_track_seqlen = kept
        if self.window and request.output_ids:
            self.cache.components[self._component("SWA")]._free_out_of_window_slots(request, request.computed - 1)

    @staticmethod
    def _component(name):
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

        return ComponentType[name]

    def _step(self, request):
        """One forward pass of a request: a chunk of its prompt, or a token."""
        length = len(request.full_untruncated_fill_ids)
        if request.computed < len(request.origin_input_ids):
            start = request.computed
            request.computed = min(request.computed + self.chunk, length)
            self._computed(request, start)
            if request.computed < length:
                self._checkpoint(request)
                return
        token = next_token(list(request.full_untruncated_fill_ids), self.vocab)
        if not request.output_ids:
            self._checkpoint(request)
        request.output_ids.append(token)
        request.full_untruncated_fill_ids.append(token)
        if len(request.output_ids) < max(request.job["outputs"], 1):
            request.computed += 1
            self._computed(request, request.computed - 1)
            return
        # The last token's keys and values were never computed.
        request.done = True
        self._checkpoint(request)
        tail = request.kv.cache_protected_len // self.block_size * self.block_size
        row = self.rows.req_to_token[request.kv.req_pool_idx]
        self.slots.free_segment(row[tail:request.allocated])
        self.cache.unlock(request.lock)
        self.rows.free_rows.append(request.kv.req_pool_idx)

    def run(self, jobs):
        waiting = sorted(range(len(jobs)), key=lambda i: jobs[i].get("at", 0))
        outputs = [None] * len(jobs)
        running = []
        step = 0
        while waiting or running:
            while waiting and len(running) < self.running_max and (
                    jobs[waiting[0]].get("at", 0) <= step or not running):
                request = self._admit(jobs[waiting[0]])
                if request is None:
                    assert running, "a prompt that does not fit into the pool"
                    break
                request.index = waiting.pop(0)
                running.append(request)
            step += 1
            for request in list(running):
                self._step(request)
                if request.done:
                    outputs[request.index] = request.output_ids
                    running.remove(request)
            self.publish()
        return outputs

    def reset(self):
        self.cache.reset()
        self.slots.clear()
        if self.state_every:
            self.rows.mamba_allocator.clear()
        self.publish()
        return True

    def depth(self, prompt):
        """Pages that the tree itself finds. A match may split a node, which changes no content."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        match = self.cache.match_prefix(MatchPrefixParams(key=self._key(prompt["tokens"], prompt)))
        return match.device_prefix_len // self.block_size

    def held(self, prompt):
        """Pages of full attention, whatever the other components say."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

        if not self.components:
            return self.depth(prompt)
        match = self.cache.match_prefix(MatchPrefixParams(key=self._key(prompt["tokens"], prompt)))
        return match.full_kv_hit_length // self.block_size

    def facts(self):
        full = self.slots.full_attn_allocator if self.window else self.slots
        return {"resident": (self.slots.size_full - full.available_size()) // self.block_size,
                "evicted": self.evicted // self.block_size, "batches": self.batches,
                "tree": type(getattr(self.cache, "tree_core", self.cache)).__name__,
                "stubs_called": sorted(stubs.CALLED)}


if __name__ == "__main__":
    SglangEngine(sys.argv[1]).serve()
