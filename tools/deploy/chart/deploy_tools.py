"""What checks of the chart need from elsewhere, kept in a folder: helm, and definitions of custom resources, by Go modules."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import yaml

HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
CACHE = pathlib.Path.home() / ".cache/kvatlas-deploy"
# Go modules with definitions of custom resources, and where they lie in them.
DEFINITIONS = {
    "sigs.k8s.io/gateway-api-inference-extension@v1.6.0": ["config/crd/bases/inference.networking.k8s.io_inferencepools.yaml"],
    "sigs.k8s.io/gateway-api@v1.4.0": [
        f"config/crd/standard/gateway.networking.k8s.io_{kind}.yaml" for kind in ("gateways", "httproutes")],
    "istio.io/api@v1.32.0": ["kubernetes/customresourcedefinitions.gen.yaml"],
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": [
        f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml" for kind in ("servicemonitors", "podmonitors", "prometheusrules")],
    "github.com/cert-manager/cert-manager@v1.19.0": ["deploy/crds/cert-manager.io_certificates.yaml"],
}
FOLDERS = {"kvatlas-leaf": "indexer/leaf", "kvatlas-hierarchy": "hierarchy", "kvatlas-frontend": "frontend",
           "kvatlas-relay": "publisher", "kvatlas": "tools/kvatlas"}
ROOT = pathlib.Path(__file__).resolve().parents[3]


def run(*command, **kwargs):
    return subprocess.run(list(map(str, command)), check=True, text=True, **kwargs)


def find_binary(given, name):
    """In the folder `given`, or in bazel-bin."""
    return pathlib.Path(given) / name if given else ROOT / "bazel-bin" / FOLDERS[name] / name


def find_helm(given, cache):
    if given:
        return given
    if found := shutil.which("helm"):
        return found
    helm = cache / "bin" / "helm"
    if not helm.exists():
        print(f"building {HELM} into {helm.parent}", flush=True)
        run("go", "install", HELM, env={**os.environ, "CGO_ENABLED": "0", "GOBIN": str(helm.parent)})
    return helm


def module_folder(module):
    """Where Go keeps the sources of this module, PATH@VERSION."""
    with tempfile.TemporaryDirectory() as scratch:
        (pathlib.Path(scratch) / "go.mod").write_text("module definitions\n")
        said = run("go", "mod", "download", "-json", module, cwd=scratch, stdout=subprocess.PIPE).stdout
    return pathlib.Path(json.loads(said)["Dir"])


def custom_definitions():
    """The CustomResourceDefinitions, as the modules have them."""
    found = []
    for module, paths in DEFINITIONS.items():
        folder = module_folder(module)
        for path in paths:
            found += [one for one in yaml.safe_load_all((folder / path).read_text())
                      if one and one.get("kind") == "CustomResourceDefinition"]
    return found
