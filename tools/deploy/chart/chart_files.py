"""The chart as files, without helm: its values, its schema, and the flags that its templates and values name."""

import pathlib
import re
import subprocess

import yaml

CHART = pathlib.Path(__file__).parent / "kvatlas"
SCHEMA = CHART / "values.schema.json"
# The binary of each component, and the template that starts it.
TEMPLATES = {
    "leaf": "leaf.yaml",
    "hierarchy": "hierarchy.yaml",
    "frontend": "frontend.yaml",
    "relay": "_relay.tpl",
    "serve": "serve.yaml",
}


def value_sets():
    """Path and content of values-*.yaml."""
    return {path: yaml.safe_load(path.read_text()) for path in sorted(CHART.glob("values-*.yaml"))}


def merge(base, over):
    """As helm merges a values file over the defaults: maps key by key, all else as a whole."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return {key: merge(base[key], over[key]) if key in base and key in over else over.get(key, base.get(key))
            for key in {**base, **over}}


def defaults():
    return yaml.safe_load((CHART / "values.yaml").read_text())


def flags_of_template(component):
    """Names of flags that the component's template sets, those of all components included."""
    text = (CHART / "templates" / TEMPLATES[component]).read_text()
    names = set(re.findall(r'set \$flags "(\w+)"', text))
    start = text.index("$flags := dict")
    names |= set(re.findall(r'^\s+"(\w+)" [("]', text[start:text.index("}}", start)], re.M))
    helpers = (CHART / "templates" / "_helpers.tpl").read_text()
    common = re.search(r'define "kvatlas.commonFlags" -}}(.*?){{- end -}}\n', helpers, re.S).group(1)
    return names | set(re.findall(r"^(\w+): ", common, re.M))


def flags_of_values(component, values):
    """Names of flags that values set for the component."""
    if component == "serve" and not (values.get("serve") or {}).get("enabled"):
        return set()
    of = "frontend" if component == "serve" else component
    names = set(values.get("flags") or {}) | set((values.get(of) or {}).get("flags") or {})
    if component == "leaf":
        for cell in (values.get("leaf") or {}).get("cells") or []:
            names |= set(cell.get("flags") or {})
    return names


def flags_of_binary(path):
    """Names of flags in its --help."""
    command = [path, "serve"] if pathlib.Path(path).name == "kvatlas" else [path]
    text = subprocess.run([*command, "--help"], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"^\s+--(\w+)", text, re.M))
