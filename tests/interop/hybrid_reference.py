"""What can an engine reuse of a prompt, by its published events alone? The slow, plain twin of the indexer's answer.

Copies are counted per (group, name). A name is the engine's hash of all tokens up to the end of a block, equal in all
groups for equal ends, so that a side block is found by the name that the main class has at its end. Where no block of the
main class ends (a smaller side block), the place of a name is taken from the event that stored it:

  * names for every block of the event's tokens: one after the other behind the parent;
  * fewer, of a recurrent state: it ends where the tokens end, as a chunk of prefill does;
  * fewer, of a window (masked or dropped blocks): kept runs are dense and end at aligned boundaries, where the main class
    has the same name, or one block behind where hits drop a block. So names are counted backwards from the next one that
    the main class has, and a name behind such one is the block behind it. Others stay unplaced: they count as absent.

`Lookup` is `HybridKVCacheCoordinator.find_longest_cache_hit` with a set of names for a block pool: candidates only
shrink, each class says the longest length up to the candidate that it accepts, until none shrinks it.
"""

import math
import struct
from collections import Counter, defaultdict

FULL = ("full_attention", "mla_attention", "sink_full_attention")
WINDOW = ("sliding_window", "sliding_window_mla")


def unpack(data):
    """The value of a MessagePack message."""
    at = 0

    def take(form):
        nonlocal at
        value, = struct.unpack_from(">" + form, data, at)
        at += struct.calcsize(form)
        return value

    def raw(size):
        nonlocal at
        at += size
        return bytes(data[at - size:at])

    def value():
        tag = take("B")
        if tag < 0x80 or tag >= 0xe0:
            return tag if tag < 0x80 else tag - 256
        if tag < 0x90:
            return {value(): value() for _ in range(tag & 15)}
        if tag < 0xa0:
            return [value() for _ in range(tag & 15)]
        if tag < 0xc0:
            return raw(tag & 31).decode()
        if tag in (0xc0, 0xc2, 0xc3):
            return {0xc0: None, 0xc2: False, 0xc3: True}[tag]
        if 0xc4 <= tag <= 0xc6:
            return raw(take("BHI"[tag - 0xc4]))
        if tag in (0xca, 0xcb):
            return take("fd"[tag - 0xca])
        if 0xcc <= tag <= 0xd3:
            return take("BHIQbhiq"[tag - 0xcc])
        if 0xd9 <= tag <= 0xdb:
            return raw(take("BHI"[tag - 0xd9])).decode()
        if tag in (0xdc, 0xdd):
            return [value() for _ in range(take("HI"[tag - 0xdc]))]
        if tag in (0xde, 0xdf):
            return {value(): value() for _ in range(take("HI"[tag - 0xde]))}
        raise ValueError(f"MessagePack tag {tag:#x}")

    return value()


class Group:
    def __init__(self, event, number, registered):
        self.kind = event["kv_cache_spec_kind"]
        self.window = event.get("kv_cache_spec_sliding_window") or 0
        self.chunk = registered["chunks"].get(number, 0)
        self.eagle = registered["eagle"] and (number in registered["eagle_groups"] or not registered["eagle_groups"])
        self.block = 0

    @property
    def cls(self):
        return self.kind, self.block, self.window, self.chunk


class HybridReference:
    def __init__(self, eagle=False, eagle_groups=(), chunks=None, unit=None):
        """What events do not say: whether hits drop a block, which groups hold draft layers (none: all drop), chunk
        sizes by group, and the tokens of a hash where it is finer than all groups' blocks."""
        self.registered = {"eagle": eagle, "eagle_groups": set(eagle_groups), "chunks": chunks or {}}
        self.unit = unit
        self.groups = {}
        self.copies = Counter()
        self.names = {}  # (name before, tokens between and looked at behind, adapter or salt) -> name
        self.spans = set()
        self.lookahead = 0  # tokens behind a block that its name covers
        self.place = {None: 0}  # tokens up to the end of a name's block
        self.mains = {}  # those of the main class
        self.facts = Counter()

    # ---- Events ----
    def hear(self, payload):
        events = unpack(payload)[1]
        stores = [event for event in events if event["type"] == "BlockStored" and event.get("medium") in (None, "GPU")]
        for event in stores:
            number = event.get("group_idx") or 0
            group = self.groups.setdefault(number, Group(event, number, self.registered))
            # A part of a block, by a hash finer than it, may come before any whole one.
            group.block = max(group.block, event["block_size"])
        # Groups come in any order; what names mean is said by the main class, which is never masked.
        for event in sorted(stores, key=lambda event: event.get("kv_cache_spec_kind") not in FULL):
            self.learn(event)
        for event in events:
            number = event.get("group_idx") or 0
            if event["type"] == "AllBlocksCleared":
                self.copies.clear()
            elif event.get("medium") in (None, "GPU"):
                for name in event["block_hashes"]:
                    count = self.copies[number, name]
                    self.copies[number, name] = count + 1 if event["type"] == "BlockStored" else max(count - 1, 0)

    def learn(self, event):
        """Places the names of a stored event."""
        names, tokens, size = event["block_hashes"], event["token_ids"], event["block_size"]
        parent, group = event.get("parent_block_hash"), self.groups[event.get("group_idx") or 0]
        start = self.place.get(parent)
        ends = [None] * len(names)
        if len(names) * size == len(tokens):
            ends = [(i + 1) * size for i in range(len(names))]
        elif group.kind == "mamba":
            ends[-1:] = [len(tokens)] if names else []
        elif start is not None:
            ends = self.sparse(group, start, names, size)
        dense = len(names) * size == len(tokens)
        for i, (name, end) in enumerate(zip(names, ends)):
            if end is None:
                self.facts["unplaced"] += 1
                continue
            begin = i * size if dense else 0
            behind = (event.get("lookahead_token_ids") or [()] * len(names))[i]
            self.lookahead = len(behind)
            content = (*tokens[begin:end], *behind)
            self.names[parent, content, self.extra(event, parent, ends[0] == size)] = name
            self.spans.add(end - begin)
            if start is not None:
                self.place[name] = start + end
                if group.kind in FULL:
                    self.mains[name] = start + end
            if dense:
                parent = name

    def sparse(self, group, start, names, size):
        """Where the blocks of a masked window end, counted from `start`; None where that is not certain."""
        ends = [self.mains[name] - start if name in self.mains else None for name in names]
        twins = [i for i, end in enumerate(ends) if end is not None and not (start + end) % self.aligned]
        if not twins:
            return ends
        inner = -(-(group.window - 1) // size) - 1  # of a run, before its boundary
        for before, twin in zip([-1] + twins, twins):
            first = before + 1
            if group.eagle and before >= 0 and first < twin:
                ends[first] = ends[before] + size
                first += 1
            elif group.eagle and before < 0 and start % self.aligned == 0 and twin != inner:
                if twin != inner + 1:
                    continue
                ends[0] = size  # behind the boundary at which the tokens start
                first = 1
            for i in range(twin - 1, first - 1, -1):
                ends[i] = ends[i + 1] - size
        if group.eagle and twins[-1] + 1 < len(names):
            ends[twins[-1] + 1] = ends[twins[-1]] + size
        return ends

    @property
    def aligned(self):
        return math.lcm(*(group.block for group in self.groups.values()))

    @staticmethod
    def extra(event, parent, first_known):
        keys = event.get("extra_keys")
        lora = (event["lora_name"],) if event.get("lora_name") else ()
        if parent is not None:
            return lora
        return tuple(keys[0] or ()) if keys and first_known else lora

    # ---- Questions ----
    def names_of(self, tokens, lora, salt):
        """{tokens up to the end of a block: its name}, as far as is known."""
        at = {0: None}
        spans = sorted(self.spans)
        common = (lora,) if lora else ()
        for start in range(len(tokens)):
            if start in at:
                extra = common if start else common + ((salt,) if salt else ())
                for span in spans:
                    if start + span + self.lookahead > len(tokens):
                        break
                    name = self.names.get((at[start], tuple(tokens[start:start + span + self.lookahead]), extra))
                    if name is not None:
                        at[start + span] = name
        return at

    def answer(self, tokens, lora=None, salt=None):
        """(blocks that can be reused, blocks of the main class) if more tokens followed."""
        classes = defaultdict(list)
        for number, group in self.groups.items():
            classes[group.cls].append(number)
        order = sorted(classes, key=lambda c: (c[0] not in FULL, min(classes[c])))
        if not order:
            return 0, 0
        at = self.names_of(tokens, lora, salt)
        main = order[0]

        def held(cls, end):
            return end in at and all(self.copies[number, at[end]] > 0 for number in classes[cls])

        depth = 0
        while held(main, (depth + 1) * main[1]):
            depth += 1
        unit = self.unit or math.gcd(*(cls[1] for cls in order))
        lookup = Lookup(order, {c: any(self.groups[n].eagle for n in classes[c]) for c in order}, unit, held)
        return lookup.longest(len(tokens)) // main[1], depth


class Lookup:
    """The engine's search, over `held(class, end)`."""

    def __init__(self, order, eagle, unit, held):
        self.order, self.eagle, self.unit, self.held = order, eagle, unit, held
        self.align = math.lcm(*(cls[1] for cls in order))
        # Hits inside a block: only beside a state whose block is larger than a hash, and if all others can follow.
        if any(c[0] == "mamba" and c[1] > unit for c in order) and all(
                c[0] == "mamba" or c[0] in FULL or c[1] == unit for c in order):
            self.align = unit

    def longest(self, tokens):
        if len(self.order) == 1:
            return self.accept(self.order[0], tokens, self.eagle[self.order[0]])
        hashed = (tokens + 1) // self.unit * self.unit
        candidate, verified, fixed = tokens, set(), {}
        while True:
            length = candidate
            for cls in self.order:
                if cls in fixed:
                    length = min(length, fixed[cls])
                    continue
                drop = self.eagle[cls] and cls not in verified
                limit = length
                if drop and cls[0] != "mamba":
                    fine = self.align == self.unit and cls[0] in FULL and cls[1] > self.unit
                    limit = min(length + (self.unit if fine else cls[1]), hashed)
                found = self.accept(cls, limit, drop)
                if drop:
                    verified.add(cls)
                elif found < length:
                    verified.clear()
                length = found
                if cls[0] in FULL:
                    fixed[cls] = found
            # The engine stops after one round beside one other class; a second would change nothing but for speculation.
            if length >= candidate or (len(self.order) == 2 and self.order[0][0] in FULL):
                return min(length, candidate)
            candidate = length

    def accept(self, cls, limit, drop):
        """The longest length up to `limit` that a class accepts."""
        kind, size, window, chunk = cls
        if kind in FULL:
            return self.full(cls, limit, drop)
        if kind in WINDOW:
            return self.window(cls, limit, drop)
        if kind == "mamba":
            step = self.unit if self.align < size else size
            for end in range(limit // step * step, 0, -step):
                if end % self.align == 0 and self.held(cls, end):
                    return end
            return 0
        if not chunk:  # chunk size unknown: all blocks from the start
            return self.full(cls, limit, False)
        blocks = limit // chunk * chunk // size
        while (blocks + 1) * size <= limit and self.held(cls, (blocks + 1) * size):
            blocks += 1
        return blocks * size

    def full(self, cls, limit, drop):
        size, length = cls[1], 0
        while length + size <= limit and self.held(cls, length + size):
            length += size
        if self.align < size:
            inner = range(min(length + size - self.unit, limit // self.unit * self.unit), length, -self.unit)
            length = next((end for end in inner if self.held(cls, end)), length)
        if drop and length:
            length -= min(self.align, size)
        return length - length % self.align

    def window(self, cls, limit, drop):
        _, size, window, _ = cls
        need = -(-(window - 1) // size) + drop
        run, found = 0, None
        for i in range(limit // size - 1, -1, -1):
            if not self.held(cls, (i + 1) * size):
                run = 0
                continue
            if run == 0 and (i + 1 - drop) * size % self.align:
                continue
            run += 1
            if run >= need:
                found = i + run
                break
        blocks = run if found is None else found
        if found is None:
            blocks -= blocks % (self.align // size)
        if drop and blocks:
            blocks -= 1
            blocks -= blocks % (self.align // size)
        return blocks * size
