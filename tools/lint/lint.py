#!/usr/bin/env python3
"""Holds the repository to its own rules. Usage: lint.py [--root DIR] [--fix [PATH...]]

Prints one line per finding, `path:line: [check] what is wrong`, and fails if there is one. The checks:
format (clang-format), include (which folder may include which), missing (what a file uses and does not include), guard (header
guards), link (relative links and their headings in
Markdown), shown (code below a link "[file](file):" is part of that file), readme (a README per folder), machine_path (paths of a particular machine), open_end (work left
undone in comments), sleep (sleeping tests), clock (wall clock in pure folders), person (a process,
a thread or a peer is "it"), length (long files), width (comments within 100 columns), twin (one name for two types, functions or inline variables:
the linker takes one of the two without a word).
The rules are data: rules.py. --fix formats, everything or what lies under the paths.
"""

import argparse
import os
import re
import subprocess
import sys

import definitions
import includes
import rules

CLANG_FORMAT = "clang-format-19"

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')
PROTO_IMPORT = re.compile(r'^\s*import\s+(?:public\s+|weak\s+)?(")([^"]+)"')
# [text](target), also for images; a title after the target is dropped below.
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
SHOWN_CODE = re.compile(r"\]\(([^)\s#]+)\):\n\n```[\w+]+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Written so that these lines do not find themselves.
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:work|home|root)[/]|\.\.[/]shared\b")
OPEN_END = re.compile(r"\b(?:TO[D]O|FIX[M]E|XX[X])\b")
SLEEP = re.compile(r"\b(?:sleep_for|sleep_until|SleepFor|usleep|nanosleep)\s*\(|\btime\.sleep\s*\(")
PROSE = re.compile(r"^\s*//[/!]? ")
# Tables, pictures, addresses and samples of code may be wider.
PICTURE = re.compile(r"[\u2190-\u21ff\u2500-\u25ff]|\S {2,}\S|\w://\S{40}|[{};]$|\{\"")
PERSON = re.compile(r"\b(?:no[b]ody|who[e]ver|some[b]ody|who[m]|h[e]|h[i]s|h[i]m)\b", re.IGNORECASE)
CLOCK = re.compile(r"\b(?:system_clock|steady_clock|high_resolution_clock)\b|\babsl::Now\s*\(")


class Tree:
    """The files of a repository: paths relative to `root`, and their text."""

    def __init__(self, root):
        self.root = root
        self.anchors = {}  # of pages, by path
        self.files = sorted(p for p in self._list() if self._is_plain(p))

    def _is_plain(self, path):
        full = os.path.join(self.root, path)
        return os.path.isfile(full) and not os.path.islink(full)

    def _list(self):
        """What git tracks or would track; without git, what lies there."""
        if os.path.exists(os.path.join(self.root, ".git")):
            try:
                listed = subprocess.run(
                    ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others",
                     "--exclude-standard"],
                    cwd=self.root, capture_output=True, check=True)
                return {os.fsdecode(p) for p in listed.stdout.split(b"\0") if p}
            except (OSError, subprocess.CalledProcessError):
                pass
        found = set()
        for folder, folders, names in os.walk(self.root):
            folders[:] = [f for f in folders if f not in (".git", "__pycache__")
                          and not f.startswith("bazel-")]
            found.update(os.path.relpath(os.path.join(folder, n), self.root) for n in names)
        return found

    def lines(self, path):
        """The lines of a text file; none for a binary one."""
        with open(os.path.join(self.root, path), "rb") as file:
            content = file.read()
        if b"\0" in content[:8192]:
            return []
        return content.decode("utf-8", errors="replace").splitlines()


class Findings(list):
    def add(self, path, line, check, text):
        self.append((path, line, check, text))


def is_test(path):
    stem = os.path.splitext(path)[0]
    return stem.endswith(("_test", "_test_util", "_benchmark", "_fuzz")) or path.startswith("tests/")


def may_use_testing(path):
    name = os.path.basename(os.path.splitext(path)[0])
    return is_test(path) or name.endswith("_harness") or name.startswith("fake_")


def folder_of(path):
    """The folder of rules.ROWS that `path` lies in, or None."""
    for row in rules.ROWS:
        for folder in row:
            if path.startswith(folder + "/"):
                return folder
    return None


def row_of(folder):
    return next(i for i, row in enumerate(rules.ROWS) if folder in row)


def check_includes(tree, findings):
    ours = {row_folder.split("/")[0] for row in rules.ROWS for row_folder in row}
    for path in tree.files:
        if not path.endswith(rules.CPP + (".c", ".proto")):
            continue
        pattern = PROTO_IMPORT if path.endswith(".proto") else INCLUDE
        here = folder_of(path)
        if here is None:
            findings.add(path, 1, "include", "this folder is in no row of tools/lint/rules.py")
            continue
        name = os.path.basename(path)
        is_main = name == "main.cc" or name.endswith("_main.cc")
        row = 0 if is_main else row_of(here)
        for number, line in enumerate(tree.lines(path), 1):
            match = pattern.match(line)
            if not match:
                continue
            bracket, target = match.groups()
            there = folder_of(target)
            if there is None and target.split("/")[0] in ours and "/" in target and bracket == '"':
                findings.add(path, number, "include", f"{target} is in no row of tools/lint/rules.py")
            elif there is None:
                check_library(findings, path, number, here, target)
            elif target.startswith(rules.TESTING + "/") and may_use_testing(path):
                pass
            elif there != here and row != 0 and row_of(there) <= row:
                findings.add(path, number, "include",
                             f"{here} may not include {there}: only lower rows ({target})")


def check_library(findings, path, number, here, target):
    """An include of something that is not ours."""
    if here in rules.PURE and target in rules.PURE_FORBIDDEN_HEADERS and not is_test(path):
        findings.add(path, number, "include", f"{here} is pure: no <{target}>")
    if here not in rules.LIBRARIES or target in rules.SYSTEM_HEADERS:
        return
    if "/" not in target and "." not in target:
        return  # the C++ library
    allowed = rules.LIBRARIES[here] + (rules.TEST_LIBRARIES if is_test(path) else [])
    if not target.startswith(tuple(allowed)):
        findings.add(path, number, "include", f"{here} may not use {target}")


def check_missing_includes(tree, findings):
    sources = [path for path in tree.files if path.endswith(rules.CPP)]
    of_tree = includes.Includes(sources, lambda path: "\n".join(tree.lines(path)))
    for path in sources:
        for line, name, header in of_tree.missing(path):
            findings.add(path, line, "missing", f"{name} needs an #include of {header}")


def check_guards(tree, findings):
    for path in tree.files:
        if not path.endswith(".h") or path in rules.WITHOUT_GUARD:
            continue
        guard = "KVATLAS_" + re.sub(r"[^A-Z0-9]", "_", path.upper()) + "_"
        lines = tree.lines(path)
        first = next((i for i, line in enumerate(lines) if line.startswith("#")), None)
        if first is None or lines[first].split() != ["#ifndef", guard] \
                or lines[first + 1:first + 2] != [f"#define {guard}"]:
            findings.add(path, (first or 0) + 1, "guard", f"the guard should be {guard}")


def anchors_of(tree, path):
    """What a link to a heading of this page may name: GitHub's rule, for headings without a twin."""
    if path not in tree.anchors:
        found = set()
        in_code = False
        for line in tree.lines(path):
            if line.lstrip().startswith(("```", "~~~")):
                in_code = not in_code
            if heading := None if in_code else re.match(r"#{1,6}\s+(.*?)\s*#*$", line):
                text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
                found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
        tree.anchors[path] = found
    return tree.anchors[path]


def check_links(tree, findings):
    for path in tree.files:
        if not path.endswith(".md"):
            continue
        in_code = False
        for number, line in enumerate(tree.lines(path), 1):
            if line.lstrip().startswith(("```", "~~~")):
                in_code = not in_code
            if in_code:
                continue
            for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
                if re.match(r"[a-z][a-z0-9+.-]*:", target):
                    continue
                target, _, anchor = target.partition("#")
                full = os.path.normpath(os.path.join(tree.root, os.path.dirname(path), target))
                if not target:
                    full = os.path.join(tree.root, path)
                inside = full == tree.root or full.startswith(tree.root + os.sep)
                if target.startswith("/") or not inside or not os.path.exists(full):
                    findings.add(path, number, "link", f"{target} leads nowhere")
                elif anchor and full.endswith(".md") and \
                        anchor not in anchors_of(tree, os.path.relpath(full, tree.root)):
                    findings.add(path, number, "link",
                                 f"{target or 'this page'} has no heading #{anchor}")


def check_shown(tree, findings):
    """A page that shows a file's code shows what is in the file."""
    for path in (p for p in tree.files if p.endswith(".md")):
        text = "\n".join(tree.lines(path)) + "\n"
        for match in SHOWN_CODE.finditer(text):
            shown = os.path.normpath(os.path.join(os.path.dirname(path), match[1]))
            if shown in tree.files and match[2] not in "\n".join(tree.lines(shown)) + "\n":
                findings.add(path, text.count("\n", 0, match.start(2)) + 1, "shown",
                             f"the code is not in {shown}")


def check_readmes(tree, findings):
    """A folder with code has a README.md; below the first level its parent's counts too."""
    present = {os.path.dirname(p) for p in tree.files if os.path.basename(p) == "README.md"}
    filled = {os.path.dirname(p) for p in tree.files}
    for folder in sorted({os.path.dirname(p) for p in tree.files if p.endswith(rules.CODE)}):
        accepted = [folder]
        parent = os.path.dirname(folder)
        while os.path.dirname(parent) and parent not in filled:  # such as proto/kvatlas in proto/kvatlas/v1
            parent = os.path.dirname(parent)
        if parent:
            accepted.append(parent)
        if not present.intersection(accepted):
            findings.add(folder or ".", 1, "readme", "a folder with code has no README.md")


def check_text(tree, findings):
    for path in tree.files:
        lines = tree.lines(path)
        as_written = path.startswith(rules.AS_WRITTEN)
        pure = path.startswith(tuple(f + "/" for f in rules.PURE)) and not is_test(path)
        for number, line in enumerate(lines, 1):
            if MACHINE_PATH.search(line):
                findings.add(path, number, "machine_path", "a path of a particular machine")
            if not as_written and OPEN_END.search(line):
                findings.add(path, number, "open_end", "work left undone: do it or write an issue")
            if not as_written and PERSON.search(line):
                findings.add(path, number, "person", "name the process, thread or peer; it is no person")
            if is_test(path) and path.endswith(rules.CODE) and SLEEP.search(line):
                findings.add(path, number, "sleep", "a test does not sleep: wait for what happens")
            if pure and path.endswith(rules.CPP) and CLOCK.search(line):
                findings.add(path, number, "clock", "time comes from a Clock")
            if path.endswith(rules.CODE + (".rs",)) and not path.startswith(rules.AS_WRITTEN) and len(line) > rules.COLUMNS_MAX and PROSE.match(line) \
                    and not PICTURE.search(line):
                findings.add(path, number, "width", f"a comment of {len(line)} columns (at most {rules.COLUMNS_MAX})")
        if path.endswith(rules.CODE) and len(lines) > rules.LINES_MAX:
            findings.add(path, len(lines), "length",
                         f"{len(lines)} lines; tell the story in several files "
                         f"(at most {rules.LINES_MAX})")


def check_twins(tree, findings):
    """A type, function or inline variable is defined in one file."""
    first = {}
    for path in tree.files:
        if not path.endswith(rules.CPP):
            continue
        for line, name in definitions.definitions("\n".join(tree.lines(path))):
            where, at = first.setdefault(name, (path, line))
            if where != path:
                findings.add(path, line, "twin", f"{where}:{at} defines {name} too: rename one, or put one of a .cc "
                             "file into an unnamed namespace")


def fix_format(tree, under):
    """Formats the C++ files under the given paths of the tree; without paths, all."""
    paths = [p for p in tree.files if p.endswith(rules.CPP)
             and (not under or any(u == "." or p == u or p.startswith(u + "/") for u in under))]
    if paths:
        subprocess.run([CLANG_FORMAT, "-i", *paths], cwd=tree.root, check=True)


def check_format(tree, findings):
    paths = [p for p in tree.files if p.endswith(rules.CPP)]
    if not paths:
        return
    done = subprocess.run([CLANG_FORMAT, "--dry-run", *paths], cwd=tree.root, check=True,
                          capture_output=True, text=True)
    told = set()
    for line in done.stderr.splitlines():
        match = re.match(r"(.+?):(\d+):\d+: (?:warning|error): ", line)
        if match and match[1] not in told:
            told.add(match[1])
            findings.add(match[1], int(match[2]), "format",
                         "not as clang-format has it (tools/lint/lint.py --fix)")


def lint(root):
    tree = Tree(os.path.realpath(root))
    findings = Findings()
    check_format(tree, findings)
    check_includes(tree, findings)
    check_missing_includes(tree, findings)
    check_guards(tree, findings)
    check_links(tree, findings)
    check_shown(tree, findings)
    check_readmes(tree, findings)
    check_text(tree, findings)
    check_twins(tree, findings)
    return tree, sorted(findings)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=os.path.join(os.path.dirname(os.path.realpath(__file__)), "../.."))
    parser.add_argument("--fix", nargs="*", metavar="PATH", help="format these, or everything, first")
    arguments = parser.parse_args()
    if arguments.fix is not None:
        tree = Tree(os.path.realpath(arguments.root))
        fix_format(tree, [os.path.relpath(os.path.realpath(p), tree.root) for p in arguments.fix])
    tree, findings = lint(arguments.root)
    for path, line, check, text in findings:
        print(f"{path}:{line}: [{check}] {text}")
    print(f"lint: {len(tree.files)} files, {len(findings)} findings")
    return 1 if findings or not tree.files else 0


if __name__ == "__main__":
    sys.exit(main())
