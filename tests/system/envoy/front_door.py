"""Starts Envoy with deploy/envoy/envoy.yaml, with the addresses of a test. For tests under the
Python of .clients/envoy, which has Envoy (scripts/clients.sh envoy)."""

import json
import os
import pathlib
import re
import sys
import urllib.request

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / "system"), str(ROOT / "scripts")]

from hearth_procs import Process  # noqa: E402  (path set above)

CLIENTS = pathlib.Path(os.environ.get("HEARTH_CLIENTS", ROOT / ".clients"))
CONFIG = ROOT / "deploy" / "envoy" / "envoy.yaml"
SKIPPED = 77


def run_with_envoy():
    """Continues with the Python of .clients/envoy. Without it, ends the test as skipped."""
    here = CLIENTS / "envoy"
    if not (here / "installed").exists():
        print("skipped: Envoy is not installed; install it with scripts/clients.sh envoy")
        sys.exit(SKIPPED)
    if pathlib.Path(sys.prefix).resolve() != here.resolve():
        os.execv(here / "bin" / "python", [str(here / "bin" / "python"), "-B", *sys.argv])


def configuration(grpc, http, tls=None):
    """Returns the configuration for workers at these addresses. `tls`: the folder with the files of
    /etc/envoy/tls; None: without identities."""
    text = CONFIG.read_text().replace("/etc/envoy/tls", str(tls))
    if tls is None:
        text = re.sub(r"(?ms)^ *# identities$.*?# end of identities$", "", text)
    config = yaml.safe_load(text)
    config["admin"]["address"]["socket_address"]["port_value"] = 0
    listener = config["static_resources"]["listeners"][0]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
    for name, addresses in (("workers_grpc", grpc), ("workers_http", http)):
        set_addresses(config, name, addresses)
    return config


def set_addresses(config, cluster, addresses):
    assignment = find(config["static_resources"]["clusters"], cluster)["load_assignment"]
    assignment["endpoints"][0]["lb_endpoints"] = [
        {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}}}
        for host, port in (address.rsplit(":", 1) for address in addresses)]


def find(items, name):
    return next(item for item in items if item["name"] == name)


def manager(config):
    """Returns the HTTP connection manager."""
    return config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0][
        "typed_config"]


def limit_callers(config, **bucket):
    """Changes the limit of requests from one address."""
    limits = find(manager(config)["http_filters"], "envoy.filters.http.local_ratelimit")
    limits["typed_config"]["descriptors"][0]["token_bucket"].update(bucket)


class FrontDoor(Process):
    """A running Envoy; `address`: where callers reach it."""

    def __init__(self, config, work_dir, name="envoy"):
        file = pathlib.Path(work_dir) / f"{name}.json"
        file.write_text(json.dumps(config))
        super().__init__([CLIENTS / "envoy" / "bin" / "envoy", "-c", file, "--disable-hot-restart",
                          "--concurrency", "2", "--log-level", "warning"], name, work_dir)

    def _address_flags(self, listen):
        return ["--admin-address-path", str(self.address_file)]

    def _ready_address(self):
        """Returns where callers reach Envoy, after the first health check of each worker."""
        self.admin = f"http://{super()._ready_address()}"
        try:
            if self.get("/server_info")["state"] != "LIVE":
                return None
        except (OSError, ValueError):  # no address yet, or not listening
            return None
        listening = self.get("/listeners?format=json")["listener_statuses"][0]["local_address"]
        return "127.0.0.1:{port_value}".format(**listening["socket_address"])

    def get(self, path):
        with urllib.request.urlopen(self.admin + path, timeout=20) as answer:
            return json.loads(answer.read())

    def hosts(self, cluster):
        """Returns {address: statistics} of the workers."""
        statuses = find(self.get("/clusters?format=json")["cluster_statuses"], cluster)
        return {"{address}:{port_value}".format(**host["address"]["socket_address"]): host
                for host in statuses["host_statuses"]}

    def running(self, cluster):
        """Returns {address: number of running requests} of the workers."""
        return {address: next((int(stat.get("value", 0)) for stat in host["stats"]
                               if stat["name"] == "rq_active"), 0)
                for address, host in self.hosts(cluster).items()}
