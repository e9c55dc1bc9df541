#!/usr/bin/env python3
"""Makes what lies in this folder: small tokenizers trained on this repository's own READMEs, and the Python packages' ids for them.

    tests/interop/run_tokenizers.py --model gpt2    # makes the environment
    ~/.cache/kvatlas-interop/venv-tokenizers/bin/python frontend/prompt/text/testdata/make_testdata.py

bytes       bytes and a regular expression that cuts words (as Llama 3 and Qwen have), with special tokens and a chat template
blanks      "▁" for blanks, prepended to the first word alone, unknown characters as bytes (as Mistral and Llama 2 have); added tokens
            that swallow white space or stand alone
unigram     probabilities of pieces instead of merges, text normalized, tokens around a text (as XLM-R and T5 have)
sentences   a SentencePiece model
vectors     prompts.jsonl: what is asked; NAME.jsonl: the ids, a line for each line there
"""

import json
import shutil
import sys
from pathlib import Path

import sentencepiece
import tokenizers
import transformers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/interop"))
import tokenizer_corpus as corpus  # noqa: E402

SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

TEMPLATE = """\
{#- Written for the tests: a little of everything that real templates do. -#}
{%- set ns = namespace(count=0, last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{{- bos_token }}
{%- if tools %}
<|turn|>tools
{%- for tool in tools %}

{{ tool | tojson(indent=2) if loop.first else tool | tojson }}
{%- endfor %}
<|end|>
{% endif %}
{%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('unknown role: ' + message['role']) }}
    {%- endif %}
    {%- if message.role == 'system' and not loop.first %}{{ raise_exception('the system speaks first') }}{% endif %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- elif message.content is iterable and message.content is not mapping %}
        {%- set content = message.content | map(attribute='text') | join('\\n') %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {{- '<|turn|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- if message.reasoning_content is defined and loop.index0 > ns.last %}
            {{- '<think>' ~ message.reasoning_content.strip('\\n') ~ '</think>' }}
        {%- elif '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {% generation %}
        {{- content }}
        {%- endgeneration %}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function is not defined %}{% continue %}{% endif %}
            {{- '\\n<|call|>' ~ call.function.name ~ ' ' ~ call.function.arguments | tojson }}
            {%- for name, value in call.function.arguments.items() %}
                {{- ' ' ~ name ~ '=' ~ value | string }}
            {%- endfor %}
        {%- endfor %}
    {%- else %}
        {{- content | trim }}
    {%- endif %}
    {{- '<|end|>' }}
    {%- set ns.count = ns.count + 1 %}
{% endfor %}
{%- if add_generation_prompt %}
    {{- '<|turn|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think></think>\\n' }}
    {%- endif %}
{%- endif %}
"""


def texts():
    return [path.read_text() for path in sorted(ROOT.rglob("README.md")) if "bazel-" not in str(path)]


def special(content, **flags):
    return AddedToken(content, special=True, normalized=False, **flags)


def make_bytes():
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts(), trainers.BpeTrainer(
        vocab_size=1200, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=[special(t) for t in ("<|begin|>", "<|end|>", "<|turn|>", "<|call|>", "<|turn|>user")]))
    tokenizer.add_tokens([AddedToken("<think>", normalized=True), AddedToken("</think>", normalized=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A $B", special_tokens=[("<|begin|>", tokenizer.token_to_id("<|begin|>"))])
    save("bytes", tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>",
                              "eos_token": "<|end|>", "add_bos_token": False,
                              "additional_special_tokens": ["<|call|>", "<|extra|>"]}, TEMPLATE)


def make_blanks():
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    # Words are cut while training, so that merges stay within them.
    training = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    training.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    bytes_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    training.train_from_iterator(texts(), trainers.BpeTrainer(
        vocab_size=1100, limit_alphabet=90, show_progress=False,
        special_tokens=["<unk>", "<s>", "</s>"] + bytes_tokens))
    model = json.loads(training.to_str())["model"]
    merges = [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ")) for merge in model["merges"]]
    tokenizer.model = models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer.add_special_tokens([special("<unk>"), special("<s>"), special("</s>"), special("<|turn|>"), special("<|end|>"),
                                  special("<wide>", rstrip=True), special("<left>", lstrip=True),
                                  special("<alone>", single_word=True), special("  ")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))])
    save("blanks", tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
                               "unk_token": "<unk>",
                               "chat_template": [{"name": "default", "template": TEMPLATE},
                                                 {"name": "tool_use", "template": "{{ tools | tojson }}" + TEMPLATE}]})


def make_unigram():
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(texts(), trainers.UnigramTrainer(
        vocab_size=900, unk_token="<unk>", special_tokens=["<unk>", "<s>", "</s>"], show_progress=False))
    tokenizer.add_tokens([AddedToken("Kvatlas", normalized=True), AddedToken("<|turn|>", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>",
        special_tokens=[("<s>", tokenizer.token_to_id("<s>")), ("</s>", tokenizer.token_to_id("</s>"))])
    save("unigram", tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
                                "unk_token": "<unk>", "chat_template": TEMPLATE})


def make_sentences():
    folder = HERE / "sentences"
    folder.mkdir(exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in texts() for line in text.splitlines() if line.strip()),
        model_prefix=str(folder / "tokenizer"), vocab_size=700, model_type="bpe", byte_fallback=True,
        character_coverage=0.99, minloglevel=2, normalization_rule_name="identity")
    (folder / "tokenizer.vocab").unlink()


def save(name, tokenizer, config, template=None):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1, ensure_ascii=False) + "\n")
    if template:
        (folder / "chat_template.jinja").write_text(template)


def bodies():
    for text in corpus.TEXTS:
        yield {"prompt": text}
        yield {"prompt": text, "add_special_tokens": False}
    for text in ["<wide>  \n x<left> a  <left>", "x<alone>y <alone> z<alone>", "  <wide>  <s>", "Kvatlas kvatlas KVATLAS",
                 "<|turn|>user\n<|turn|>users", "a<think>b</think>", "  a  b   c", "<|extra|>x<|call|>"]:
        yield {"prompt": text}
    for body in corpus.chats():
        if len(body["messages"]) <= 5:
            yield body


def record():
    asked = list(bodies())
    (HERE / "prompts.jsonl").write_text("".join(json.dumps(body, ensure_ascii=False) + "\n" for body in asked))
    for name in ("bytes", "blanks", "unigram"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(HERE / name)
        with open(HERE / f"{name}.jsonl", "w") as out:
            for body in asked:
                out.write(json.dumps(ids(tokenizer, body)) + "\n")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(HERE / "sentences/tokenizer.model"))
    with open(HERE / "sentences.jsonl", "w") as out:
        for body in asked:
            answer = None
            if "prompt" in body:
                answer = processor.encode(body["prompt"])
                if body.get("add_special_tokens", True):
                    answer = [processor.bos_id()] + answer
            out.write(json.dumps(answer) + "\n")


def ids(tokenizer, body):
    """None where the template refuses."""
    if "prompt" in body:
        return tokenizer(body["prompt"], add_special_tokens=body.get("add_special_tokens", True))["input_ids"]
    try:
        text = tokenizer.apply_chat_template(
            body["messages"], tools=body.get("tools"), tokenize=False,
            add_generation_prompt=body.get("add_generation_prompt", True),
            continue_final_message=body.get("continue_final_message", False), **body.get("chat_template_kwargs", {}))
    except Exception:  # whatever it refuses with
        return None
    return tokenizer(text, add_special_tokens=False)["input_ids"]


if __name__ == "__main__":
    make_bytes()
    make_blanks()
    make_unigram()
    make_sentences()
    record()
