#!/usr/bin/env bash
# SentencePiece takes prompts that differ in blanks for one.
#
# Version: sentencepiece 0.2.3. Seen: a model that was trained with the defaults drops leading, trailing and doubled white space, ends of lines too, and folds
# full-width letters: five different texts have the same ids. With normalization_rule_name=identity and remove_extra_whitespaces=False
# they are five.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check sentencepiece==0.2.3
"$here/venv/bin/python" - <<'PY'
import io, sentencepiece
texts = ["hello world", "hello  world", " hello world ", "hello world\n\n", "ｈello world"]
def kinds(**more):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["hello world this is a text", "a b c d e f g"] * 50), model_writer=model,
                                             vocab_size=300, model_type="bpe", byte_fallback=True, hard_vocab_limit=False, minloglevel=2, **more)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return len({tuple(processor.encode(text)) for text in texts})
seen = (kinds(), kinds(normalization_rule_name="identity", remove_extra_whitespaces=False))
print(f"{len(texts)} texts: {seen[0]} kind of ids by default, {seen[1]} kinds without normalization")
assert seen == (1, 5), seen
PY
echo "as described"
