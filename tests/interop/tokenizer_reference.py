"""The Python packages' own answers: one JSON object a line in and one out, as `kvatlas tokenize` does.

    {"open": "qwen3", "path": "/…/qwen3", "library": "transformers"}
    {"model": "qwen3", "prompt": "Hello"}
    {"model": "qwen3", "messages": […], "tools": […]}

Libraries: `tokenizers`, `transformers` and `mistral_common`. Runs in the environment that run_tokenizers.py makes.
"""

import json
import os
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Tokenizers:
    def __init__(self, path):
        import tokenizers
        self.tokenizer = tokenizers.Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    def prompt(self, body):
        return self.tokenizer.encode(body["prompt"], add_special_tokens=body.get("add_special_tokens", True)).ids


class Transformers:
    def __init__(self, path):
        import transformers
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(path)

    def prompt(self, body):
        return self.tokenizer(body["prompt"], add_special_tokens=body.get("add_special_tokens", True))["input_ids"]

    def chat(self, body):
        text = self.text(body)
        return self.tokenizer(text, add_special_tokens=body.get("add_special_tokens", False))["input_ids"]

    def text(self, body):
        return self.tokenizer.apply_chat_template(
            body["messages"], tools=body.get("tools"), tokenize=False,
            add_generation_prompt=body.get("add_generation_prompt", True),
            continue_final_message=body.get("continue_final_message", False), **body.get("chat_template_kwargs", {}))


class MistralCommon:
    def __init__(self, path):
        from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
        self.tokenizer = SentencePieceTokenizer(path)

    def prompt(self, body):
        return self.tokenizer.encode(body["prompt"], bos=body.get("add_special_tokens", True), eos=False)


LIBRARIES = {"tokenizers": Tokenizers, "transformers": Transformers, "mistral_common": MistralCommon}


def answer(models, body):
    if "open" in body:
        models[body["open"]] = LIBRARIES[body["library"]](body["path"])
        return {}
    model = models[body["model"]]
    start = time.perf_counter()
    if "prompt" in body:
        tokens = model.prompt(body)
    elif body.get("render"):
        return {"text": model.text(body)}
    else:
        tokens = model.chat(body)
    return {"tokens": tokens, "us": int((time.perf_counter() - start) * 1e6)}


def main():
    models = {}
    for line in sys.stdin:
        try:
            said = answer(models, json.loads(line))
        except Exception as error:  # whatever a template or a library refuses
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
