"""A headless Chromium, driven over the DevTools protocol with nothing but Python's own library.

    with Browser() as browser:
        page = browser.open("http://127.0.0.1:8092/ui/", width=1440, height=900)
        page.wait("document.querySelector('h1')")
        page.screenshot("page.png")

A page keeps what it asked for (`requests`) and what went wrong in it (`errors`).
"""

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import urllib.request

from wait import WAIT_S, Failed, await_until


class WebSocket:
    """A client's end, for text: RFC 6455 without extensions."""

    def __init__(self, url):
        host_port, path = url.removeprefix("ws://").split("/", 1)
        host, port = host_port.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=WAIT_S)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            (
                "GET /%s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n" % (path, host_port, key)
            ).encode()
        )
        self.ahead = b""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self._read(1)
        if b" 101 " not in head:
            raise Failed("no WebSocket: %r" % head)

    def _read(self, count):
        while len(self.ahead) < count:
            more = self.socket.recv(1 << 16)
            if not more:
                raise Failed("the browser has gone")
            self.ahead += more
        data, self.ahead = self.ahead[:count], self.ahead[count:]
        return data

    def send(self, text):
        data = text.encode()
        mask = os.urandom(4)
        size = len(data)
        if size < 126:
            head = struct.pack("!BB", 0x81, 0x80 | size)
        elif size < 1 << 16:
            head = struct.pack("!BBH", 0x81, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", 0x81, 0x80 | 127, size)
        pad = (mask * (size // 4 + 1))[:size]
        masked = (int.from_bytes(data, "big") ^ int.from_bytes(pad, "big")).to_bytes(size, "big")
        self.socket.sendall(head + mask + masked)

    def receive(self):
        """The next message; pings are answered by nothing, since this browser sends none."""
        message = b""
        while True:
            first, size = self._read(2)
            size &= 0x7F
            if size == 126:
                (size,) = struct.unpack("!H", self._read(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._read(8))
            data = self._read(size)
            if first & 0x0F == 8:
                raise Failed("the browser closed the connection")
            if first & 0x0F in (0, 1):
                message += data
                if first & 0x80:
                    return message.decode()


class Page:
    """A tab."""

    def __init__(self, websocket):
        self.websocket = websocket
        self.next_id = 0
        self.requests = []
        self.errors = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")

    def call(self, method, **params):
        self.next_id += 1
        self.websocket.send(json.dumps({"id": self.next_id, "method": method, "params": params}))
        while True:
            message = json.loads(self.websocket.receive())
            if message.get("id") == self.next_id:
                if "error" in message:
                    raise Failed("%s: %s" % (method, message["error"]))
                return message["result"]
            self._note(message)

    def _note(self, event):
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))

    def run(self, script):
        """The value of a JavaScript expression, awaited if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise Failed(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def text(self, selector="body"):
        return self.run("(document.querySelector(%s) ?? {}).innerText ?? ''" % json.dumps(selector))

    def wait(self, expression, wait_s=WAIT_S):
        """Until the expression is true."""
        return await_until(lambda: self.run("Boolean(%s)" % expression), lambda: "%s; the page says:\n%s\nerrors: %s" % (
            expression, self.text()[:3000], self.errors), wait_s)

    def wait_text(self, words, selector="body", wait_s=WAIT_S):
        """Until the element's text has these words, whatever their case."""
        return await_until(
            lambda: words.lower() in self.text(selector).lower(),
            lambda: "%r in %s, which says:\n%s" % (words, selector, self.text(selector)[:3000]),
            wait_s,
        )

    def key(self, key, code=0):
        for kind in ("rawKeyDown", "char", "keyUp") if len(key) == 1 or key == "Enter" else ("rawKeyDown", "keyUp"):
            text = {"text": "\r" if key == "Enter" else key} if kind == "char" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def colours(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def screenshot(self, path, part=None):
        """Of the whole page, of an element by its selector, or of (left, top, width, height)."""
        if part is None:
            box = self.call("Page.getLayoutMetrics")["cssContentSize"]
            part = (0, 0, box["width"], box["height"])
        elif isinstance(part, str):
            part = self.run("(() => { const b = document.querySelector(%s).getBoundingClientRect();"
                            " return [b.x + scrollX - 12, b.y + scrollY - 12, b.width + 24, b.height + 24]; })()" % json.dumps(part))
        clip = dict(zip(("x", "y", "width", "height"), part), scale=1)
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        with open(path, "wb") as file:
            file.write(base64.b64decode(answer["data"]))


class Browser:
    """A Chromium of its own, with an empty profile, that goes with the `with` block."""

    def __init__(self):
        self.program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if self.program is None:
            raise Failed("no Chromium: install the package chromium")

    def __enter__(self):
        self.pages = []
        self.profile = tempfile.mkdtemp(prefix="kvatlas-browser-")
        self.log = open(os.path.join(self.profile, "log"), "wb")
        self.process = subprocess.Popen(
            [self.program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
             "--force-color-profile=srgb", "--remote-debugging-port=0", "--user-data-dir=" + self.profile, "about:blank"],
            stdout=self.log, stderr=self.log)
        try:
            port_file = os.path.join(self.profile, "DevToolsActivePort")
            port = await_until(lambda: self._alive() and self._port_in(port_file), "Chromium listens")
            self.address = "http://127.0.0.1:" + port
        except BaseException:
            self.__exit__()
            raise
        return self

    def _alive(self):
        if self.process.poll() is not None:
            with open(os.path.join(self.profile, "log"), encoding="utf-8", errors="replace") as log:
                raise Failed("Chromium ended: " + log.read()[-2000:])
        return True

    @staticmethod
    def _port_in(path):
        """Its first line, once that is whole; None before."""
        try:
            with open(path, encoding="ascii") as file:
                port, ended, _ = file.read().partition("\n")
        except FileNotFoundError:
            return None
        return port if ended else None

    def __exit__(self, *_):
        for page in self.pages:
            page.websocket.socket.close()
        self.process.kill()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.profile, ignore_errors=True)

    def open(self, url, width=1440, height=900, scheme="light"):
        request = urllib.request.Request(self.address + "/json/new?about:blank", method="PUT")
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            target = json.load(answer)
        page = Page(WebSocket(target["webSocketDebuggerUrl"]))
        self.pages.append(page)
        page.size(width, height)
        page.colours(scheme)
        page.call("Page.navigate", url=url)
        return page
