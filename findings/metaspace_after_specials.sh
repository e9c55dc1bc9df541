#!/usr/bin/env bash
# One flag of a tokenizer.json adds a token behind every special token.
#
# Version: tokenizers 0.23.3. Seen: with prepend_scheme=always a text between special tokens begins with a blank that the text does not have, with "first" only at
# the start of the prompt. Chats differ by a token a turn, and agree in their first block.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3
"$here/venv/bin/python" - <<'PY'
from tokenizers import Tokenizer, models, pre_tokenizers
seen = {}
for scheme in ("always", "first", "never"):
    made = Tokenizer(models.BPE({"▁": 0, "a": 1, "▁a": 2, "<|turn|>": 3}, [("▁", "a")]))
    made.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme)
    made.add_special_tokens(["<|turn|>"])
    seen[scheme] = made.encode("a<|turn|>a").tokens
    print(f"{scheme:7} {seen[scheme]}")
assert seen == {"always": ["▁a", "<|turn|>", "▁a"], "first": ["▁a", "<|turn|>", "a"], "never": ["a", "<|turn|>", "a"]}, seen
PY
echo "as described"
