#!/usr/bin/env bash
# What is a list of token ids, and what is true? Pydantic takes more than JSON's types say.
#
# Version: pydantic 2.14.4, lax mode, as the OpenAI servers of engines use it. Seen: [true, false], [1.0, 2.0] and [1, "2"] are lists of integers, ["1", "2"] is
# one of texts, [1.5] is refused; "on", "y" and 1.0 are true; "1_000" is a thousand.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check pydantic==2.14.4
"$here/venv/bin/python" - <<'PY'
from pydantic import BaseModel, ValidationError
class Request(BaseModel):
    prompt: list[int] | list[list[int]] | str | list[str] | None = None
    stream: bool | None = None
    n: int | None = None
def take(**field):
    try: return next(iter(Request(**field).model_dump(exclude_unset=True).values()))
    except ValidationError: return "refused"
seen = [(value, take(prompt=value)) for value in ([True, False], [1.0, 2.0], [1, "2"], ["1", "2"], [1.5])]
seen += [(value, take(stream=value)) for value in ("on", "y", 1.0, 2)] + [(value, take(n=value)) for value in ("1_000", 2.0, 2.5)]
for value, read in seen: print(f"{value!r:16} is {read!r}")
assert [read for _, read in seen] == [[1, 0], [1, 2], [1, 2], ["1", "2"], "refused", True, True, True, "refused", 1000, 2, "refused"], seen
PY
echo "as described"
