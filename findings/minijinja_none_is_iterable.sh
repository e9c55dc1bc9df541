#!/usr/bin/env bash
# MiniJinja's tests of kinds are not Jinja2's.
#
# Versions: minijinja 2.24.0, jinja2 3.1.6. Seen: `none is iterable` is true in MiniJinja and false in Jinja2, where it asks iter();
# `'' is sequence` and `{} is sequence` are false in MiniJinja and true in Jinja2, where it asks len() and [].
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check minijinja==2.24.0 jinja2==3.1.6
"$here/venv/bin/python" - <<'PY'
import jinja2, minijinja
seen = {}
for text in ("none is iterable", "'' is sequence", "{} is sequence", "[] is sequence", "[] is iterable"):
    source = "{{ 1 if " + text + " else 0 }}"
    seen[text] = (minijinja.render_str(source), jinja2.Template(source).render())
    print(f"{text:18} MiniJinja {seen[text][0]}, Jinja2 {seen[text][1]}")
assert seen == {"none is iterable": ("1", "0"), "'' is sequence": ("0", "1"), "{} is sequence": ("0", "1"),
                "[] is sequence": ("1", "1"), "[] is iterable": ("1", "1")}, seen
PY
echo "as described"
