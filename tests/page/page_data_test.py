"""What the page is told of a real fleet in which an engine and a leaf are killed; without a browser."""

import json
import unittest
import urllib.error
import urllib.request

from fleet_processes import Fleet
from wait import await_until


class PageDataTest(unittest.TestCase):
    """One fleet for all, in order: well, hurt, well again."""

    @classmethod
    def setUpClass(cls):
        cls.fleet = cls.enterClassContext(Fleet())

    def verdict(self, process="frontend"):
        return self.fleet.json(process, "/ui/fleet.json")["verdict"]["text"]

    def await_verdict(self, *words, process="frontend"):
        def looks():
            text = self.verdict(process)
            return text if all(word in text for word in words) else None

        return await_until(looks, lambda: "%s in %r" % (words, self.verdict(process)))

    def test_1_all_is_well(self):
        for client in range(6):
            self.assertEqual(self.fleet.chat(client), 200)
        # The lease is short: an engine that waits for a processor is silent for a moment.
        def all_well():
            fleet = self.fleet.json("frontend", "/ui/fleet.json")
            return fleet if "all 2 cells exact, 4 workers heard" in fleet["verdict"]["text"] else None

        fleet = await_until(all_well, lambda: self.verdict())
        self.assertEqual(fleet["verdict"]["level"], "good")
        self.assertEqual({cell["name"]: len(cell["tiles"]) for cell in fleet["cells"]}, {"cell-0": 2, "cell-1": 2})
        self.assertEqual(len(fleet["versions"]), 1)
        self.assertEqual(fleet["versions"][0]["processes"], 4)
        self.assertEqual(fleet["models"], ["mock"])
        self.assertEqual(fleet["streams_total"], 4 + 2 + 2)  # workers, leaves to their parent, the parent of leaves

    def test_2_series_have_routes(self):
        def routed():
            series = self.fleet.json("frontend", "/ui/series.json")
            return series if any(series["values"]["none"]) and any(series["values"]["p50"]) else None

        for client in range(6):
            self.fleet.chat(client)
        series = await_until(routed, "a second with routes and a median in the series")
        self.assertEqual([chart["id"] for chart in series["charts"]], ["routes", "hits", "latency", "flight"])
        self.assertEqual({len(values) for values in series["values"].values()}, {len(series["t"])})
        later = self.fleet.json("frontend", "/ui/series.json?since=%d" % series["t"][-1])
        self.assertLess(len(later["t"]), len(series["t"]) + 1)
        self.assertGreater(min(later["t"], default=series["t"][-1] + 1), series["t"][-1])

    def test_3_decisions_come_in_one_answer_with_all_terms(self):
        decisions = self.fleet.json("frontend", "/decisions?detail=1&max=3")["decisions"]
        self.assertEqual(len(decisions), 3)
        for decision in decisions:
            for candidate in decision["receipt"]["candidates"]:
                terms = [value for name, value in candidate.items() if name.endswith("_cost")]
                self.assertEqual(len(terms), 10)
                self.assertAlmostEqual(sum(terms), candidate["cost"], places=6)

    def test_4_leaf_and_node_tell_of_themselves(self):
        self.await_verdict("cell cell-0 exact, 2 workers heard", process="leaf-0")
        self.await_verdict("all 2 cells exact", process="hierarchy")
        leaf = self.fleet.json("leaf-0", "/ui/series.json")
        self.assertEqual([chart["id"] for chart in leaf["charts"]], ["questions", "changes", "holders", "held"])

    def test_5_a_prompt_is_explained(self):
        tokens = list(range(1000, 1100))
        with self.assertRaises(urllib.error.HTTPError) as unknown:
            self.post("frontend", {"model": "none", "tokens": tokens})
        self.assertEqual(unknown.exception.code, 404)
        unknown.exception.close()
        answer = self.post("frontend", {"model": "mock", "tokens": tokens})
        self.assertEqual((answer["blocks"], answer["diverges_at"], answer["cells_asked"]), (6, 0, 2))
        answer = self.post("leaf-0", {"model": "mock", "tokens": tokens})
        self.assertEqual((answer["blocks"], answer["diverges_at"]), (6, 0))
        # A text that an engine has: all its blocks are there, and nothing says what is in them.
        self.assertEqual(self.fleet.complete(1), 200)
        question = {"model": "mock", "text": self.fleet.prompt(1)}
        answer = await_until(
            lambda: (lambda a: a if a["diverges_at"] is None else None)(self.post("frontend", question)),
            "the completion's blocks are announced")
        self.assertEqual(answer["workers"][0]["tiers"], "d" * answer["blocks"])
        self.assertEqual(answer["workers"][0]["overlap"], answer["blocks"])
        self.assertNotIn("hash", json.dumps(answer))

    def test_5_sessions_are_shown_with_what_they_have_where(self):
        self.assertEqual(self.fleet.chat(2, prompt_cache_key="s 7"), 200)

        def computed():
            found = self.fleet.json("frontend", "/ui/sessions.json?session=s%207")["sessions"]
            return found if found and found[0]["at"] else None

        found = await_until(computed, "the session's blocks are announced")
        self.assertEqual((len(found), found[0]["model"], found[0]["prompts"]), (1, "mock", 1))
        self.assertEqual(found[0]["at"][0]["worker"], found[0]["worker"])
        self.assertEqual(found[0]["next_turn_computes"], 0)
        everywhere = self.fleet.json("frontend", "/ui/sessions.json")
        self.assertEqual((everywhere["cells_asked"], everywhere["failed"]), (2, []))
        self.assertIn(found[0]["session"], [session["session"] for session in everywhere["sessions"]])
        of_cells = [self.fleet.json("leaf-%d" % leaf, "/ui/sessions.json?session=s%207")["sessions"] for leaf in range(2)]
        self.assertEqual(sorted(len(sessions) for sessions in of_cells), [0, 1])
        self.assertEqual(self.fleet.json("frontend", "/ui/sessions.json?session=other")["sessions"], [])

    def post(self, process, question):
        request = urllib.request.Request(self.fleet.url(process, "/ui/explain"), data=json.dumps(question).encode(),
                                         headers={"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def test_6_a_killed_engine_is_named(self):
        self.fleet.kill("worker-0-1")
        self.await_verdict("all 2 cells exact", "worker worker-0-1 of cell cell-0 disconnected")
        self.await_verdict("worker worker-0-1 of cell cell-0 silent for")
        self.await_verdict("worker worker-0-1 of cell cell-0", process="leaf-0")

        def worst():
            stream = self.fleet.json("frontend", "/ui/fleet.json")["streams"][0]
            return (stream["from"], stream["to"])

        await_until(lambda: worst() == ("worker-0-1", "cell-0"), lambda: "the killed one is the worst, not %s" % (worst(),))

    def test_7_a_killed_leaf_is_named(self):
        self.fleet.kill("leaf-1")
        self.await_verdict("1 of 2 cells exact", "cell cell-1", "unreachable")
        fleet = self.fleet.json("frontend", "/ui/fleet.json")
        self.assertEqual(fleet["verdict"]["level"], "warning")
        self.assertEqual(next(peer for peer in fleet["peers"] if peer["name"] == "cell-1")["state"], "unreachable")

    def test_8_a_killed_node_is_named(self):
        self.fleet.kill("hierarchy")
        self.await_verdict("hierarchy node %s does not answer" % self.fleet.address("hierarchy", "grpc"))

    def test_9_what_comes_back_is_well_again(self):
        for name in ("hierarchy", "leaf-1", "worker-0-1"):
            self.fleet.restart(name)
        self.await_verdict("all 2 cells exact, 4 workers heard")


if __name__ == "__main__":
    unittest.main(verbosity=2)
