"""Does the table say what the records say? Columns over rounds, ratios, and what has no figure."""

import unittest

import compare_report as report


def record(structure, mode="seq", of="a", failed=None, **fields):
    return {"input": of, "structure": structure, "mode": mode, "failed": failed, **fields}


def table(records, ours=("atlas",), peers=("chain", "tree")):
    return report.Comparison(records, ours, peers).text()


def cells(text, row, occurrence=0):
    """The cells of a row of the table, the name left out."""
    lines = [line for line in text.splitlines() if line.startswith(f"| {row} ")]
    return [cell.strip() for cell in lines[occurrence].split("|")[2:-1]]


class ValueTest(unittest.TestCase):
    def test_nested_and_dotted_names_are_one(self):
        self.assertEqual(report.value({"query_ns": {"p50": 3}}, "query_ns.p50"), 3)
        self.assertEqual(report.value({"query_ns.p50": 3}, "query_ns.p50"), 3)

    def test_missing_is_none(self):
        self.assertIsNone(report.value({"query_ns": None}, "query_ns.p50"))
        self.assertIsNone(report.value({}, "query_ns.p50"))


class CellTest(unittest.TestCase):
    def test_best_median_and_worst_over_rounds(self):
        rounds = [record("x", block_ops_per_s=v * 1e6) for v in (3, 9, 5, 4, 8)]
        self.assertEqual(cells(table(rounds), "x")[:3], ["9.0", "5.0", "3.0"])

    def test_best_of_what_costs_is_the_least(self):
        rounds = [record("x", ns_per_stored_block=v) for v in (12, 11.5, 13)]
        self.assertEqual(report.STORED.of(rounds), 11.5)

    def test_unmeasured_and_failed_rounds_do_not_count(self):
        rounds = [record("x", ns_per_removed_block=None), record("x", ns_per_removed_block=7.0),
                  record("x", failed="too slow", ns_per_removed_block=1.0)]
        self.assertEqual(report.REMOVED.of(rounds), 7.0)
        self.assertIsNone(report.REMOVED.of(rounds[:1]))
        self.assertEqual(report.REMOVED.text(rounds[:1]), report.DASH)

    def test_undisturbed_figures_lie_in_an_object_of_their_own(self):
        rounds = [record("x", undisturbed={"block_ops_per_s": 7e6}), record("x", undisturbed=None)]
        self.assertEqual(report.CALM.text(rounds), "7.0")

    def test_modes_do_not_mix(self):
        rounds = [record("x", "closed", block_ops_per_s=9e6), record("x", block_ops_per_s=4e6)]
        self.assertEqual(report.BEST.of(rounds), 4e6)


class RatioTest(unittest.TestCase):
    def test_above_one_is_ahead_whichever_way_is_better(self):
        self.assertEqual(report.ratio(report.BEST, 100.0, 50.0), 2.0)
        self.assertEqual(report.ratio(report.P99, 100.0, 50.0), 0.5)
        self.assertEqual(report.ratio(report.HOLDING, 16.0, 80.0), 5.0)

    def test_nothing_to_divide_by_is_no_ratio(self):
        for ours, theirs in ((None, 1.0), (1.0, None), (0.0, 1.0), (1.0, 0.0)):
            self.assertIsNone(report.ratio(report.BEST, ours, theirs))

    def test_every_column_has_its_own_best_peer(self):
        query = lambda p50: {"p50": p50, "p99": None}
        records = [
            record("atlas", block_ops_per_s=100e6, query_ns=query(200.0)),
            record("chain", block_ops_per_s=50e6, query_ns=query(800.0)),
            record("tree", block_ops_per_s=25e6, query_ns=query(500.0)),
            record("nothing", block_ops_per_s=9e9, query_ns=query(1.0)),  # in the table, no peer
        ]
        row = cells(table(records), "input a")
        columns = [title for _, title in report.COMPARED]
        self.assertEqual(row[columns.index("cold")], "2.00× chain")
        self.assertEqual(row[columns.index("query p50")], "2.50× tree")
        self.assertEqual(row[columns.index("p99")], report.DASH)

    def test_steady_stands_beside_cold_with_a_best_peer_of_its_own(self):
        fields = lambda cold, steady: {"block_ops_per_s": cold * 1e6, "steady": {"block_ops_per_s": steady * 1e6}}
        records = [record("atlas", **fields(30, 60)), record("chain", **fields(20, 10)), record("tree", **fields(15, 40)),
                   record("atlas", **fields(40, 50)), record("old", block_ops_per_s=1e6)]
        text = table(records)
        row = cells(text, "input a")
        columns = [title for _, title in report.COMPARED]
        self.assertEqual(row[columns.index("cold")], "2.00× chain")
        self.assertEqual(row[columns.index("steady")], "1.50× tree")
        titles = [cell.title for cell in report.SINGLE]
        self.assertEqual(cells(text, "atlas")[0], "40.0")
        at = titles.index("steady Mops/s best")
        self.assertEqual(cells(text, "atlas")[at:at + 3], ["60.0", "55.0", "50.0"])
        self.assertEqual(cells(text, "old")[at], report.DASH)  # a record that says nothing of it

    def test_a_structure_with_a_sink_is_set_against_itself_without(self):
        fields = lambda cold, steady: {"block_ops_per_s": cold * 1e6, "steady": {"block_ops_per_s": steady * 1e6}}
        records = [record("atlas", **fields(40, 80)), record("atlas+coverage", **fields(30, 72)),
                   record("chain", **fields(20, 20)), record("chain+thp", **fields(25, 25))]
        text = table(records, ours=["atlas", "atlas+coverage"], peers=["chain", "chain+thp"])
        columns = [title for _, title in report.WITH_CHANGES]
        row = cells(text, "a atlas+coverage")
        self.assertEqual(row[columns.index("cold")], "0.75")
        self.assertEqual(row[columns.index("steady")], "0.90")
        self.assertEqual(row[columns.index("stored")], report.DASH)
        self.assertNotIn("a chain+thp", text)
        self.assertEqual(cells(text, "input a", occurrence=1)[0], "1.20× chain+thp")  # of atlas+coverage
        self.assertNotIn("with changes", table(records[:1]))

    def test_each_input_has_a_row_and_each_of_ours_a_table(self):
        records = [record(s, of=i, block_ops_per_s=r * 1e6)
                   for i in ("a", "b") for s, r in (("atlas", 30), ("radix", 10), ("chain", 20))]
        text = table(records, ours=["atlas", "radix"])
        self.assertEqual(cells(text, "input b")[0], "1.50× chain")
        self.assertEqual(cells(text, "input b", occurrence=1)[0], "0.50× chain")

    def test_without_peers_there_is_no_ratio_table(self):
        self.assertNotIn("against", table([record("atlas", block_ops_per_s=1e6)]))


class RowTest(unittest.TestCase):
    def test_memory_and_exactness(self):
        records = [record("x", "mem", bytes_per_holding=15.25, bytes_built=32e6, bytes_after_clear=-5.0),
                   record("x", "check", checked=1000, over=2, under=1)]
        row = cells(table(records), "x")
        self.assertEqual(row[[cell.title for cell in report.SINGLE].index("B/holding")], "15.2")
        self.assertEqual(row[-2:], ["0.0 of 32 MB", "2/1 of 1000"])

    def test_a_failure_is_told_once(self):
        records = [record("x", failed="panicked: too many"), record("x", "mem", failed="panicked: too many")]
        text = table(records)
        self.assertEqual(text.count("panicked"), 1)
        self.assertEqual(set(cells(text, "x")), {report.DASH})

    def test_a_disturbed_run_is_told(self):
        rounds = [record("x", cpu_share=share, block_ops_per_s=1e6) for share in (0.99, 0.5)]
        self.assertIn("1 of 2 runs got less than a core, down to 50%", table(rounds))
        self.assertNotIn("less than a core", table(rounds[:1]))

    def test_closed_loop_has_a_table_of_those_that_run_it(self):
        records = [record("x", "closed", event_block_ops_per_s=3e6, query_block_ops_per_s=40e6),
                   record("y", "closed", failed="not made for several threads"), record("y", block_ops_per_s=1e6)]
        text = table(records)
        self.assertEqual(cells(text, "x", occurrence=1)[:3], ["3.0", "3.0", "40.0"])
        self.assertEqual(sum(line.startswith("| y ") for line in text.splitlines()), 1)


class ServiceTest(unittest.TestCase):
    def run_of(self, service, workload, rate, cpu, wrong=0, failed=None):
        return record(service, workload, of="ingest", failed=failed, blocks_per_s=rate * 1e6,
                      leaf_cpu_ns_per_block=cpu, checked=50, wrong=wrong)

    def text(self, records):
        return report.service_text(records, ours="kvatlas", theirs="dynamo")

    def test_each_workload_has_a_table_with_rounds_and_a_ratio_of_like_columns(self):
        text = self.text([self.run_of("kvatlas", "cold", 4, 200), self.run_of("dynamo", "cold", 1, 1000),
                          self.run_of("dynamo", "cold", 2, 600), self.run_of("kvatlas", "cold", 6, 300),
                          self.run_of("kvatlas", "steady", 9, 100), self.run_of("dynamo", "steady", 3, 800)])
        self.assertEqual(cells(text, "kvatlas")[:5], ["6.00", "5.00", "4.00", "200", "250"])
        self.assertEqual(cells(text, "dynamo")[:5], ["2.00", "1.50", "1.00", "600", "800"])
        self.assertEqual(cells(text, "kvatlas, times better")[:5], ["3.00×", "3.33×", "4.00×", "3.00×", "3.20×"])
        self.assertEqual(cells(text, "kvatlas, times better", occurrence=1)[0], "3.00×")
        self.assertEqual(cells(text, "kvatlas", occurrence=1)[0], "9.00")

    def test_wrong_answers_of_all_rounds_are_told_and_failures_have_no_figures(self):
        text = self.text([self.run_of("kvatlas", "cold", 4, 200, wrong=1), self.run_of("kvatlas", "cold", 4, 200, wrong=2),
                          self.run_of("dynamo", "cold", 9, 1, failed="it ended")])
        self.assertEqual(cells(text, "kvatlas")[-1], "3 of 100")
        self.assertEqual(set(cells(text, "dynamo")), {report.DASH})
        self.assertEqual(cells(text, "kvatlas, times better")[0], report.DASH)
        self.assertIn("- dynamo: cold: it ended", text)


if __name__ == "__main__":
    unittest.main()
