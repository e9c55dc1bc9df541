"""figures.py on repositories made here: what it finds, refuses, renders and records."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import figures  # noqa: E402  (lies beside this script)

TABLE = {"commit": "abc", "date": "2026-01-02", "machine": "one core", "command": "bench", "head": ["input", "ns"],
         "align": ["---", "---:"], "rows": [["a", "1.5"], ["", "2"]]}
README = "# x\n\n<!-- figures: t -->\n| input | ns |\n|---|---:|\n| a | 1.5 |\n|  | 2 |\n<!-- figures end -->\nrest\n"


PLOT = {"title": "t & u", "readme": "README.md", "table": "t", "ours": "a", "columns": {"ns": "Time, ns"}}


class FiguresTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        os.makedirs(os.path.join(self.root, "docs"))
        for arguments in (["init", "-q"], ["add", "."], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q",
                                                         "--allow-empty", "-m", "t"]):
            subprocess.run(["git", *arguments], cwd=self.root, check=True)
        self.write("README.md", README)
        self.tables({"README.md": {"t": TABLE}})

    def test_a_picture_has_the_figures_of_its_table(self):
        rows = [["a", "1,500"], ["b", "3,000"]]
        self.write("README.md", README.replace("| a | 1.5 |\n|  | 2 |", "| a | 1,500 |\n| b | 3,000 |"))
        self.write(figures.FILE, json.dumps({"version": 1, "plots": {"docs/images/t.svg": PLOT},
                                             "tables": {"README.md": {"t": {**TABLE, "rows": rows}}}}))
        self.assertEqual(len(figures.check(self.root)), 1)
        figures.render(self.root)
        self.assertEqual(figures.check(self.root), [])
        picture = self.read("docs/images/t.svg")
        self.assertIn(">1,500</text>", picture)
        self.assertIn("t &amp; u", picture)
        self.assertEqual(picture.count("<rect"), 2)
        self.assertEqual(picture.count('class="bar ours"'), 1)
        figures.save(self.root, figures.load(self.root))
        self.assertIn("plots", figures.load_file(self.root))

    def write(self, path, text):
        with open(os.path.join(self.root, path), "w", encoding="utf-8") as file:
            file.write(text)
        subprocess.run(["git", "add", path], cwd=self.root, check=True)

    def tables(self, tables):
        self.write(figures.FILE, json.dumps({"version": 1, "tables": tables}))

    def read(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8") as file:
            return file.read()

    def run_tool(self, *arguments, stdin=""):
        out, err = io.StringIO(), io.StringIO()
        before, sys.stdin = sys.stdin, io.StringIO(stdin)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = figures.main(["--root", self.root, *arguments])
        finally:
            sys.stdin = before
        return status, out.getvalue() + err.getvalue()

    def test_equal_tables_pass(self):
        self.assertEqual(self.run_tool("check")[0], 0)

    def test_a_figure_that_was_edited_by_hand_is_found_and_rendered_again(self):
        self.write("README.md", README.replace("1.5", "1.4"))
        status, output = self.run_tool("check")
        self.assertEqual(status, 1)
        self.assertIn("README.md:6: shows other figures", output)
        self.assertEqual(self.run_tool("render")[0], 0)
        self.assertEqual(self.read("README.md"), README)

    def test_a_row_too_few_is_found(self):
        self.write("README.md", README.replace("|  | 2 |\n", ""))
        self.assertEqual(self.run_tool("check")[0], 1)

    def test_tables_without_marks_and_marks_without_tables_are_found(self):
        self.write("README.md", "# x\n")
        self.assertIn("lacks '<!-- figures: t -->'", self.run_tool("check")[1])
        self.write("README.md", README)
        self.write("other.md", README)
        self.assertIn("other.md: has tables that", self.run_tool("check")[1])

    def test_incomplete_tables_are_refused(self):
        for field in figures.FIELDS:
            self.tables({"README.md": {"t": {k: v for k, v in TABLE.items() if k != field}}})
            status, output = self.run_tool("check")
            self.assertEqual(status, 1)
            self.assertIn(f"'{field}'", output)
        self.tables({"README.md": {"t": {**TABLE, "rows": [["a"]]}}})
        self.assertIn("1 cells where the head has 2", self.run_tool("check")[1])

    def test_a_measured_table_is_recorded_with_its_commit_and_rendered(self):
        status, output = self.run_tool("record", "README.md", "t", "--command", "bench --again", "--machine", "two",
                                       stdin="noise\n\n| input | ns |\n|---|---:|\n| a | 9 |\n\nmore\n")
        self.assertEqual((status, output), (0, "README.md: rendered\n"))
        self.assertIn("| a | 9 |\n<!-- figures end -->", self.read("README.md"))
        recorded = json.loads(self.read(figures.FILE))["tables"]["README.md"]["t"]
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=self.root, capture_output=True, text=True, check=True)
        self.assertTrue(head.stdout.startswith(recorded["commit"]))
        self.assertEqual((recorded["command"], recorded["machine"]), ("bench --again", "two"))

    def test_run_runs_the_recorded_command(self):
        self.tables({"README.md": {"t": {**TABLE, "command": r"printf '| input | ns |\n|---|---:|\n| b | 7 |\n'"}}})
        self.assertEqual(self.run_tool("run", "README.md", "t")[0], 0)
        self.assertIn("| b | 7 |", self.read("README.md"))

    def test_output_without_a_table_changes_nothing(self):
        before = self.read(figures.FILE)
        self.assertEqual(self.run_tool("record", "README.md", "t", "--command", "bench", stdin="no figures")[0], 1)
        self.assertEqual(self.read(figures.FILE), before)


if __name__ == "__main__":
    unittest.main()
