"""`k8s:SERVICE` against a real API server, by the flags and the service account that an installed chart gives."""

import json
import os
import pathlib
import re
import subprocess
import time
import urllib.request

import chart_files
import deploy_tools
from api_server import PORT

NAMESPACE = "check-discovery"
ACCOUNT_DIR = "/run/secrets/kubernetes.io/serviceaccount"
DEADLINE_S = 90
GRPC_PORT = 7420
LOST = 'event="connection lost" connection=directory'


class Process:
    """A process of ours with the account and the variables that a pod has."""

    def __init__(self, binary, account, api, log, *arguments, words=()):
        self.log = log
        # The account lies where a pod has it, for this process alone.
        command = f'mount --bind "$1" {ACCOUNT_DIR} && shift && exec "$@"'
        with open(log, "w") as file:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", command, "sh", account, binary, *words, "--http=127.0.0.1:0", "--insecure", *arguments],
                stdout=file, stderr=file, stdin=subprocess.DEVNULL,
                env={**os.environ, "KUBERNETES_SERVICE_HOST": api.address, "KUBERNETES_SERVICE_PORT": str(PORT)})
        self.http = await_that(lambda: self.place("http"), f"{binary} is ready", self)

    def text(self):
        return pathlib.Path(self.log).read_text()

    def place(self, name):
        if self.process.poll() is not None:
            raise SystemExit(f"the process ended with {self.process.returncode}: {self.text()}")
        found = re.search(rf"^kvatlas-\w+ ready .*\b{name}=(\S+)", self.text(), re.M)
        return found and found.group(1)

    def status(self):
        with urllib.request.urlopen(f"http://{self.http}/status", timeout=30) as answer:
            return json.load(answer)

    def stop(self):
        self.process.terminate()
        if self.process.wait(timeout=DEADLINE_S) != 0:
            raise SystemExit(f"the process ended with {self.process.returncode}: {self.text()}")


def await_that(condition, what, process=None):
    until = time.monotonic() + DEADLINE_S
    while not (held := condition()):
        if time.monotonic() > until:
            raise SystemExit(f"not after {DEADLINE_S} s: {what}; {process.text() if process else ''}")
        time.sleep(0.05)
    return held


def slice_of(name, service, endpoints):
    return {
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": service}},
        "endpoints": [{"addresses": [address], "conditions": {"ready": ready}} for address, ready in endpoints],
        "ports": [{"name": "grpc", "port": GRPC_PORT, "protocol": "TCP"}],
    }


class Slices:
    def __init__(self, api):
        self.api = api
        self.path = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"

    def create(self, *arguments):
        self.api.request("POST", self.path, slice_of(*arguments))

    def replace(self, name, service, endpoints):
        self.api.request("PATCH", f"{self.path}/{name}", slice_of(name, service, endpoints))

    def delete(self, name):
        self.api.request("DELETE", f"{self.path}/{name}")


def make_account(api, folder, account, namespace=NAMESPACE):
    """Token, CA and namespace, as Kubernetes puts them into a pod."""
    folder.mkdir()
    token = api.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", {
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}})
    (folder / "token").write_text(token["status"]["token"])
    (folder / "namespace").write_text(namespace)
    (folder / "ca.crt").write_bytes((api.scratch / "ca.crt").read_bytes())
    return folder


def flag_of(objects, kind, name, flag):
    """What the installed object gives its process."""
    one = next(one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name))
    arguments = one["spec"]["template"]["spec"]["containers"][0]["args"]
    return next(argument for argument in arguments if argument.startswith(f"--{flag}="))


def check_discovery(checker, binaries, nodes, scratch):
    api = checker.api
    checker.make_namespace(NAMESPACE)
    checker.run_helm("install", "release", chart_files.CHART, "--namespace", NAMESPACE, "--set", "discovery=k8s")
    objects = checker.objects_of(NAMESPACE)
    hierarchy_flag = flag_of(objects, "Deployment", "release-kvatlas-frontend", "hierarchy")
    parents_flag = flag_of(objects, "StatefulSet", "release-kvatlas-leaf-a", "parents")
    account = make_account(api, scratch / "account", "release-kvatlas")
    api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "other"}}, NAMESPACE)
    other = make_account(api, scratch / "other-account", "other")
    running = []

    def start(name, *arguments, account=account):
        log = scratch / f"process-{len(running)}.log"
        running.append(Process(deploy_tools.find_binary(binaries, name), account, api, log, *arguments))
        return running[-1]

    try:
        for replica, address in enumerate(nodes):
            start("kvatlas-hierarchy", f"--grpc={address}:{GRPC_PORT}", "--node=top", f"--replica={replica}", f"--advertise={address}:{GRPC_PORT}")
        follow_slices(api, start, nodes, hierarchy_flag)
        report_to_found_nodes(api, start, running[:len(nodes)], nodes, parents_flag)
        refused = start("kvatlas-frontend", "--grpc=127.0.0.1:0", hierarchy_flag, account=other)
        await_that(lambda: re.search(r"forbidden", refused.text()), "an account without the Role is told that it is forbidden", refused)
        if refused.status()["hierarchies"]:
            raise SystemExit("an account without the Role found nodes")
        print("without the Role: forbidden, as the log says", flush=True)
        for process in running:
            process.stop()
    finally:
        for process in running:
            if process.process.poll() is None:
                process.process.kill()
                process.process.wait()
    checker.run_helm("uninstall", "release", "--namespace", NAMESPACE)


def follow_slices(api, start, nodes, hierarchy_flag):
    slices = Slices(api)
    service = "release-kvatlas-hierarchy-ready"
    one, two = nodes
    frontend = start("kvatlas-frontend", "--grpc=127.0.0.1:0", hierarchy_flag)

    def await_nodes(*expected):
        wanted = sorted(f"{address}:{GRPC_PORT}" for address in expected)
        await_that(lambda: sorted(frontend.status()["hierarchies"]) == wanted, f"the frontend knows {wanted}", frontend)
        print(f"{hierarchy_flag}: {wanted}", flush=True)

    slices.create("of-another-service", "release-kvatlas-frontend", [("192.0.2.99", True)])
    slices.create("first", service, [(one, True)])
    await_nodes(one)
    slices.create("second", service, [(two, False)])
    slices.replace("second", service, [(two, True)])
    await_nodes(one, two)
    slices.replace("first", service, [(one, False)])
    await_nodes(two)
    slices.replace("first", service, [(one, True)])
    await_nodes(one, two)
    slices.delete("first")
    await_nodes(two)
    said = frontend.text().count(LOST)
    api.kill()
    await_that(lambda: frontend.text().count(LOST) > said, "the frontend tells that the API server does not answer", frontend)
    await_nodes(two)
    api.start()
    slices.create("third", service, [(one, True)])
    await_nodes(one, two)
    print("over a kill -9 of the API server: known nodes stayed, new ones were found", flush=True)


def report_to_found_nodes(api, start, hierarchy, nodes, parents_flag):
    slices = Slices(api)
    leaf = start("kvatlas-leaf", "--cell=a", "--grpc=127.0.0.1:0", parents_flag, "--workers=w=tcp://127.0.0.1:5999", "--model_name=m", "--block_size=16")

    def cells(process):
        return {stats["holder"]["name"] for domain in process.status()["domains"] for stats in domain["holder_stats"]}

    slices.create("reported-to", "release-kvatlas-hierarchy", [(nodes[0], True)])
    await_that(lambda: cells(hierarchy[0]) == {"a"}, "the leaf reports to the first node", leaf)
    slices.create("reported-to-also", "release-kvatlas-hierarchy", [(nodes[1], True)])
    await_that(lambda: cells(hierarchy[1]) == {"a"}, "the leaf reports to the second node", leaf)
    print(f"{parents_flag}: cell a reports to {nodes}", flush=True)
