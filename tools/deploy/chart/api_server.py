"""A real kube-apiserver on a real etcd, of one machine, with RBAC and admission as in a cluster, and no controllers."""

import json
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request

import yaml

from deploy_tools import module_folder, run

KUBERNETES = "v1.34.4"
DEADLINE_S = 240
PORT = 6443


def find_etcd(cache):
    """From PATH, or Debian's package, unpacked and not installed."""
    if found := shutil.which("etcd"):
        return found
    etcd = cache / "etcd" / "usr/bin/etcd"
    if not etcd.exists():
        folder = cache / "etcd-package"
        folder.mkdir(parents=True, exist_ok=True)
        run("apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", "etcd-server", cwd=folder)
        run("dpkg-deb", "--extract", *folder.glob("etcd-server_*.deb"), cache / "etcd")
    return etcd


def find_kube_apiserver(given, cache):
    """From PATH, or built from the Go module of Kubernetes."""
    if given:
        return given
    if found := shutil.which("kube-apiserver"):
        return found
    binary = cache / "bin" / f"kube-apiserver-{KUBERNETES}"
    if not binary.exists():
        print(f"building kube-apiserver {KUBERNETES} into {binary.parent}: 20 minutes on two cores", flush=True)
        build_kube_apiserver(cache / "kube-apiserver", binary)
    return binary


def build_kube_apiserver(folder, binary):
    """In a module of its own, whose versions are those that Kubernetes' own go.mod and go.sum name. There, parts of Kubernetes that are
    modules too are folders of its tree; here they are taken by the version that was published with it."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = module_folder(f"k8s.io/kubernetes@{KUBERNETES}")
    text = re.sub(r"^module .*$", "module kube-apiserver", (sources / "go.mod").read_text(), flags=re.M)
    published = KUBERNETES.replace("v1.", "v0.")
    text = re.sub(r"^(\s+(k8s\.io/\S+) =>) \./staging/.*$", rf"\1 \2 {published}", text, flags=re.M)
    text = re.sub(r"^(\s+k8s\.io/\S+) v0\.0\.0$", rf"\1 {published}", text, flags=re.M)
    (folder / "go.mod").write_text(f"{text}\nrequire k8s.io/kubernetes {KUBERNETES}\n")
    shutil.copyfile(sources / "go.sum", folder / "go.sum")
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    version = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor}
    named = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in version.items())
    run("go", "build", "-mod=mod", "-trimpath", f"-ldflags=-s -w {named}", "-o", binary, "k8s.io/kubernetes/cmd/kube-apiserver", cwd=folder,
        env={**os.environ, "CGO_ENABLED": "0"})


class ApiError(Exception):
    def __init__(self, status, text):
        super().__init__(f"{status}: {text}")
        self.status = status


class ApiServer:
    """Started on the address given. `kubeconfig` is that of an administrator."""

    def __init__(self, kube_apiserver, etcd, address, scratch):
        self.address = address
        self.scratch = pathlib.Path(scratch)
        self.url = f"https://{address}:{PORT}"
        self.kube_apiserver = kube_apiserver
        self.server = None
        self.resources = {}  # (apiVersion, kind): (plural, namespaced)
        self._make_keys()
        self.tls = ssl.create_default_context(cafile=self.scratch / "ca.crt")
        self.etcd_log = open(self.scratch / "etcd.log", "w")
        self.etcd = subprocess.Popen(
            [etcd, "--data-dir", self.scratch / "etcd", "--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls",
             "http://127.0.0.1:2379", "--listen-peer-urls", "http://127.0.0.1:2380"], stdout=self.etcd_log, stderr=self.etcd_log)
        self.start()
        self.kubeconfig = self.scratch / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "check",
            "clusters": [{"name": "check", "cluster": {"server": self.url, "certificate-authority": str(self.scratch / "ca.crt")}}],
            "users": [{"name": "admin", "user": {"token": "admin-token"}}],
            "contexts": [{"name": "check", "context": {"cluster": "check", "user": "admin"}}]}))

    def _make_keys(self):
        def openssl(*arguments):
            run("openssl", *arguments, cwd=self.scratch, capture_output=True)

        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=check-ca", "-keyout", "ca.key", "-out", "ca.crt",
                "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kube-apiserver", "-keyout", "server.key", "-out", "server.csr")
        (self.scratch / "server.ext").write_text(f"subjectAltName=IP:{self.address},DNS:kubernetes.default.svc\n")
        openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile",
                "server.ext", "-out", "server.crt")
        openssl("genrsa", "-out", "accounts.key", "2048")
        (self.scratch / "tokens.csv").write_text('admin-token,admin,1,"system:masters"\n')

    def start(self):
        self.log = open(self.scratch / "kube-apiserver.log", "a")
        here = self.scratch
        self.server = subprocess.Popen(
            [self.kube_apiserver, "--etcd-servers=http://127.0.0.1:2379", f"--bind-address={self.address}",
             f"--advertise-address={self.address}", f"--secure-port={PORT}", f"--tls-cert-file={here}/server.crt",
             f"--tls-private-key-file={here}/server.key", f"--token-auth-file={here}/tokens.csv", "--authorization-mode=RBAC",
             "--service-cluster-ip-range=198.51.100.0/24", "--service-account-issuer=https://kubernetes.default.svc",
             f"--service-account-key-file={here}/accounts.key", f"--service-account-signing-key-file={here}/accounts.key",
             f"--client-ca-file={here}/ca.crt", f"--cert-dir={here}/certs"], stdout=self.log, stderr=self.log)
        until = time.monotonic() + DEADLINE_S
        while True:
            try:
                if self.request("GET", "/readyz", raw=True) == "ok":
                    return
            except (OSError, ApiError):
                pass
            if self.server.poll() is not None or self.etcd.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"kube-apiserver did not become ready: {(here / 'kube-apiserver.log').read_text()[-4000:]}")
            time.sleep(0.2)

    def kill(self):
        """As a machine that is gone."""
        self.server.kill()
        self.server.wait()
        self.log.close()

    def stop(self):
        for process in (self.server, self.etcd):
            if process and process.poll() is None:
                process.terminate()
                process.wait(timeout=DEADLINE_S)
        self.log.close()
        self.etcd_log.close()

    def request(self, method, path, body=None, raw=False, patch="application/merge-patch+json"):
        headers = {"Authorization": "Bearer admin-token", "Content-Type": patch if method == "PATCH" else "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60, context=self.tls) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            raise ApiError(error.code, error.read().decode()) from None
        return text if raw else json.loads(text)

    def path_of(self, one, namespace):
        """Of the collection that an object is in, as discovery tells it."""
        version = one["apiVersion"]
        base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        if (version, one["kind"]) not in self.resources:
            for resource in self.request("GET", base)["resources"]:
                if "/" not in resource["name"]:
                    self.resources[version, resource["kind"]] = (resource["name"], resource["namespaced"])
        plural, namespaced = self.resources[version, one["kind"]]
        return f"{base}/namespaces/{namespace}/{plural}" if namespaced else f"{base}/{plural}"

    def get(self, one, namespace):
        """The object of this kind and name, or None."""
        try:
            return self.request("GET", f"{self.path_of(one, namespace)}/{one['metadata']['name']}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def create(self, one, namespace=None, query=""):
        return self.request("POST", self.path_of(one, namespace) + query, one)

    def wait_until_served(self, definition):
        """Until discovery has the custom resource."""
        spec = definition["spec"]
        until = time.monotonic() + DEADLINE_S
        for version in spec["versions"]:
            while True:
                try:
                    names = {one["kind"] for one in self.request("GET", f"/apis/{spec['group']}/{version['name']}")["resources"]}
                    if not version["served"] or spec["names"]["kind"] in names:
                        break
                except ApiError as error:
                    if error.status != 404:
                        raise
                if time.monotonic() > until:
                    raise SystemExit(f"{definition['metadata']['name']} is not served after {DEADLINE_S} s")
                time.sleep(0.1)
