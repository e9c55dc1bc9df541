"""SGLang's hybrid models without a GPU: memory pools whose slots are numbers, and events about components.

The tree, its components for sliding windows and recurrent states, what they keep, free and match are SGLang's. The pools
stand in: `window_slots` for `SWATokenToKVPoolAllocator`, `state_rows` for what `HybridReqToTokenPool` allocates (its
handling of a request's states is inherited).

SGLang 0.5.23 publishes nothing of windows and states: it stores and removes pages of full attention alone. How it would
tell more is proposed in three forms, which `Components` publishes by comparing the tree with what was said before:

    "snapshot"  a store's `component_types` are all components that each of its pages has now; a removal is of all
    "tuple"     the same as arrays, the list in the eighth place
    "one"       an event is about the one component in `component_type`, removals too; that of a state names the last
                page of its node, with that page's tokens and without a parent
"""

from types import SimpleNamespace

LABELS = {"full": 1, "swa": 2, "mamba": 4}


def labels(mask):
    return [label for label, bit in LABELS.items() if mask & bit]


def window_slots(slots_class, torch, pages, window_pages, page_size):
    """Pages of full attention, and fewer of a window, of which a page of full attention has one or none."""
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator

    class WindowSlots(SWATokenToKVPoolAllocator):
        def __init__(self):
            self.device = "cpu"
            self.page_size = page_size
            self.full_attn_allocator = slots_class(torch, pages, page_size)
            self.swa_attn_allocator = slots_class(torch, window_pages, page_size)
            self._size_full = pages * page_size
            self._size_swa = window_pages * page_size
            self.window_page = {}

        def clear(self):
            self.full_attn_allocator.clear()
            self.swa_attn_allocator.clear()
            self.window_page.clear()

        def alloc(self, count):
            full = self.full_attn_allocator.alloc(count)
            self.set_full_to_swa_mapping(full, self.swa_attn_allocator.alloc(count))
            return full

        def _pages(self, indices):
            return sorted({int(i) // page_size for i in indices})

        def translate_swa_indices_for_transfer(self, full):
            return torch.tensor([self.window_page[int(i) // page_size] * page_size + int(i) % page_size for i in full],
                                dtype=torch.int64)

        def set_full_to_swa_mapping(self, full, window):
            for at in range(0, len(full), page_size):
                assert self.window_page.setdefault(int(full[at]) // page_size, int(window[at]) // page_size) == int(
                    window[at]) // page_size, "a page with two windows"

        def clear_full_to_swa_mapping(self, full):
            for page in self._pages(full):
                del self.window_page[page]

        def free_segment(self, indices, start_pos=0):
            self.free_swa_segment(indices)
            self.free_full_segment(indices)

        def free_full_segment(self, indices, start_pos=0):
            assert not any(page in self.window_page for page in self._pages(indices)), "its window would be lost"
            self.full_attn_allocator.free_segment(indices)

        def free_swa_segment(self, indices, start_pos=0):
            for page in self._pages(indices):
                if page in self.window_page:
                    self.swa_attn_allocator.free_segment([self.window_page.pop(page) * page_size])

    return WindowSlots()


class States:
    """Slots of recurrent states."""

    def __init__(self, torch, count):
        self.torch = torch
        self.count = count
        self.clear()

    def clear(self):
        self.free_slots = list(range(self.count, 0, -1))

    def available_size(self):
        return len(self.free_slots)

    schedulable_available_size = available_size

    def alloc(self, count):
        if count > len(self.free_slots):
            return None
        return self.torch.tensor([self.free_slots.pop() for _ in range(count)], dtype=self.torch.int64)

    def free(self, slots):
        slots = [int(slot) for slot in slots]
        assert not set(slots) & set(self.free_slots), "freed twice"
        self.free_slots += slots


def state_rows(torch, requests, tokens, states):
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

    class StateRows(HybridReqToTokenPool):
        def __init__(self):
            self.req_to_token = torch.zeros((requests, tokens), dtype=torch.int64)
            self.free_rows = list(range(requests))
            self.mamba_allocator = States(torch, states)
            self.enable_mamba_extra_buffer = True
            self.enable_mamba_extra_buffer_lazy = False
            # Without overlapping schedules: one state is tracked beside the running one.
            self.mamba_ping_pong_track_buffer_size = self.mamba_initial_tracking_slots = 1
            self.req_index_to_mamba_ping_pong_track_buffer_mapping = torch.zeros((requests, 1), dtype=torch.int64)

        def write(self, where, values):
            self.req_to_token[where] = values

        def hold(self, request):
            """A request's own state and the one that is tracked."""
            request.kv.mamba_pool_idx = self.mamba_allocator.alloc(1)[0]
            self._alloc_ping_pong_buffer(request)
            self.req_index_to_mamba_ping_pong_track_buffer_mapping[
                request.kv.req_pool_idx] = request.kv.mamba_ping_pong_track_buffer

    return StateRows()


def configure_states(grid):
    """What a server's arguments would say of states: the tokens between two that can be kept."""
    from sglang.srt.mem_cache.unified_cache.components import mamba

    mamba.mamba_cache_chunk_size = lambda: grid
    mamba.mamba_checkpoint_grid = lambda page: grid
    mamba.get_exec = lambda: SimpleNamespace(mamba=SimpleNamespace(
        mamba_max_states_per_path=-1, enable_mamba_extra_buffer_lazy=False))


class Held:
    """Of `ReqKvInfo`, what the cache reads."""

    def __init__(self, row, prefix):
        self.req_pool_idx = row
        self.cache_protected_len = self.cache_inserted_len = prefix
        self.swa_evict_floor = 0
        self.evicted = {}
        self.mamba_pool_idx = None
        self.mamba_last_track_seqlen = self.mamba_prev_track_seqlen = None

    @property
    def holds_kv(self):
        return True

    @property
    def holds_mamba(self):
        return self.mamba_pool_idx is not None

    def swa_dead_lo(self, page_size):
        return self.cache_protected_len

    def get_evicted_seqlen(self, component):
        return self.evicted.get(component, 0)

    def set_evicted_seqlen(self, component, length):
        self.evicted[component] = length


def _event_classes(arrays):
    """SGLang's events with the proposed fields: as maps, or as the arrays that it sent before."""
    import msgspec
    from sglang.srt.disaggregation import kv_events

    if arrays:
        class Stored(msgspec.Struct, tag="BlockStored", array_like=True):
            block_hashes: list
            parent_block_hash: int | None
            token_ids: list
            block_size: int
            lora_id: int | None = None
            medium: str | None = None
            component_types: list | None = None

        class Removed(msgspec.Struct, tag="BlockRemoved", array_like=True):
            block_hashes: list
            medium: str | None = None

        class Cleared(msgspec.Struct, tag="AllBlocksCleared", array_like=True):
            pass

        return Stored, Removed, Cleared

    class BlockStored(kv_events.BlockStored, tag="BlockStored"):
        component_types: list | None = None
        component_type: str | None = None

    class BlockRemoved(kv_events.BlockRemoved, tag="BlockRemoved"):
        component_type: str | None = None

    return BlockStored, BlockRemoved, kv_events.AllBlocksCleared


class Components:
    """The events of a tree with what they say of components; `form` is one of those above, or None: as SGLang 0.5.23."""

    def __init__(self, core, form):
        from sglang.srt.disaggregation import kv_events
        from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
        from sglang.srt.mem_cache.utils import hash_str_to_int64

        self.core = core
        self.form = form
        self.plain = kv_events
        self.types = ComponentType
        self.number = hash_str_to_int64
        self.stored, self.removed, self.cleared = _event_classes(form == "tuple")
        self.said = {}  # name of a page -> its components, as a consumer knows them
        self.events = []

    def collect(self):
        """What happened since the last call; call it after each change of the tree, and `take` what is to be published."""
        events = self.core.kv_events.take()
        if self.form is None:
            self.events += events
            return
        pages = self._pages()
        if self.form == "one":
            self._collect_one(events, pages)
        else:
            self._collect_snapshots(events, pages)

    def take(self):
        events, self.events = self.events, []
        return events

    def _pages(self):
        """Of every page in the tree: name -> (components, name before, tokens, node)."""
        recorder, size = self.core.kv_events, self.core.page_size
        found = {}
        waiting = list(self.core.root_node.children.values())
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            data = node.component_data
            if data[self.types.FULL].value is None:
                continue
            # As KVCacheEventRecorder.record_store.
            seed = recorder._namespace_seed(node)
            before = recorder._parent_block_hash(node)
            if before is not None:
                before = self.plain.namespaced_block_hash(before, namespace_seed=seed)
            values = recorder._node_event_hash_values(node)
            for i, value in enumerate(values):
                mask = 1
                if data[self.types.SWA].value is not None:
                    mask |= 2
                if data[self.types.MAMBA].value is not None and i == len(values) - 1:
                    mask |= 4
                raw = node.key.token_ids[i * size:(i + 1) * size + node.key.is_bigram]
                tokens = [tuple(raw[j:j + 2]) for j in range(size)] if node.key.is_bigram else list(raw)
                name = self.plain.namespaced_block_hash(self.number(value), namespace_seed=seed)
                found[name] = (mask, before, tokens, node)
                before = name
        return found

    def _store(self, names, pages, **more):
        mask, before, tokens, node = pages[names[0]]
        namespace = {} if self.form == "tuple" else {
            "cache_salt": node.key.cache_salt, "lora_name": self.core.kv_events.lora_names.get(node.key.extra_key)}
        return self.stored(block_hashes=list(names), parent_block_hash=before,
                           token_ids=[token for name in names for token in pages[name][2]], block_size=len(tokens),
                           lora_id=None, medium="GPU", **namespace, **more)

    def _runs(self, names, pages, same):
        """`names` in runs of pages that follow each other and are equal by `same`."""
        runs = []
        for name in names:
            if runs and pages[name][1] == runs[-1][-1] and same(name) == same(runs[-1][-1]):
                runs[-1].append(name)
            else:
                runs.append([name])
        return runs

    def _collect_snapshots(self, events, pages):
        fresh = {}
        for event in events:
            if isinstance(event, self.plain.BlockStored):
                for name in event.block_hashes:
                    self.said[name] = 0
                    fresh[name] = True
            elif isinstance(event, self.plain.BlockRemoved):
                for name in event.block_hashes:
                    self.said.pop(name, None)
                self.events.append(self.removed(block_hashes=event.block_hashes, medium="GPU"))
            else:
                self.said.clear()
                self.events.append(self.cleared())
        self.said = {name: mask for name, mask in self.said.items() if name in pages}
        changed = [name for name, page in pages.items() if self.said.get(name) != page[0]]
        for run in self._runs(changed, pages, lambda name: pages[name][0]):
            self.events.append(self._store(run, pages, component_types=labels(pages[run[0]][0])))
        self.said = {name: page[0] for name, page in pages.items()}

    def _collect_one(self, events, pages):
        for event in events:
            if isinstance(event, self.plain.BlockStored):
                fields = {name: getattr(event, name) for name in event.__struct_fields__}
                self.events.append(self.stored(**fields, component_type="full"))
            elif isinstance(event, self.plain.BlockRemoved):
                self.events.append(self.removed(block_hashes=event.block_hashes, medium="GPU", component_type="full"))
            else:
                self.said.clear()
                self.events.append(self.cleared())
        for label in ("swa", "mamba"):
            bit = LABELS[label]
            gone = [name for name, mask in self.said.items() if mask & bit and not pages.get(name, (0,))[0] & bit]
            if gone:
                self.events.append(self.removed(block_hashes=gone, medium="GPU", component_type=label))
            new = [name for name, page in pages.items() if page[0] & bit and not self.said.get(name, 0) & bit]
            runs = [[name] for name in new] if label == "mamba" else self._runs(new, pages, lambda name: 0)
            for run in runs:
                event = self._store(run, pages, component_type=label)
                if label == "mamba":
                    event.parent_block_hash = None
                self.events.append(event)
        self.said = {name: page[0] for name, page in pages.items()}
