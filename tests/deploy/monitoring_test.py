"""Dashboard, alert rules and the collector's configuration name only what exists."""
import functools
import json
import pathlib
import re
import shutil
import subprocess
import unittest

import yaml

import manifests as m

MONITORING = m.ROOT / "deploy/monitoring"
RULES = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
RULE_TESTS = pathlib.Path(__file__).parent / "alerts_test.yml"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
REFERENCE = (m.ROOT / "docs/reference/reference.md").read_text()
PROMTOOL = shutil.which("promtool")


@functools.cache
def known_metrics():
    """Returns {metric: its labels}, from the reference; a histogram has three names."""
    known = {}
    for name, kind, labels in re.findall(
            r"^\| `(hearth_\w+)` \| (\w+) \|[^|]*\|([^|]*)\|", REFERENCE, re.M):
        ends = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        for end in ends:
            known[name + end] = {label.strip() for label in labels.split(",") if label.strip()}
    return known


def problems_of(expr):
    known, problems = known_metrics(), []
    for name, selector in re.findall(r"\b(hearth_\w+)(?:\{([^}]*)\})?", expr):
        if name not in known:
            problems.append(f"no metric {name}")
            continue
        for label in re.findall(r"(\w+)\s*=~?\"", selector):
            if label not in known[name] | {"le"}:
                problems.append(f"{name} has no label {label}")
    return problems


class Monitoring(unittest.TestCase):

    def test_dashboard_names_only_existing_metrics(self):
        targets = [t["expr"] for panel in DASHBOARD["panels"] for t in panel["targets"]]
        self.assertGreater(len(targets), 20)
        self.assertEqual([problem for expr in targets for problem in problems_of(expr)], [])

    def test_panels_do_not_overlap(self):
        taken = set()
        for panel in DASHBOARD["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                     for y in range(at["y"], at["y"] + at["h"])}
            self.assertFalse(cells & taken, panel["title"])
            self.assertLessEqual(at["x"] + at["w"], 24, panel["title"])
            taken |= cells
        ids = [panel["id"] for panel in DASHBOARD["panels"]]
        self.assertEqual(len(ids), len(set(ids)))

    def test_alerts_name_only_existing_metrics_and_have_a_runbook(self):
        for rule in RULES:
            self.assertEqual(problems_of(rule["expr"]), [], rule["alert"])
            self.assertIn(rule["labels"]["severity"], ("critical", "warning"), rule["alert"])
            self.assertTrue(rule["annotations"]["summary"], rule["alert"])
            runbook = rule["annotations"]["runbook"]
            self.assertTrue(runbook.endswith(".") and "\n" not in runbook, rule["alert"])
            for path in re.findall(r"docs/[\w/.-]+\.md", runbook):
                self.assertTrue((m.ROOT / path).exists(), path)

    def test_runbooks_name_only_flags_of_the_programs(self):
        text = " ".join(rule["annotations"]["runbook"] for rule in RULES)
        for flag in re.findall(r"--[a-z-]+", text):
            self.assertIn(f"`{flag}`", REFERENCE)
        for command in re.findall(r"hearthctl ([a-z]+)", text):
            self.assertIn(f"\n### hearthctl {command}", REFERENCE)

    def test_each_alert_fires_in_a_test(self):
        fired = set(re.findall(r'alertname="(\w+)"', RULE_TESTS.read_text()))
        self.assertEqual(fired, {rule["alert"] for rule in RULES})

    def test_unknown_names_are_found(self):
        self.assertEqual(problems_of("rate(hearth_store_nothing_total[5m])"),
                         ["no metric hearth_store_nothing_total"])
        self.assertEqual(problems_of('hearth_store_tier_bytes{kind="disk"}'),
                         ["hearth_store_tier_bytes has no label kind"])
        self.assertEqual(problems_of("hearth_store_fetch_seconds"),
                         ["no metric hearth_store_fetch_seconds"])

    def test_scrape_configuration_has_the_ports_of_the_compose_file(self):
        compose = yaml.safe_load((m.ROOT / "docker-compose.yml").read_text())
        config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
        scraped = {(d["names"][0], d["port"]) for job in config["scrape_configs"]
                   for d in job["dns_sd_configs"]}
        store = compose["services"]["store"]["environment"]["HEARTH_STORE_METRICS_LISTEN"]
        worker = compose["x-worker"]["environment"]["HEARTH_WORKER_METRICS_LISTEN"]
        self.assertEqual(scraped, {("store", int(store.split(":")[1])),
                                   ("worker", int(worker.split(":")[1]))})

    @unittest.skipIf(PROMTOOL is None, "promtool (Debian package prometheus) is not installed")
    def test_promtool_accepts_the_files_and_every_alert_fires(self):
        for arguments in (["check", "rules", MONITORING / "alerts.yml"],
                          ["check", "config", MONITORING / "prometheus.yml"],
                          ["test", "rules", RULE_TESTS]):
            done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True,
                                  check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
