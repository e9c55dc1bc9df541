"""What do the comparing commands share? Building the peers, the log of records, and a line about the machine."""

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

CARGO_MISSING = """the published peers need cargo, Rust's build tool, {minimum} or newer{found}.
  Debian 12:  apt-get install cargo-web rustc-web   (not `cargo`, which is 0.66 there)
  elsewhere:  Rust's own installer, or the distribution's packages
Without the peers:  tools/bench/compare --peers '' ..."""
RUST_MINIMUM = (1, 85)  # the first with the edition that dynamo-kv-router is written in


class Failure(Exception):
    """Something a person can put right."""


def call(command, folder):
    if subprocess.run(command, cwd=folder, stdout=sys.stderr).returncode:
        raise Failure(f"failed: {' '.join(command)}")


def last_json(command, timeout_s):
    """The last line of JSON that a benchmark prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise Failure(f"{' '.join(command)}: {(done.stderr.strip().splitlines() or ['no figures'])[-1]}")
    return json.loads(lines[-1])


def check_cargo():
    minimum = ".".join(map(str, RUST_MINIMUM))
    if not shutil.which("cargo"):
        raise Failure(CARGO_MISSING.format(minimum=minimum, found="; there is none here"))
    told = subprocess.run(["cargo", "--version"], capture_output=True, text=True).stdout
    match = re.search(r"(\d+)\.(\d+)", told)
    if not match or tuple(map(int, match.groups())) < RUST_MINIMUM:
        raise Failure(CARGO_MISSING.format(minimum=minimum, found=f"; here it is '{told.strip()}'"))


class Log:
    """Collects records, tells them, and writes them down as they come."""

    def __init__(self, path, told_of):
        self.told_of = told_of
        self.records = []
        self.file = open(path, "a", encoding="utf-8") if path else None

    def write(self, record):
        if self.file:
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()

    def add(self, record):
        self.records.append(record)
        self.write(record)
        print(f"{record['input']} {record['mode']:6} {record['structure']:20} {self.told_of(record)}", file=sys.stderr)


def machine():
    """One line about where this was measured."""
    def first(path, pattern, otherwise):
        try:
            with open(path, encoding="utf-8") as file:
                match = re.search(pattern, file.read())
        except OSError:
            match = None
        return match[1].strip() if match else otherwise
    model = first("/proc/cpuinfo", r"model name\s*:\s*(.*)", platform.machine())
    memory = int(first("/proc/meminfo", r"MemTotal:\s*(\d+)", "0")) / 2**20
    pages = first("/sys/kernel/mm/transparent_hugepage/enabled", r"\[(\w+)\]", "unknown")
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return (f"{datetime.date.today()}, {model}, {os.cpu_count()} cores, {memory:.0f} GiB, huge pages: {pages}, "
            f"load before: {os.getloadavg()[0]:.1f}, kvatlas {commit.stdout.strip() or 'unknown'}")


def earlier_records(paths):
    records, heads = [], []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                record = json.loads(line)
                (heads if "machine" in record else records).append(record)
    return records, [head["machine"] for head in heads]


def names(text):
    return [name for name in text.split(",") if name]


def one_of(*known):
    def parse(text):
        for name in names(text):
            if name not in known:
                raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(known)}")
        return names(text)
    return parse


def positive(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return int(text)
