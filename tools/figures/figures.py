#!/usr/bin/env python3
"""Renders the tables of measured figures in READMEs from docs/figures.json, where each has its command, commit and machine.

tools/figures/figures.py render            writes the tables into the READMEs
tools/figures/figures.py check             fails where a README shows other figures than the file
tools/figures/figures.py list              the tables: README, name, commit, date, command
tools/figures/figures.py run README NAME   runs the table's command, and records the Markdown table that it prints
tools/figures/figures.py record README NAME --command COMMAND [--machine TEXT] < OUTPUT
                                           records the first Markdown table in OUTPUT, for the present commit

A README has each table between two comments, `<!-- figures: NAME -->` and `<!-- figures end -->`. What stands between
them is overwritten by `render`: measure and record, never edit it. `record` and `run` render as well. Pictures of some columns of a table are
made of the same figures: "plots" in docs/figures.json.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import plot  # noqa: E402  (lies beside this script)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
FILE = "docs/figures.json"
BEGIN = re.compile(r"^<!-- figures: ([\w-]+) -->$")
END = "<!-- figures end -->"
RULE = re.compile(r"^\|(?: *:?-+:? *\|)+$")
FIELDS = {"commit": str, "date": str, "machine": str, "command": str, "head": list, "align": list, "rows": list}


class Failure(Exception):
    """What is wrong with the file, a README or the command line, for a person."""


def load_file(root):
    with open(os.path.join(root, FILE), encoding="utf-8") as file:
        return json.load(file)


def load(root):
    try:
        tables = load_file(root)["tables"]
    except (OSError, ValueError, KeyError) as error:
        raise Failure(f"{FILE}: {error}") from error
    for readme, names in tables.items():
        for name, table in names.items():
            validate(f"{FILE}: {readme}: {name}", table)
    return tables


def validate(where, table):
    for field, kind in FIELDS.items():
        if not isinstance(table.get(field), kind) or not table[field]:
            raise Failure(f"{where}: needs a {kind.__name__} '{field}'")
    unknown = set(table) - set(FIELDS)
    if unknown:
        raise Failure(f"{where}: unknown fields {sorted(unknown)}; known are {sorted(FIELDS)}")
    width = len(table["head"])
    for row in [table["align"]] + table["rows"]:
        if len(row) != width:
            raise Failure(f"{where}: {len(row)} cells where the head has {width}: {row}")


def save(root, tables):
    """One row of a table a line, so that a change of a figure is a change of its line."""
    plots = load_file(root).get("plots", {}) if os.path.exists(os.path.join(root, FILE)) else {}
    text = json.dumps({"version": 1, **({"plots": plots} if plots else {}), "tables": tables}, ensure_ascii=False, indent=1)
    flat = re.sub(r"\[\s+((?:\"(?:[^\"\\]|\\.)*\",?\s+)+)\]",
                  lambda match: "[" + re.sub(r"\s*\n\s*", " ", match.group(1).strip()) + "]", text)
    with open(os.path.join(root, FILE), "w", encoding="utf-8") as file:
        file.write(flat + "\n")


def table_lines(table):
    def line(cells):
        return "| " + " | ".join(cells) + " |" if any(cells) else "|" + " |" * len(cells)

    rule = "|" + "|".join(table["align"]) + "|"
    return [line(table["head"]), rule] + [line(row) for row in table["rows"]]


def rendered(readme, text, names):
    """The README's text with its tables as the file has them."""
    lines, out, seen, at = text.split("\n"), [], set(), 0
    while at < len(lines):
        out.append(lines[at])
        begin = BEGIN.match(lines[at])
        at += 1
        if not begin:
            continue
        name = begin.group(1)
        if name not in names:
            raise Failure(f"{readme}: table '{name}' is not in {FILE}; known: {', '.join(sorted(names)) or 'none'}")
        if name in seen:
            raise Failure(f"{readme}: table '{name}' appears twice")
        seen.add(name)
        try:
            end = lines.index(END, at)
        except ValueError:
            raise Failure(f"{readme}: table '{name}' has no line {END}") from None
        out += table_lines(names[name])
        at = end
    for name in sorted(set(names) - seen):
        raise Failure(f"{readme}: lacks '<!-- figures: {name} -->', which {FILE} has")
    return "\n".join(out)


def read(root, readme):
    try:
        with open(os.path.join(root, readme), encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise Failure(f"{readme}: {error.strerror}; {FILE} has tables of it") from error


def plots(root):
    """{path: text} of the pictures: "plots" has for each its title, table and columns, which figures have names of their own in it."""
    tables, made = load(root), {}
    for path, asked in load_file(root).get("plots", {}).items():
        table = tables.get(asked["readme"], {}).get(asked["table"])
        if table is None:
            raise Failure(f"{FILE}: {path}: no table '{asked['table']}' of {asked['readme']}")
        missing = set(asked["columns"]) - set(table["head"])
        if missing:
            raise Failure(f"{FILE}: {path}: no column {sorted(missing)}; the table has {table['head']}")
        panels = []
        for column, title in asked["columns"].items():
            at = table["head"].index(column)
            panels.append((title, [(row[0], row[at]) for row in table["rows"] if row[0] not in asked.get("without", [])]))
        made[path] = plot.svg(asked["title"], panels, asked["ours"])
    return made


def check(root):
    """Findings, one a line."""
    found = []
    tables = load(root)
    for readme, names in tables.items():
        text = read(root, readme)
        want = rendered(readme, text, names)
        for number, (have, should) in enumerate(zip(text.split("\n"), want.split("\n")), 1):
            if have != should:
                found.append(f"{readme}:{number}: shows other figures than {FILE}; run tools/figures/figures.py render")
                break
        else:
            if text != want:
                found.append(f"{readme}: shows other figures than {FILE}; run tools/figures/figures.py render")
    for path, want in plots(root).items():
        if not os.path.exists(os.path.join(root, path)) or read(root, path) != want:
            found.append(f"{path}: shows other figures than {FILE}; run tools/figures/figures.py render")
    listed = subprocess.run(["git", "-c", "safe.directory=*", "grep", "-lE", "^<!-- figures: ", "--", "*.md"], cwd=root,
                            capture_output=True, text=True, check=False)
    for readme in listed.stdout.split():
        if readme not in tables:
            found.append(f"{readme}: has tables that {FILE} does not")
    return found


def render(root):
    for readme, names in load(root).items():
        text = read(root, readme)
        want = rendered(readme, text, names)
        if text != want:
            with open(os.path.join(root, readme), "w", encoding="utf-8") as file:
                file.write(want)
            print(f"{readme}: rendered")
    for path, want in plots(root).items():
        if not os.path.exists(os.path.join(root, path)) or read(root, path) != want:
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(want)
            print(f"{path}: rendered")


def parse_table(text):
    """The first Markdown table in a text: head, align, rows."""
    lines = text.split("\n")
    for at in range(len(lines) - 1):
        if not lines[at].startswith("|") or not RULE.match(lines[at + 1]):
            continue
        end = at + 2
        while end < len(lines) and lines[end].startswith("|"):
            end += 1
        rows = [[cell.strip() for cell in line.strip()[1:-1].split("|")] for line in lines[at:end]]
        return {"head": rows[0], "align": rows[1], "rows": rows[2:]}
    raise Failure("no Markdown table in the output: a line that begins with '|', and one of dashes below it")


def machine():
    """What this machine is, as far as its kernel tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            models = re.findall(r"^model name\s*: (.*)$", file.read(), re.MULTILINE)
    except OSError:
        models = []
    return f"{len(models)} hardware threads, {models[0]}" if models else "unknown"


def record(root, readme, name, command, output, on):
    tables = load(root)
    commit = subprocess.run(["git", "-c", "safe.directory=*", "rev-parse", "--short=10", "HEAD"], cwd=root,
                            capture_output=True, text=True, check=True).stdout.strip()
    table = {"commit": commit, "date": datetime.date.today().isoformat(), "machine": on or machine(),
             "command": command, **parse_table(output)}
    validate(f"{readme}: {name}", table)
    rendered(readme, read(root, readme), {**tables.get(readme, {}), name: table})  # fails before anything is written
    tables.setdefault(readme, {})[name] = table
    save(root, tables)
    render(root)


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=ROOT, help="the repository")
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action in ("render", "check", "list"):
        commands.add_parser(action)
    for action in ("run", "record"):
        one = commands.add_parser(action)
        one.add_argument("readme", metavar="README")
        one.add_argument("name", metavar="NAME")
        one.add_argument("--machine", default="", help="default: this one's processor")
        if action == "record":
            one.add_argument("--command", required=True, help="what printed the table")
    options = parser.parse_args(arguments)
    try:
        if options.action == "render":
            render(options.root)
        elif options.action == "check":
            found = check(options.root)
            print("\n".join(found) if found else f"{FILE} and the READMEs agree")
            return 1 if found else 0
        elif options.action == "list":
            for readme, names in load(options.root).items():
                for name, table in names.items():
                    print(f"{readme}  {name}  {table['commit']}  {table['date']}  {table['command']}")
        else:
            known = load(options.root).get(options.readme, {}).get(options.name)
            if options.action == "run" and known is None:
                raise Failure(f"no table '{options.name}' of {options.readme} in {FILE}; see `list`")
            command = known["command"] if options.action == "run" else options.command
            output = (subprocess.run(["bash", "-c", command], cwd=options.root, stdout=subprocess.PIPE, text=True,
                                     check=True).stdout if options.action == "run" else sys.stdin.read())
            record(options.root, options.readme, options.name, command, output, options.machine)
    except (Failure, subprocess.CalledProcessError) as error:
        print(f"figures.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
