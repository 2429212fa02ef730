"""Prometheus with the configuration and the alert rules of deploy/monitoring, for the processes of
a test."""

import json
import pathlib
import shutil
import subprocess
import sys
import time
import types
import urllib.parse
import urllib.request

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from log_waits import wait_for_log  # noqa: E402  (path set above)
from redis_process import SKIPPED, free_port  # noqa: E402
from system_support import LONG_S, ROOT  # noqa: E402

PROGRAM = shutil.which("prometheus")
MONITORING = ROOT / "deploy/monitoring"
READY, TAKEN = "Server is ready to receive web requests", "address already in use"
EVERY = "1s"  # long enough for a busy process to answer a scrape


def skip_without_prometheus():
    if PROGRAM is None:
        print("skipped: prometheus (Debian package) is not installed")
        sys.exit(SKIPPED)


def alert_rules():
    return yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]


class Prometheus:
    """Scrapes `stores` and `workers`, processes of the test. `holds`: whether an alert fires only
    after the time that its rule says; otherwise at once."""

    def __init__(self, test, stores=(), workers=(), holds=True):
        folder = test.folder / "prometheus"
        folder.mkdir()
        rules = alert_rules()
        if not holds:
            rules = [{key: value for key, value in rule.items() if key != "for"} for rule in rules]
        (folder / "alerts.yml").write_text(yaml.safe_dump(
            {"groups": [{"name": "hearth", "rules": rules}]}))
        config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": EVERY, "scrape_timeout": EVERY,
                            "evaluation_interval": "250ms"}
        processes = {"hearth-store": stores, "hearth-worker": workers}
        for job in config["scrape_configs"]:
            del job["dns_sd_configs"]
            job["static_configs"] = [{"targets": [
                process.url("metrics").removeprefix("http://")
                for process in processes[job["job_name"]]]}]
        file, log = folder / "prometheus.yml", folder / "log"
        file.write_text(yaml.safe_dump(config))
        self._targets = len(stores) + len(workers)
        while not self._start(test, [PROGRAM, f"--config.file={file}",
                                     f"--storage.tsdb.path={folder / 'tsdb'}"], log):
            pass
        self.wait_for_scrapes()

    def _start(self, test, words, log):
        """Starts the program on a free port; returns False if another process took the port."""
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        with open(log, "wb") as out:
            popen = subprocess.Popen([*words, f"--web.listen-address=127.0.0.1:{port}"],
                                     stdout=out, stderr=out)
        test.addCleanup(popen.wait)
        test.addCleanup(popen.kill)
        said = wait_for_log(
            types.SimpleNamespace(popen=popen, log_path=log, log_tail=log.read_text),
            lambda text: next((line for line in text.splitlines()
                               if READY in line or TAKEN in line), None))
        if TAKEN in said:
            popen.wait()  # then the next process can lock the database
        return READY in said

    def query(self, expr):
        """Returns the values of an instant query."""
        url = f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': expr})}"
        with urllib.request.urlopen(url, timeout=LONG_S) as answer:
            result = json.load(answer)["data"]["result"]
        return [float(series["value"][1]) for series in result]

    def wait_until(self, expr):
        """Asks until the query has a result."""
        end = time.monotonic() + LONG_S
        while not self.query(expr):
            assert time.monotonic() < end, f"no result of {expr}"

    def wait_for_scrapes(self):
        """Waits until each target was scraped after this call."""
        self.wait_until(f'count(timestamp(up{{job=~"hearth.*"}}) > {time.time()}) == '
                        f"{self._targets}")

    def wait_for_alerts(self, *names):
        for name in names:
            self.wait_until(f'ALERTS{{alertname="{name}"}}')

    def firing(self):
        """Returns the names of the alerts that fire now."""
        url = f"{self._url}/api/v1/alerts"
        with urllib.request.urlopen(url, timeout=LONG_S) as answer:
            return {alert["labels"]["alertname"]
                    for alert in json.load(answer)["data"]["alerts"]}
