#!/usr/bin/env python3
"""The chart without helm: values against their schema, flags and version against the binaries. chart_test.py BINARY..."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

import jsonschema
import yaml

import chart_files

BINARIES = {}  # component: path


class ValuesTest(unittest.TestCase):
    def setUp(self):
        self.schema = json.loads(chart_files.SCHEMA.read_text())
        self.defaults = chart_files.defaults()

    def errors(self, values):
        return [f"{'/'.join(map(str, error.absolute_path))}: {error.message}"
                for error in jsonschema.Draft7Validator(self.schema).iter_errors(values)]

    def test_the_schema_is_one(self):
        jsonschema.Draft7Validator.check_schema(self.schema)

    def test_defaults_and_value_sets_match_the_schema(self):
        self.assertEqual(self.errors(self.defaults), [])
        sets = chart_files.value_sets()
        self.assertEqual(len(sets), 9)
        for path, values in sets.items():
            self.assertEqual(self.errors(chart_files.merge(self.defaults, values)), [], path.name)

    def test_mistakes_are_refused(self):
        for mistake in [
                {"leaf": {"cells": []}},
                {"leaf": {"cells": [{"name": "Not-a-label"}]}},
                {"leaf": {"cells": [{"name": "a", "replica": 2}]}},
                {"leaf": {"flags": {"--lease-ttl": "1s"}}},
                {"discovery": "etcd"},
                {"discovery": "redis"},  # without redis.secret
                {"gaie": {"enabled": True}},  # without a selector
                {"gaie": {"targetPorts": []}},
                {"gaie": {"targetPorts": [8000, 8000]}},
                {"gaie": {"targetPorts": list(range(8000, 8009))}},
                {"gaie": {"provider": "nginx"}},
                {"gaie": {"pool": ["llama"]}},
                {"frontend": {"extProc": {"tls": "maybe"}}},
                {"networkpolicy": {"enabled": False}},
                {"engines": [{"name": "x", "cell": "a", "model": "m", "port": 8000, "container": {}}]},
                {"image": {"digest": "latest"}},
                {"tls": {"policy": {"rules": [{"identity": "leaf/*/*", "allow": ["everything"]}]}}},
        ]:
            self.assertNotEqual(self.errors(chart_files.merge(self.defaults, mistake)), [], mistake)

    def test_every_value_has_a_default_and_every_default_a_schema(self):
        def walk(schema, values, path):
            schema = self.schema["definitions"][schema["$ref"].split("/")[-1]] if "$ref" in schema else schema
            properties = schema.get("properties")
            if not properties or not isinstance(values, dict):
                return
            for name, below in properties.items():
                if path + name in ("global", "tls.policy.names", "tls.policy.revoked", "tls.policy.tenants"):
                    continue  # of helm's own; optional
                if path.endswith(".resources."):
                    continue
                self.assertIn(name, values, f"values.yaml has no default of {path}{name}")
                walk(below, values[name], f"{path}{name}.")

        walk(self.schema, self.defaults, "")

    def test_value_sets_say_what_they_are_for(self):
        readme = (chart_files.CHART / "README.md").read_text()
        for path in chart_files.value_sets():
            self.assertTrue(path.read_text().startswith("# "), path.name)
            self.assertIn(path.name, readme)


class FlagsTest(unittest.TestCase):
    def test_flags_exist(self):
        for component, binary in BINARIES.items():
            known = chart_files.flags_of_binary(binary)
            self.assertIn("config", known)
            named = chart_files.flags_of_template(component)
            self.assertGreater(len(named), 6, component)
            for values in [chart_files.defaults(), *chart_files.value_sets().values()]:
                named |= chart_files.flags_of_values(component, values)
            self.assertEqual(sorted(named - known), [], f"the chart gives {binary} flags that it does not have")

    def test_a_flag_that_does_not_exist_is_found(self):
        values = {"leaf": {"cells": [{"name": "a", "flags": {"no_such_flag": 1}}]}}
        self.assertIn("no_such_flag", chart_files.flags_of_values("leaf", values))


class ProbesTest(unittest.TestCase):
    def test_processes_answer_their_probes(self):
        probes = chart_files.defaults()["probes"]
        for component, binary in BINARIES.items():
            if component == "serve":
                continue  # it is ready once an engine answers: its own tests say so
            with tempfile.TemporaryDirectory() as scratch:
                ready = os.path.join(scratch, "ready")
                # Ports are free ones. With nothing around it each process is live, and ready or not.
                arguments = ["--http=127.0.0.1:0", f"--ready_file={ready}"]
                if component != "relay":
                    arguments.append("--grpc=127.0.0.1:0")
                process = subprocess.Popen([binary, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                try:
                    address = re.search(r"http=(\S+)", process.stdout.readline()).group(1)
                    self.assertEqual(self.status_of(f"http://{address}{probes['livePath']}"), 200, component)
                    self.assertIn(self.status_of(f"http://{address}{probes['readyPath']}"), (200, 503), component)
                    self.assertEqual(self.status_of(f"http://{address}/no-such-path"), 404)
                finally:
                    process.terminate()
                    process.communicate()
                self.assertEqual(process.returncode, 0, component)

    @staticmethod
    def status_of(url):
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code


class VersionTest(unittest.TestCase):
    def test_the_chart_installs_this_version(self):
        chart = yaml.safe_load((chart_files.CHART / "Chart.yaml").read_text())
        for binary in BINARIES.values():
            said = subprocess.run([binary, "--version"], check=True, capture_output=True, text=True).stdout
            self.assertIn(chart["appVersion"], re.findall(r"\d+\.\d+\.\d+", said), binary)


if __name__ == "__main__":
    NAMES = {path: pathlib.Path(path).name for path in sys.argv[1:]}
    BINARIES = {"serve" if name == "kvatlas" else name.removeprefix("kvatlas-"): path for path, name in NAMES.items()}
    unittest.main(argv=sys.argv[:1])
