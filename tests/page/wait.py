"""How does a test wait for what others bring about? It looks again, and gives its processor away meanwhile."""

import select
import time

WAIT_S = 120  # for anything at all: machines of continuous integration are slow


class Failed(Exception):
    """What was waited for did not come."""


def await_until(look, what, wait_s=WAIT_S):
    """Calls `look` until it returns something true, and returns that; `what` says what did not come, or is asked."""
    give_up = time.monotonic() + wait_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > give_up:
            raise Failed("after %d s still not: %s" % (wait_s, what() if callable(what) else what))
        select.select([], [], [], 0.05)
