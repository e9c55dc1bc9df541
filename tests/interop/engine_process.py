"""What every engine under test has in common: commands as JSON lines on stdin, answers on stdout.

    {"do": "open", ...}                      -> {"endpoint", "replay_endpoint", "rank"}
    {"do": "subscribed", "timeout_s": 20}    -> {"subscribed": true}; waits until one more subscribed
    {"do": "run", "jobs": [{"tokens", "outputs", "at", "salt", "lora"}, ...]}
                                             -> {"outputs": [[token, ...], ...], "batches"}; until all are done
    {"do": "reset"}                          -> {"cleared": bool}
    {"do": "depths", "prompts": [{"tokens", "salt", "lora"}, ...]}
                                             -> {"depths": [leading blocks that the engine would not compute again],
                                                 "held": [leading blocks of the main class, reusable or not]}
    {"do": "frames"}                         -> {"frames": [[topic, number, payload] in base64, ...]}, as sent
    {"do": "facts"}                          -> what the run was like: blocks, copies, evictions
    end of input                             -> the process ends

A driver derives from `Engine`. The tokens that an engine generates are a function of what precedes them, so equal
prompts stay equal.
"""

import base64
import json
import sys
import threading


def next_token(tokens, vocab):
    """The token that "the model" says after `tokens`."""
    state = len(tokens)
    for token in tokens[-4:]:
        state = (state * 1103515245 + token * 12345 + 7) & 0x7FFFFFFF
    return (state >> 8) % vocab


class Engine:
    def __init__(self):
        self.frames = []
        self.sent = threading.Condition()

    def watch(self, socket_module):
        """Makes publishers' PUB sockets such that one can wait for a subscriber and see what was sent.

        XPUB is PUB that can also be asked who subscribed: on the wire the same.
        """
        engine = self
        self.verbose = socket_module.XPUB_VERBOSE

        class WatchedSocket(socket_module.Socket):
            def send_multipart(self, parts, *args, **kwargs):
                result = super().send_multipart(parts, *args, **kwargs)
                if self.getsockopt(socket_module.TYPE) == socket_module.XPUB:
                    with engine.sent:
                        engine.frames.append([bytes(part) for part in parts])
                        engine.sent.notify_all()
                return result

        socket_module.Context._socket_class = WatchedSocket
        socket_module.PUB = socket_module.XPUB

    # ---- What a driver provides ----
    def open(self, command):
        raise NotImplementedError

    def publisher_socket(self):
        raise NotImplementedError

    def run(self, jobs):
        raise NotImplementedError

    def reset(self):
        raise NotImplementedError

    def depth(self, prompt):
        raise NotImplementedError

    def held(self, prompt):
        return self.depth(prompt)

    def facts(self):
        return {}

    def published(self):
        """How many batches were handed to the publisher."""
        raise NotImplementedError

    # ---- Commands ----
    def wait_subscribed(self, timeout_s):
        # The publisher's thread leaves the socket alone until the first batch.
        if not self.publisher_socket().poll(int(timeout_s * 1000)):
            return {"subscribed": False}
        self.publisher_socket().recv()
        return {"subscribed": True}

    def wait_sent(self):
        with self.sent:
            if not self.sent.wait_for(lambda: len(self.frames) >= self.published(), timeout=30):
                raise RuntimeError(f"{len(self.frames)} of {self.published()} batches were sent")

    def serve(self):
        answers = sys.stdout
        sys.stdout = sys.stderr  # what engines print is not an answer
        for line in sys.stdin:
            command = json.loads(line)
            what = command["do"]
            if what == "open":
                answer = self.open(command)
                # Every subscriber is told of, not only the first.
                self.publisher_socket().setsockopt(self.verbose, 1)
            elif what == "subscribed":
                answer = self.wait_subscribed(command["timeout_s"])
            elif what == "run":
                outputs = self.run(command["jobs"])
                self.wait_sent()
                answer = {"outputs": outputs, "batches": self.published()}
            elif what == "reset":
                answer = {"cleared": self.reset()}
            elif what == "depths":
                answer = {"depths": [self.depth(prompt) for prompt in command["prompts"]],
                          "held": [self.held(prompt) for prompt in command["prompts"]]}
            elif what == "frames":
                self.wait_sent()
                answer = {"frames": [[base64.b64encode(part).decode() for part in frame]
                                     for frame in self.frames]}
            elif what == "facts":
                answer = self.facts()
            else:
                raise ValueError(f"unknown command {what!r}")
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
