"""What do runs of several structures on several inputs say together? Records in, one table out.

A record is one JSON object of index_bench or of peers, with three fields more: `input`, `structure` and `failed`
(null, or why there are no figures). Several records of a structure, mode and input are the rounds of one
comparison: a column shows the best of them, block ops also the median and the worst. What was not measured is a
dash, never a number.
"""

import statistics

DASH = "–"

# Below this share of a core a run on one thread was disturbed.
CPU_SHARE_MIN = 0.9


def value(record, name):
    """A field by its dotted name, whether it is nested or spelled with the dot; None where it is missing."""
    if name in record:
        return record[name]
    for part in name.split("."):
        if not isinstance(record, dict) or part not in record:
            return None
        record = record[part]
    return record


class Cell:
    """A column of the rounds of one mode: the field, what 1 stands for, and which way is better."""

    def __init__(self, mode, field, title, unit=1.0, digits=1, larger=False, pick=None):
        self.mode, self.field, self.title = mode, field, title
        self.unit, self.digits, self.larger = unit, digits, larger
        self.pick = pick or (max if larger else min)

    def of(self, rounds):
        """The figure over all rounds of this mode, or None."""
        values = [value(r, self.field) for r in rounds if r["mode"] == self.mode and not r["failed"]]
        values = [v for v in values if v is not None]
        return self.pick(values) if values else None

    def text(self, rounds):
        figure = self.of(rounds)
        return DASH if figure is None else f"{figure / self.unit:.{self.digits}f}"


RATE = "block_ops_per_s"
# Cold: the whole stream, from an empty structure on.
BEST = Cell("seq", RATE, "cold Mops/s best", 1e6, larger=True)
MEDIAN = Cell("seq", RATE, "median", 1e6, larger=True, pick=statistics.median)
# Of every operation its fastest time in any warm repetition of a process: what a busy machine hides.
CALM = Cell("seq", "undisturbed.block_ops_per_s", "undisturbed", 1e6, larger=True)
CALM_P99 = Cell("seq", "undisturbed.query_ns.p99", "p99 undisturbed", digits=0)
# Steady: the second half of the stream, in the same passes.
STEADY = Cell("seq", "steady." + RATE, "steady Mops/s best", 1e6, larger=True)
STEADY_MEDIAN = Cell("seq", "steady." + RATE, "median", 1e6, larger=True, pick=statistics.median)
STEADY_CALM = Cell("seq", "steady.undisturbed." + RATE, "undisturbed", 1e6, larger=True)
STEADY_STORED = Cell("seq", "steady.ns_per_stored_block", "ns/stored")
STEADY_REMOVED = Cell("seq", "steady.ns_per_removed_block", "ns/removed")
STEADY_P50 = Cell("seq", "steady.query_ns.p50", "query p50 ns", digits=0)
STEADY_P99 = Cell("seq", "steady.query_ns.p99", "p99 ns", digits=0)
STORED = Cell("seq", "ns_per_stored_block", "ns/stored")
REMOVED = Cell("seq", "ns_per_removed_block", "ns/removed")
P50 = Cell("seq", "query_ns.p50", "query p50 ns", digits=0)
P99 = Cell("seq", "query_ns.p99", "p99 ns", digits=0)
HOLDING = Cell("mem", "bytes_per_holding", "B/holding")
DISTINCT = Cell("mem", "bytes_per_block", "B/distinct")
EVENTS = Cell("closed", "event_block_ops_per_s", "events Mops/s", 1e6, larger=True)
QUERIES = Cell("closed", "query_block_ops_per_s", "queries Mops/s", 1e6, larger=True)

SINGLE = [
    BEST,
    MEDIAN,
    Cell("seq", RATE, "worst", 1e6, larger=True, pick=min),
    CALM,
    STORED,
    REMOVED,
    P50,
    P99,
    Cell("seq", "query_ns.p999", "p99.9 ns", digits=0),
    CALM_P99,
    STEADY,
    STEADY_MEDIAN,
    Cell("seq", "steady." + RATE, "worst", 1e6, larger=True, pick=min),
    STEADY_CALM,
    STEADY_STORED,
    STEADY_REMOVED,
    STEADY_P50,
    STEADY_P99,
    HOLDING,
    DISTINCT,
]
CLOSED = [
    EVENTS,
    Cell("closed", "event_block_ops_per_s", "median", 1e6, larger=True, pick=statistics.median),
    QUERIES,
    Cell("closed", "query_block_ops_per_s", "median", 1e6, larger=True, pick=statistics.median),
    Cell("closed", "query_ns.p50", "query p50 ns", digits=0),
    Cell("closed", "query_ns.p99", "p99 ns", digits=0),
]
# What the last table sets against the best peer, column by column.
COMPARED = [
    (BEST, "cold"), (MEDIAN, "median"), (CALM, "undisturbed"), (STORED, "stored"), (REMOVED, "removed"),
    (P50, "query p50"), (P99, "p99"), (CALM_P99, "p99 undisturbed"), (STEADY, "steady"), (STEADY_MEDIAN, "median"),
    (STEADY_CALM, "undisturbed"), (STEADY_STORED, "stored"), (STEADY_REMOVED, "removed"), (STEADY_P50, "query p50"),
    (STEADY_P99, "p99"), (HOLDING, "B/holding"), (DISTINCT, "B/distinct"), (EVENTS, "closed events"),
    (QUERIES, "closed queries"),
]


# What is told of a structure that is measured with a sink for changes, as a share of the speed without.
WITH_CHANGES = [
    (BEST, "cold"), (MEDIAN, "median"), (CALM, "undisturbed"), (STORED, "stored"), (REMOVED, "removed"),
    (STEADY, "steady"), (STEADY_MEDIAN, "median"), (STEADY_CALM, "undisturbed"), (STEADY_STORED, "stored"),
    (STEADY_REMOVED, "removed"),
]


def ratio(cell, ours, theirs):
    """How many times better ours is; above 1 we are ahead. None where either is missing or nothing."""
    if ours is None or theirs is None or ours <= 0 or theirs <= 0:
        return None
    return ours / theirs if cell.larger else theirs / ours


def best_of(cell, rounds_of):
    """(name, figure) of the best of several structures in a column, given as name: rounds; None if none has it."""
    figures = [(cell.of(rounds), name) for name, rounds in rounds_of.items()]
    figures = [(figure, name) for figure, name in figures if figure is not None]
    if not figures:
        return None
    figure, name = (max if cell.larger else min)(figures)
    return name, figure


def after_clear(rounds):
    """Memory kept after clearing every worker, of that before."""
    for record in rounds:
        kept, built = value(record, "bytes_after_clear"), value(record, "bytes_built")
        if record["mode"] == "mem" and not record["failed"] and kept is not None and built:
            return f"{max(0.0, kept) / 1e6:.1f} of {built / 1e6:.0f} MB"
    return DASH


def exactness(rounds):
    """Over- and under-counted pairs of those that were checked."""
    for record in rounds:
        checked = value(record, "checked")
        if not record["failed"] and checked:
            return f"{value(record, 'over')}/{value(record, 'under')} of {checked}"
    return DASH


def failures(rounds):
    """Why modes have no figures, each reason once."""
    told = {}
    for record in rounds:
        if record["failed"]:
            told.setdefault(record["failed"], record["mode"])
    return "; ".join(f"{mode}: {reason}" for reason, mode in told.items())


def disturbed(rounds):
    """What to say of runs on one thread that had to share their core; nothing where none had."""
    shares = [r["cpu_share"] for r in rounds if r["mode"] == "seq" and not r["failed"] and "cpu_share" in r]
    low = [share for share in shares if share < CPU_SHARE_MIN]
    return f"{len(low)} of {len(shares)} runs got less than a core, down to {min(low):.0%}" if low else ""


def rows(lines):
    """Markdown, padded so that it can be read as it is; the first line is the head."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    pad = lambda text, i: text.ljust(widths[i]) if i == 0 else text.rjust(widths[i])
    out = ["| " + " | ".join(pad(text, i) for i, text in enumerate(line)) + " |" for line in lines]
    rule = ["-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return [out[0], "| " + " | ".join(rule) + " |", *out[1:]]


class Comparison:
    """All records. `ours` are our structures, `peers` those of others; the rest does nothing and is shown only."""

    def __init__(self, records, ours, peers):
        self.ours, self.peers = ours, peers
        self.by = {}
        for record in records:
            structures = self.by.setdefault(record["input"], {})
            structures.setdefault(record["structure"], []).append(record)

    def single_table(self, structures):
        lines = [["structure"] + [c.title for c in SINGLE] + ["after clear", "over/under"]]
        for name, rounds in structures.items():
            lines.append([name] + [c.text(rounds) for c in SINGLE] + [after_clear(rounds), exactness(rounds)])
        return rows(lines)

    def closed_table(self, structures):
        lines = [["1 event + 1 query thread"] + [c.title for c in CLOSED]]
        for name, rounds in structures.items():
            if EVENTS.of(rounds) is not None:
                lines.append([name] + [c.text(rounds) for c in CLOSED])
        return rows(lines) if len(lines) > 1 else []

    def ratio_table(self, mine):
        lines = [[mine] + [title for _, title in COMPARED]]
        for name, structures in self.by.items():
            peers = {n: r for n, r in structures.items() if n in self.peers}
            line = [f"input {name}"]
            for cell, _ in COMPARED:
                best = best_of(cell, peers)
                times = best and ratio(cell, cell.of(structures.get(mine, [])), best[1])
                line.append(f"{times:.2f}× {best[0]}" if times else DASH)
            lines.append(line)
        return rows(lines)

    def change_table(self):
        """What a leaf pays for changes: each NAME+SINK against NAME."""
        lines = [["with changes, to without"] + [title for _, title in WITH_CHANGES]]
        for name, structures in self.by.items():
            for structure in (s for s in structures if s in self.ours and "+" in s):
                without = structures.get(structure.partition("+")[0], [])
                times = [ratio(cell, cell.of(structures[structure]), cell.of(without)) for cell, _ in WITH_CHANGES]
                lines.append([f"{name} {structure}"] + [f"{t:.2f}" if t else DASH for t in times])
        return rows(lines) if len(lines) > 1 else []

    def text(self):
        out = []
        for name, structures in self.by.items():
            out += [f"**Input {name}**", "", *self.single_table(structures), ""]
            closed = self.closed_table(structures)
            out += closed + [""] if closed else []
            notes = [f"- {n}: {note}" for n, rounds in structures.items()
                     for note in (failures(rounds), disturbed(rounds)) if note]
            out += notes + [""] if notes else []
        changes = self.change_table()
        out += changes + [""] if changes else []
        measured = {name for structures in self.by.values() for name in structures}
        if not measured.intersection(self.peers):
            return "\n".join(out)
        for mine in self.ours:
            if mine in measured:
                out += [f"**{mine} against the best peer of each column** (above 1: {mine} is ahead)", "",
                        *self.ratio_table(mine), ""]
        return "\n".join(out)


def service_columns(workload):
    """What is told of a service that takes in events."""
    rate, cpu = "blocks_per_s", "leaf_cpu_ns_per_block"
    return [
        Cell(workload, rate, "M block ops/s best", 1e6, digits=2, larger=True),
        Cell(workload, rate, "median", 1e6, digits=2, larger=True, pick=statistics.median),
        Cell(workload, rate, "worst", 1e6, digits=2, larger=True, pick=min),
        Cell(workload, cpu, "service's CPU ns/block op best", digits=0),
        Cell(workload, cpu, "median", digits=0, pick=statistics.median),
        Cell(workload, "client_cpu_ns_per_block", "client's", digits=0),
        Cell(workload, "rss_per_held_block", "RSS B/held block"),
    ]


def service_text(records, ours, theirs):
    """A table for every workload: each service, and how many times better ours is than theirs."""
    out = []
    for workload in dict.fromkeys(record["mode"] for record in records):
        columns = service_columns(workload)
        rounds_of = {}
        for record in records:
            if record["mode"] == workload:
                rounds_of.setdefault(record["structure"], []).append(record)
        lines = [[f"ingest, {workload}"] + [column.title for column in columns] + ["wrong"]]
        for name, rounds in rounds_of.items():
            done = [record for record in rounds if not record["failed"] and record.get("checked")]
            wrong = f"{sum(r['wrong'] for r in done)} of {sum(r['checked'] for r in done)}" if done else DASH
            lines.append([name] + [column.text(rounds) for column in columns] + [wrong])
        if ours in rounds_of and theirs in rounds_of:
            times = [ratio(column, column.of(rounds_of[ours]), column.of(rounds_of[theirs])) for column in columns]
            lines.append([f"{ours}, times better"] + [f"{t:.2f}×" if t else DASH for t in times] + [""])
        notes = [f"- {name}: {failures(rounds)}" for name, rounds in rounds_of.items() if failures(rounds)]
        out += rows(lines) + [""] + (notes + [""] if notes else [])
    return "\n".join(out)
