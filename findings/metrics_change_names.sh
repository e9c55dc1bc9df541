#!/usr/bin/env bash
# A scraper that asks for OpenMetrics gets an engine's metrics under other names.
#
# Version: prometheus_client 0.26.0, which vLLM and SGLang use. Seen: a counter vllm:prompt_tokens is vllm:prompt_tokens_total as text, and vllm_prompt_tokens_total where Accept asks for
# application/openmetrics-text without escaping=allow-utf-8; the suffix _total is added, and a second series _created with a time in it.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet --disable-pip-version-check prometheus_client==0.26.0
"$here/venv/bin/python" - <<'PY'
from prometheus_client import CollectorRegistry, Counter, exposition
registry = CollectorRegistry()
Counter("vllm:prompt_tokens", "of prompts", registry=registry).inc(3)
def names(accept):
    encode, _ = exposition.choose_encoder(accept)
    return sorted(line.split()[0] for line in encode(registry).decode().splitlines() if not line.startswith("#"))
openmetrics = "application/openmetrics-text; version=1.0.0"
seen = [names(""), names(openmetrics), names(openmetrics + "; escaping=allow-utf-8")]
for one in seen: print(one)
assert seen == [["vllm:prompt_tokens_created", "vllm:prompt_tokens_total"], ["vllm_prompt_tokens_created", "vllm_prompt_tokens_total"],
                ["vllm:prompt_tokens_created", "vllm:prompt_tokens_total"]], seen
PY
echo "as described"
