"""The page's files from the source tree, over a fleet that is made up: for tests of drawing, and for screenshots.

    python3 fake_server.py [CELLS [WORKERS]]      serves until it is ended; says its address
"""

import http.server
import json
import math
import os
import random
import sys
import threading
import time
import urllib.parse

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../indexer/ui/page")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# As indexer/ui/ui_http.cc sends it: what it forbids must not be needed.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REGIONS = ["eu-west", "us-east", "ap-south", "us-west"]
TILES_MAX = 2048


def _worker(name, draw):
    used = draw.randrange(200, 3900)
    silent = draw.random() < 0.015
    return [name, 0, "degraded" if draw.random() < 0.02 else "exact", silent, not silent,
            draw.randrange(10000, 60000) if silent else draw.randrange(5, 2500),
            draw.randrange(2000, 90000), used, 4096 - used, draw.randrange(0, 24), draw.choice([0, 0, 0, 1, 3])]


def _cell(i, cells, workers, draw):
    region = REGIONS[i * len(REGIONS) // cells] if cells > 4 else ""
    state = "exact"
    if cells > 1:
        state = draw.choices(["exact", "degraded", "stale", "unreachable"], [0.965, 0.015, 0.01, 0.01])[0]
    tiles = [_worker("w%d" % w, draw) for w in range(workers)]
    return {"name": "%s/cell-%d" % (region, i) if region else "cell-%s" % "abcd"[i % 4], "region": region, "state": state,
            "age_ms": draw.randrange(3, 900) if state == "exact" else draw.randrange(4000, 90000),
            "seen_ms": draw.randrange(50, 2000), "address": "10.0.%d.%d:7410" % (i // 256, i % 256), "replicas": 2,
            "version": "0.1.0", "workers": workers, "workers_silent": sum(tile[3] for tile in tiles),
            "used_blocks": sum(tile[7] for tile in tiles), "free_blocks": sum(tile[8] for tile in tiles),
            "running": sum(tile[9] for tile in tiles), "waiting": sum(tile[10] for tile in tiles),
            "blocks": sum(tile[6] for tile in tiles), "tiles": tiles}


def _streams(cells):
    found = []
    for cell in cells:
        for tile in cell["tiles"]:
            found.append({"from": tile[0], "to": cell["name"], "domain": "llama-70b", "trust": tile[2], "masked": tile[3],
                          "state": "silent" if tile[3] else "connected", "reason": "", "age_ms": tile[5],
                          "lag_ms": 0.4 + tile[5] % 7, "behind": 0, "gaps": 2 if tile[2] == "degraded" else 0,
                          "snapshots": 1 if tile[2] == "degraded" else 0, "digests_different": 0, "refusals": 0, "lost": 0})
    found.sort(key=lambda s: (not s["masked"], s["trust"] == "exact", -s["age_ms"]))
    return found


def make_fleet(cells, workers, seed=1):
    """A fleet.json of so many cells, as a frontend would tell of it."""
    draw = random.Random(seed)
    all_cells = [_cell(i, cells, workers, draw) for i in range(cells)]
    streams = _streams(all_cells)
    unwell = sorted((c for c in all_cells if c["state"] != "exact"), key=lambda c: -c["age_ms"])
    silent = [(t[0], c["name"], t[5]) for c in all_cells for t in c["tiles"] if t[3]]
    points = ["cell %s %d s %s" % (c["name"], c["age_ms"] // 1000, c["state"]) for c in unwell]
    points += ["worker %s of cell %s silent for %d s" % (w, c, age // 1000) for w, c, age in silent]
    text = "%d of %d cells exact" % (cells - len(unwell), cells) if unwell else "all %d cells exact" % cells
    text += "".join("; " + point for point in points[:2])
    if len(points) > 2:
        text += "; %d more" % (len(points) - 2)
    if not points:
        text += ", %d workers heard" % (cells * workers)
    total = lambda key: sum(c[key] for c in all_cells)
    fleet = {"program": "kvatlas-frontend", "kind": "frontend", "name": "10.0.0.9:7430", "version": "0.1.0", "fresh": True,
             "now_ms": int(time.time() * 1000), "verdict": {"level": "warning" if points else "good", "text": text, "points": points[:32]},
             "versions": [{"version": "0.1.0", "processes": cells + 2}], "cells": all_cells,
             "totals": {"cells": cells, "cells_exact": cells - len(unwell), "workers": cells * workers, "workers_silent": len(silent),
                        "blocks": total("blocks"), "used_blocks": total("used_blocks"), "free_blocks": total("free_blocks"),
                        "running": total("running"), "waiting": total("waiting")},
             "streams": streams[:64], "streams_total": len(streams), "models": ["llama-70b", "qwen3-32b"],
             "peers": [{"kind": "hierarchy", "name": "top", "address": "10.0.0.8:7420", "state": "fresh", "age_ms": 400, "error": "", "version": "0.1.0"}]
             + [{"kind": "leaf", "name": c["name"], "address": c["address"], "error": "", "version": "0.1.0", "age_ms": c["seen_ms"],
                 "state": "unreachable" if c["state"] == "unreachable" else "fresh"} for c in all_cells][:63],
             "peers_total": cells + 1, "decisions": True, "explain": True,
             "findings": [] if cells < 3 else [{
                 "cause": "chat_template", "meaning": "the engine renders chats with another template than the frontend",
                 "remedy": "Give the frontend the chat template that the engine was started with.", "confidence": 0.83,
                 "cell": all_cells[1]["name"], "worker": "w1", "evidence": ["14 of 16 chats had 3 tokens more at the engine"]}]}
    if cells * workers > TILES_MAX:
        fleet["cells"] = [{k: v for k, v in c.items() if k != "tiles"} for c in all_cells]
    return fleet, all_cells


CHARTS = [
    ("routes", "Routes", "1/s", True, [("none", "direct"), ("last_good_cells", "last good cells"), ("own_cell", "own cell"),
                                       ("load_only", "load only"), ("failed", "failed")]),
    ("hits", "Blocks from cache", "share", False, [("hit_chosen", "at the chosen worker"), ("hit_best", "best available")]),
    ("latency", "Time to route", "ms", False, [("p50", "p50"), ("p99", "p99")]),
    ("flight", "In flight", "", False, [("in_flight", "choices"), ("waiting", "waiting for a worker")]),
]


def make_series(seed=1):
    draw = random.Random(seed)
    now = int(time.time())
    times = [(now - 900 + i) * 1000 for i in range(900)]
    values = {key: [] for *_, series in CHARTS for key, _ in series}
    for i in range(900):
        base = 620 + 180 * math.sin(i / 130) + draw.gauss(0, 18)
        trouble = 520 <= i < 575
        values["none"].append(round(base * (0.35 if trouble else 1), 1))
        values["last_good_cells"].append(round(base * 0.6, 1) if trouble else 0)
        values["own_cell"].append(0)
        values["load_only"].append(round(base * 0.04, 1) if trouble else 0)
        values["failed"].append(0)
        best = 0.78 + 0.05 * math.sin(i / 200) + draw.gauss(0, 0.012)
        values["hit_best"].append(round(best, 4))
        values["hit_chosen"].append(round(best - 0.025 - (0.16 if trouble else 0) + draw.gauss(0, 0.008), 4))
        values["p50"].append(round(0.62 + draw.gauss(0, 0.03) + (0.5 if trouble else 0), 3))
        values["p99"].append(round(2.1 + abs(draw.gauss(0, 0.35)) + (6 if trouble else 0), 3))
        values["in_flight"].append(int(210 + 70 * math.sin(i / 130) + draw.gauss(0, 8)))
        values["waiting"].append(0)
    charts = [{"id": i, "title": t, "unit": u, "about": t, "stacked": s, "series": [{"key": k, "label": l} for k, l in series]}
              for i, t, u, s, series in CHARTS]
    return {"every_ms": 1000, "points": 900, "charts": charts, "t": times, "values": values}


def make_decisions(cells, count, seed=1):
    draw = random.Random(seed)
    found = []
    for i in range(count):
        blocks = draw.randrange(20, 400)
        candidates = []
        for k in range(8):
            cell = draw.choice(cells)
            overlap = draw.randrange(0, blocks) if k else int(blocks * draw.uniform(0.5, 1))
            terms = {"prefill_cost": 1.25 * (blocks - overlap), "queue_cost": draw.expovariate(1 / 25), "decode_cost": 1.5 * draw.randrange(0, 20),
                     "memory_cost": draw.choice([0, 0, 0, 12]), "distance_cost": draw.choice([0, 0, 8]), "fetch_cost": draw.choice([0, 3, 0]),
                     "session_cost": draw.choice([0, 8]), "siblings_cost": 0,
                     "crowding_cost": 0, "transfer_cost": 0}
            candidates.append({"worker": draw.choice(cell["tiles"])[0], "rank": 0, "cell": cell["name"], "overlap_blocks": overlap,
                               "trust": "exact", "age_ms": 4, "cost": sum(terms.values()), **terms})
        candidates.sort(key=lambda c: c["cost"])
        best = candidates[0]
        decision = {"decision_id": str(9007199254740993 - i), "age_s": i * 0.41 + 0.1, "model": "llama-70b", "tenant": "", "worker": best["worker"],
                    "rank": 0, "cell": best["cell"], "overlap_blocks": best["overlap_blocks"], "predicted_tokens": best["overlap_blocks"] * 16,
                    "receipt": {"fallback": "none", "reason": "", "blocks": blocks, "candidates": candidates, "candidates_considered": 31,
                                "total_us": draw.randrange(380, 2600)}}
        if i % 3 == 0:
            decision["report"] = {"cached_tokens": best["overlap_blocks"] * 16}
        if i == 5:
            decision["receipt"].update(fallback="last_good_cells", reason="hierarchy 10.0.0.8:7420: late")
        found.append(decision)
    return {"decisions": found}


def make_explanation(cells):
    shapes = ["d" * 96, "d" * 64 + "h" * 22 + "." * 10, "d" * 40 + "." * 8 + "d" * 24 + "." * 24, "d" * 22 + "k" * 12 + "." * 62, "x" * 16 + "." * 80]
    return {"model": "llama-70b", "tokens": 1923, "block_size": 16, "blocks": 120, "diverges_at": 96,
            "workers": [{"cell": cells[i % len(cells)]["name"], "worker": "w%d" % i, "rank": 0, "tiers": s + "." * 24,
                         "overlap": len(s.split(".")[0])} for i, s in enumerate(shapes)]}


class FakeServer:
    """Serves on a free port of loopback until the `with` block ends; `fleet` may be changed meanwhile."""

    def __init__(self, cells=4, workers=8, seed=1):
        self.fleet, self.cells = make_fleet(cells, workers, seed)
        self.series = make_series()
        self.decisions = make_decisions(self.cells, 24)
        self.gone = False  # no request is answered any more

    def answer(self, path, query):
        if path == "/ui/fleet.json":
            if query.startswith("cell="):
                name = urllib.parse.unquote(query[5:])
                return {"now_ms": 0, "cells": [c for c in self.cells if c["name"] == name]}
            self.fleet["now_ms"] = int(time.time() * 1000)
            return self.fleet
        if path == "/ui/series.json":
            if not query.endswith("since=0"):
                return dict(self.series, t=[], values={key: [] for key in self.series["values"]})
            return self.series
        if path == "/decisions":
            return self.decisions
        if path == "/ui/explain":
            return make_explanation(self.cells)
        return None

    def __enter__(self):
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                if server.gone:
                    self.close_connection = True
                    return
                path, _, query = self.path.partition("?")
                data = server.answer(path, query)
                if data is not None:
                    return self.say(200, "application/json", json.dumps(data).encode())
                name = path.removeprefix("/ui/").removeprefix("dev/") or "index.html"
                file = os.path.join(PAGE, name)
                if not os.path.isfile(file):
                    return self.say(404, "text/plain", b"none")
                with open(file, "rb") as page:
                    body = page.read()
                if name == "index.html":
                    body = body.replace(b"{{version}}", b"dev")
                self.say(200, TYPES.get(os.path.splitext(name)[1], "text/plain"), body)

            def do_POST(self):
                self.rfile.read(int(self.headers.get("content-length", 0)))
                self.do_GET()

            def say(self, status, kind, body):
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.send_header("content-security-policy", POLICY)
                self.end_headers()
                try:
                    self.wfile.write(body)
                except BrokenPipeError:
                    pass  # the page was left

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = "http://127.0.0.1:%d/ui/" % self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.gone = True
        self.http.shutdown()
        self.http.server_close()


if __name__ == "__main__":
    with FakeServer(*map(int, sys.argv[1:3])) as fake:
        print(fake.url, flush=True)
        threading.Event().wait()
