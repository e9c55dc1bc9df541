#!/usr/bin/env bash
# A tokenizer.json may cut and pad every prompt by itself.
#
# Versions: tokenizers 0.23.3, transformers 5.24.0. Seen: `truncation` and `padding` are saved in the file and count again when it is loaded;
# transformers switches both off for each call that does not ask for them, so that the same file gives other ids there.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check tokenizers==0.23.3 transformers==5.24.0
"$here/venv/bin/python" - <<'PY'
import os, tempfile
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
made = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
made.pre_tokenizer = pre_tokenizers.Whitespace()
made.enable_truncation(4)
made.enable_padding(length=6, pad_id=2, pad_token="[UNK]")
path = os.path.join(tempfile.mkdtemp(), "tokenizer.json")
made.save(path)
text = "a b a b a b a"
seen = (Tokenizer.from_file(path).encode(text).ids, PreTrainedTokenizerFast(tokenizer_file=path)(text)["input_ids"])
print("tokenizers   ", seen[0])
print("transformers ", seen[1])
assert seen == ([0, 1, 0, 1, 2, 2], [0, 1, 0, 1, 0, 1, 0]), seen
PY
echo "as described"
