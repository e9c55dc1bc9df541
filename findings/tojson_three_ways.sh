#!/usr/bin/env bash
# One tool, three JSON texts: `tojson` is another function in each template engine.
#
# Versions: jinja2 3.1.6, transformers 5.24.0, minijinja 2.24.0. Seen: Jinja2 sorts keys and escapes <, > and what is not ASCII; transformers replaces
# the filter by json.dumps, which keeps the order and every character; MiniJinja keeps the order, escapes < and >, and has no blank
# behind : and ,.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check jinja2==3.1.6 transformers==5.24.0 minijinja==2.24.0
"$here/venv/bin/python" - <<'PY'
import jinja2, minijinja
from transformers.utils.chat_template_utils import _compile_jinja_template
tools = [{"type": "function", "name": "größer", "about": "<b>"}]
source = "{{ tools | tojson }}"
seen = {"Jinja2": jinja2.Environment().from_string(source).render(tools=tools),
        "transformers": _compile_jinja_template(source).render(tools=tools),
        "MiniJinja": minijinja.Environment().render_str(source, tools=tools)}
for name, text in seen.items(): print(f"{name:12} {text}")
assert seen == {"Jinja2": r'[{"about": "\u003cb\u003e", "name": "gr\u00f6\u00dfer", "type": "function"}]',
                "transformers": '[{"type": "function", "name": "größer", "about": "<b>"}]',
                "MiniJinja": r'[{"type":"function","name":"größer","about":"\u003cb\u003e"}]'}, seen
PY
echo "as described"
