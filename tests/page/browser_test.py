"""The page in a real headless Chromium: over fleets that are made up, and over a real one in which things are killed."""

import json
import os
import unittest

from browser import Browser
from fake_server import FakeServer
from fleet_processes import Fleet
from wait import await_until

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "vendor/axe/axe.min.js"), encoding="utf-8") as axe:
    SCRIPTS_OF_AXE = axe.read()


class PageCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = cls.enterClassContext(Browser())

    def open(self, url, **window):
        page = self.browser.open(url, **window)
        page.wait("document.querySelector('.map')")
        page.origin = url[: url.index("/ui/")]
        return page

    def check_quiet(self, page):
        """Nothing went wrong in it, and it asked no other host."""
        self.assertEqual(page.errors, [])
        self.assertEqual([url for url in page.requests if not url.startswith((page.origin, "data:"))], [])

    def check_accessible(self, page):
        page.run(SCRIPTS_OF_AXE + ";true")
        found = page.run("axe.run(document).then(r => r.violations.map("
                         "v => [v.id, v.help, v.nodes.slice(0, 3).map(n => n.html + ' ' + n.failureSummary)]))")
        self.assertEqual(found, [], json.dumps(found, indent=1))


class MadeUpFleets(PageCase):
    def test_every_part_is_drawn(self):
        with FakeServer(cells=4, workers=8) as server:
            page = self.open(server.url)
            page.wait("document.querySelectorAll('.u-wrap canvas').length === 4")
            self.assertIn("4 cells exact", page.text(".verdict h1"))
            self.assertEqual(page.run("document.querySelectorAll('.tile.worker').length"), 32)
            self.assertIn("chat template", page.text(".findings"))
            page.wait("document.querySelectorAll('.decisions li').length > 10")
            self.assertGreater(page.run("document.querySelectorAll('.decisions .bar .term').length"), 20)
            self.assertEqual(page.run("document.querySelector('.streams tbody tr th').innerText"), server.fleet["streams"][0]["from"])
            self.check_quiet(page)

    def test_4096_cells_are_drawn_and_keep_the_focus(self):
        with FakeServer(cells=4096, workers=8) as server:
            page = self.open(server.url, width=1600)
            page.wait("document.querySelectorAll('[data-cell]').length === 4096")
            self.assertEqual(page.run("document.querySelectorAll('[data-tile][tabindex=\"0\"]').length"), 1)
            page.run("document.querySelector('[data-tile]').focus()")
            for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
                page.key(key)
            at = page.run("document.activeElement.dataset.name")
            self.assertTrue(page.run("document.activeElement.getBoundingClientRect().top >"
                                     " document.querySelector('[data-tile]').getBoundingClientRect().top"))
            asked = len([url for url in page.requests if url.endswith("fleet.json")])
            await_until(lambda: page.run("1") and len([u for u in page.requests if u.endswith("fleet.json")]) > asked + 1,
                        "two further answers")
            self.assertEqual(page.run("document.activeElement.dataset.name"), at)
            page.key("Enter", 13)
            page.wait("document.querySelectorAll('.detail tbody tr').length === 8")
            self.assertIn(at, page.text(".detail"))
            page.run("(() => { const s = document.querySelector('[type=search]'); s.value = 'cell-4095';"
                     " s.dispatchEvent(new Event('input', {bubbles: true})); })()")
            page.wait("document.querySelectorAll('[data-cell]').length === 1")
            self.check_quiet(page)

    def test_it_is_accessible_in_all_colours_and_windows(self):
        with FakeServer(cells=4, workers=8) as server:
            for scheme in ("light", "dark"):
                for width in (1440, 390):
                    with self.subTest(scheme=scheme, width=width):
                        page = self.open(server.url, width=width, scheme=scheme)
                        page.wait("document.querySelector('.decisions details')")
                        page.run("document.querySelector('.cell-name').click(); document.querySelector('.decisions details').open = true;"
                                 " document.querySelector('.findings details').open = true")
                        self.explain(page)
                        self.check_accessible(page)
                        self.check_quiet(page)

    def explain(self, page):
        page.run("(() => { const t = document.querySelector('form textarea'); t.value = '1 2 3';"
                 " t.dispatchEvent(new Event('input', {bubbles: true})); })()")
        page.wait("!document.querySelector('form button').disabled")
        page.run("document.querySelector('form button').click()")
        page.wait("document.querySelector('.strip .hole')")

    def test_charts_of_the_first_minutes_begin_at_the_left(self):
        with FakeServer() as server:
            for key, values in server.series["values"].items():
                server.series["values"][key] = values[:20]
            server.series["t"] = server.series["t"][:20]
            server.series["values"]["in_flight"] = [0] * 20
            page = self.open(server.url)
            page.wait("document.querySelectorAll('.u-wrap canvas').length === 4")
            self.assertEqual(page.text("#charts-title"), "The first minutes")
            # The first column of the cache's chart in a colour of its lines, as a part of its width.
            first = page.run("""(() => {
              const c = document.querySelector('[aria-labelledby=chart-hits] canvas');
              const {data} = c.getContext('2d').getImageData(0, 0, c.width, c.height);
              for (let x = 0; x < c.width; ++x) for (let y = 0; y < c.height; ++y) {
                const [r, g, b, a] = data.slice(4 * (y * c.width + x), 4 * (y * c.width + x) + 4);
                if (a > 200 && Math.max(r, g, b) - Math.min(r, g, b) > 80) return x / c.width;
              }
              return 1;
            })()""")
            self.assertLess(first, 0.3)
            self.assertIn("dotted", page.text(".map-legend"))
            self.check_quiet(page)

    def test_colours_follow_the_system_until_they_are_chosen(self):
        with FakeServer() as server:
            page = self.open(server.url, scheme="dark")
            ground = lambda: page.run("getComputedStyle(document.body).backgroundColor")
            dark = ground()
            page.colours("light")
            light = ground()
            self.assertNotEqual(dark, light)
            page.run("(() => { const s = document.querySelector('.theme select'); s.value = 'dark';"
                     " s.dispatchEvent(new Event('change', {bubbles: true})); })()")
            page.wait("getComputedStyle(document.body).backgroundColor === %s" % json.dumps(dark))
            again = self.open(server.url, scheme="light")
            self.assertEqual(again.run("getComputedStyle(document.body).backgroundColor"), dark)

    def test_what_is_shown_stays_when_the_process_goes_away(self):
        with FakeServer() as server:
            page = self.open(server.url)
        page.wait_text("no answer", ".updated")
        self.assertIn("4 cells exact", page.text(".verdict h1"))
        self.assertTrue(page.run("document.querySelector('.verdict').classList.contains('unknown')"))

    def test_names_are_text_whatever_is_in_them(self):
        with FakeServer() as server:
            server.fleet["cells"][0]["name"] = "<img src=x onerror=alert(1)>"
            server.fleet["verdict"]["text"] = "<script>alert(2)</script>"
            page = self.open(server.url)
            self.assertIn("<script>alert(2)</script>", page.text(".verdict h1"))
            self.assertEqual(page.run("document.querySelectorAll('img').length"), 0)
            self.check_quiet(page)


class RealFleet(PageCase):
    def test_what_is_killed_is_said(self):
        with Fleet() as fleet:
            page = self.open(fleet.url("frontend"))
            page.wait_text("all 2 cells exact, 4 workers heard", ".verdict h1")
            for client in range(8):
                self.assertEqual(fleet.chat(client), 200)
            page.wait("document.querySelectorAll('.decisions li').length >= 8")
            page.wait("!document.querySelector('[aria-labelledby=chart-latency] .legend').innerText.includes('–')")
            self.assertEqual(page.run("document.querySelectorAll('.tile.worker').length"), 4)
            self.explain(page, fleet)
            self.check_accessible(page)

            fleet.kill("worker-0-1")
            page.wait_text("worker worker-0-1 of cell cell-0", ".verdict h1")
            page.wait("document.querySelector('[data-name=\"worker-0-1\"]').classList.contains('masked')")
            fleet.kill("leaf-1")
            page.wait_text("1 of 2 cells exact; cell cell-1", ".verdict h1")
            page.wait_text("unreachable", ".verdict h1")
            page.wait("document.querySelector('[data-cell=\"cell-1\"]').classList.contains('unreachable')")
            page.wait_text("unreachable", ".peers")
            self.check_accessible(page)

            fleet.restart("leaf-1")
            fleet.restart("worker-0-1")
            page.wait_text("all 2 cells exact, 4 workers heard", ".verdict h1")
            self.check_quiet(page)

            for name, words in (("leaf-0", "cell cell-0 exact"), ("hierarchy", "all 2 cells exact")):
                with self.subTest(name):
                    own = self.open(fleet.url(name))
                    own.wait_text(words, ".verdict h1")
                    own.wait("document.querySelectorAll('.u-wrap').length === 4")
                    self.check_accessible(own)
                    self.check_quiet(own)

    def explain(self, page, fleet):
        self.assertEqual(fleet.complete(1), 200)
        text = json.dumps(fleet.prompt(1))

        def all_there():
            page.run("(() => { const t = document.querySelector('form textarea'); t.value = %s;"
                     " t.dispatchEvent(new Event('input', {bubbles: true})); })()" % text)
            page.wait("!document.querySelector('form button').disabled")
            page.run("document.querySelector('form button').click()")
            page.wait("document.querySelector('.explained, .explain .wrong')")
            return "whole prompt is cached" in page.text(".explain")

        await_until(all_there, lambda: page.text(".explain"))
        self.assertGreater(page.run("document.querySelectorAll('.strip .device').length"), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
