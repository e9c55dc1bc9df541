"""Requests for engines, from a seed: prompts that share prefixes as real ones do, and every question worth asking after."""

import json
import random

from engine_process import next_token


def outputs_of(tokens, count, vocab):
    """What an engine will generate after `tokens`."""
    tokens = list(tokens)
    start = len(tokens)
    for _ in range(count):
        tokens.append(next_token(tokens, vocab))
    return tokens[start:]


class Workload:
    """Conversations over a few system prompts: each turn repeats what came before and adds to it."""

    def __init__(self, seed, vocab=4000, block_size=16, salts=(None,), loras=(None,), stretch=1):
        self.random = random.Random(seed)
        self.vocab = vocab
        self.block_size = block_size
        self.stretch = stretch  # texts are so many times as long
        self.namespaces = [(salt, lora) for salt in salts for lora in loras]
        self.systems = [self._text(length) for length in (0, 21, 48, 90, 163)]
        self.talks = []
        self.asked = []  # every prompt given to an engine, and every prompt with its answer

    def _text(self, length):
        return [self.random.randrange(self.vocab) for _ in range(length * self.stretch)]

    def jobs(self, count, copies=1, together=1, outputs_max=40, branches=0):
        """`count` distinct requests, `together` of them arriving in one step, each `copies` times; of those that continue
        one, the share `branches` leaves it somewhere in its middle and goes on as one of its own."""
        jobs = []
        for i in range(count):
            if not self.talks or self.random.random() < 0.4 or len(self.talks) < 6:
                salt, lora = self.random.choice(self.namespaces)
                # The same text under several namespaces is what isolation is about.
                text = self.random.choice(self.systems) + self._text(self.random.randrange(3, 120))
                if self.talks and len(self.namespaces) > 1 and self.random.random() < 0.5:
                    text = list(self.random.choice(self.talks)["tokens"])
                talk = {"tokens": text, "salt": salt, "lora": lora}
                self.talks.append(talk)
            else:
                talk = self.random.choice(self.talks)
                if branches and self.random.random() < branches:
                    talk = {**talk, "tokens": talk["tokens"][:self.random.randrange(1, len(talk["tokens"]) + 1)]}
                    self.talks.append(talk)
                talk["tokens"] = talk["tokens"] + self._text(self.random.randrange(1, 60))
            job = {"tokens": list(talk["tokens"]), "outputs": self.random.randrange(1, outputs_max),
                   "at": (i // together) * 2, "salt": talk["salt"], "lora": talk["lora"]}
            talk["tokens"] = job["tokens"] + outputs_of(job["tokens"], job["outputs"], self.vocab)
            if len(talk["tokens"]) > 900 * self.stretch:
                self.talks.remove(talk)
            jobs.extend(dict(job) for _ in range(copies))
            self._ask(job["tokens"], job)
            self._ask(talk["tokens"], job)
        return jobs

    def trace(self, path, count, block_tokens=16):
        """Requests of a trace in Mooncake's format, each of its blocks as `block_tokens` tokens."""
        jobs = []
        with open(path, encoding="utf-8") as lines:
            for i, line in enumerate(lines):
                if i == count:
                    break
                entry = json.loads(line)
                tokens = []
                for block in entry["hash_ids"]:
                    content = random.Random(block)
                    tokens += [content.randrange(self.vocab) for _ in range(block_tokens)]
                job = {"tokens": tokens, "outputs": 1 + entry["output_length"] // 32, "at": i,
                       "salt": None, "lora": None}
                jobs.append(job)
                self._ask(tokens, job)
        return jobs

    def marker(self, aligned):
        """A request that no other shares anything with: when it is found, all before it was applied. Hits of engines are
        multiples of `aligned` tokens."""
        tokens = [self.random.randrange(self.vocab) for _ in range(3 * aligned + 1)]
        salt, lora = self.namespaces[0]
        return {"tokens": tokens, "outputs": 1, "at": 0, "salt": salt, "lora": lora}

    def _ask(self, tokens, namespace):
        self.asked.append({"tokens": list(tokens), "salt": namespace["salt"],
                           "lora": namespace["lora"]})

    def questions(self, cut=False):
        """Every distinct prompt in its own namespace; if there are several, also without any and in another one; if `cut`,
        also only its beginning, as what leaves it there would ask."""
        seen = set()
        questions = []

        def add(tokens, salt, lora):
            key = (tuple(tokens), salt, lora)
            if key not in seen:
                seen.add(key)
                questions.append({"tokens": tokens, "salt": salt, "lora": lora})

        for prompt in self.asked:
            add(prompt["tokens"], prompt["salt"], prompt["lora"])
            if cut:
                length = self.random.randrange(1, len(prompt["tokens"]) + 1)
                add(prompt["tokens"][:length], prompt["salt"], prompt["lora"])
            if len(self.namespaces) > 1:
                add(prompt["tokens"], None, None)
                add(prompt["tokens"], *self.random.choice(self.namespaces))
        return questions
