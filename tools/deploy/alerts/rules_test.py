"""Do the alerts hold together? Every rule has a test in which it fires and one in which it is silent, an entry of the runbooks, a
severity and a summary; no entry and no test is without its rule; promtool finds nothing wrong and all of its tests pass.

    rules_test.py RULES RUNBOOKS TEST...
"""

import re
import subprocess
import sys

SEVERITIES = ("critical", "warning", "info")


def rules_of(text):
    """The text of each rule, by the alert's name."""
    parts = re.split(r"^  - alert: (\w+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def problems_of_rule(name, rule, runbooks, tests):
    severity = re.search(r"severity: (\w+)", rule)
    if severity is None or severity.group(1) not in SEVERITIES:
        yield f"severity: expected one of {', '.join(SEVERITIES)}"
    if not re.search(r'^      summary: ".{20,}"$', rule, flags=re.MULTILINE):
        yield "expected a summary of at least 20 characters"
    if f"runbook: docs/runbooks.md#{name.lower()}\n" not in rule:
        yield f"expected the annotation runbook: docs/runbooks.md#{name.lower()}"
    if name not in runbooks:
        yield f"expected an entry '### {name}' in docs/runbooks.md"
    for part in ("What it means", "What users notice", "Confirm", "Remedy", "Escalate"):
        if name in runbooks and f"*{part}.*" not in runbooks[name]:
            yield f"its runbook entry has no paragraph *{part}.*"
    if f"{name} fires" not in tests:
        yield f"expected a test '{name} fires'"
    elif f'alertname="{name}"' not in tests[f"{name} fires"]:
        yield f"its test '{name} fires' does not expect it"
    silent = [test for test in tests if test.startswith(f"{name} is silent")]
    if not silent:
        yield f"expected a test '{name} is silent, REASON'"
    elif any("ALERTS{alertname=" in tests[test] for test in silent):
        yield f"its test '{silent[0]}' expects an alert"


def main(rules_path, runbooks_path, *test_paths):
    with open(rules_path, encoding="utf-8") as file:
        rules = rules_of(file.read())
    with open(runbooks_path, encoding="utf-8") as file:
        parts = re.split(r"^### (\w+)$", file.read(), flags=re.MULTILINE)
    runbooks = dict(zip(parts[1::2], parts[2::2]))
    tests = {}
    for path in test_paths:
        with open(path, encoding="utf-8") as file:
            parts = re.split(r"^- name: (.+)$", file.read(), flags=re.MULTILINE)
        tests.update(zip(parts[1::2], parts[2::2]))

    found = [f"{name}: {problem}" for name, rule in rules.items()
             for problem in problems_of_rule(name, rule, runbooks, tests)]
    found += [f"docs/runbooks.md: no rule of the name {name}" for name in runbooks if name not in rules]
    found += [f"no rule for the test '{test}'" for test in tests if test.split()[0] not in rules]
    for command in (["check", "rules", rules_path], ["test", "rules", *test_paths]):
        checked = subprocess.run(["promtool", *command], capture_output=True, text=True, check=False)
        if checked.returncode != 0:
            found.append(f"promtool {command[0]} {command[1]}:\n{checked.stdout}{checked.stderr}")
    for problem in found:
        print(problem)
    print(f"{len(rules)} rules, {len(tests)} tests, {len(runbooks)} runbook entries, {len(found)} problems")
    return 1 if found or not rules else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
