#!/usr/bin/env python3
"""Makes the screenshots of docs/page.md, over a fleet that is made up: screenshots.py [FOLDER]"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from browser import Browser  # noqa: E402
from fake_server import FakeServer  # noqa: E402

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/images")


def shot(browser, url, path, selector=None, **window):
    page = browser.open(url, **window)
    page.wait("document.querySelector('.decisions li') && document.querySelectorAll('.u-wrap').length === 4")
    page.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")
    page.screenshot(path, selector)
    print(path, os.path.getsize(path) >> 10, "KiB")
    return page


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else FOLDER
    os.makedirs(folder, exist_ok=True)
    with Browser() as browser:
        with FakeServer(cells=4, workers=8) as server:
            at = lambda name: os.path.join(folder, "page-%s.png" % name)
            page = shot(browser, server.url, at("top"), (0, 0, 1280, 880), width=1280, height=900)
            page.run("document.querySelectorAll('.decisions details')[0].open = true")
            page.screenshot(at("decisions"), "[aria-labelledby=decisions-title]")
            page.run("(() => { const t = document.querySelector('form textarea'); t.value = 'Summarize the minutes of the meeting'"
                     " + ' of Monday in three sentences.';"
                     " t.dispatchEvent(new Event('input', {bubbles: true})); })()")
            page.wait("!document.querySelector('form button').disabled")
            page.run("document.querySelector('form button').click()")
            page.wait("document.querySelector('.strip')")
            page.screenshot(at("explain"), "[aria-labelledby=explain-title]")
            page.screenshot(at("streams"), "[aria-labelledby=streams-title]")
            shot(browser, server.url, at("dark"), (0, 0, 1280, 880), width=1280, height=900, scheme="dark")
        with FakeServer(cells=4096, workers=8) as server:
            shot(browser, server.url, at("large"), "[aria-labelledby=map-title]", width=1280, height=900)


if __name__ == "__main__":
    main()
