"""Prometheus scrapes a store and a worker: each query of the dashboard and of the page is answered,
and no alert is active in a healthy fleet.

Run as: python dashboard_test.py BIN_DIR WRITE_CHECKPOINT.
"""

import functools
import json
import re

import prometheus
import system_support
from prometheus import MONITORING, Prometheus, alert_rules
from system_support import ROOT, ProcessFailed, SystemTest, prompt

# The errors of calls, for panels that show only errors.
WRONG_IDS = (system_support.VOCABULARY,)


class Monitoring(SystemTest):

    def setUp(self):
        super().setUp()
        self.store = self.cluster.store(self.folder / "data", pages=("metrics",))
        self.node = self.worker(self.model(), self.store.address, pages=("metrics",))
        self.prometheus = Prometheus(self, [self.store], [self.node])

    def make_traffic(self, seed):
        """Makes the worker and the store count each kind of event that the dashboard shows."""
        generate = functools.partial(self.cluster.generate, self.node.address, max_new_tokens=4)
        for _ in range(2):
            generate(prompt(100, seed), "--wait-published")
        for wrong in (lambda: generate(WRONG_IDS),
                      lambda: self.cluster.ctl("pin", "0" * 64, "--store", self.store.address)):
            with self.assertRaises(ProcessFailed):
                wrong()

    def test_dashboard_and_alerts_on_a_real_scrape(self):
        for seed in range(3):
            self.make_traffic(seed)
            self.prometheus.wait_for_scrapes()
        dashboard = json.loads((MONITORING / "dashboard.json").read_text())
        queries = [(panel["title"], target["expr"]) for panel in dashboard["panels"]
                   for target in panel["targets"]]
        page = (ROOT / "docs" / "observability.md").read_text()
        queries += [("the page", expr) for expr in re.findall(r"(?m)^sum\(.*$", page)]
        self.assertEqual(queries[-1][0], "the page")
        unanswered = []
        for title, expr in queries:
            asked = expr.replace("$__rate_interval", "1m").replace("$__range", "5m")
            if not any(value == value for value in self.prometheus.query(asked)):  # NaN is none
                unanswered.append((title, expr))
        self.assertEqual(unanswered, [])
        self.assertEqual([rule["alert"] for rule in alert_rules()
                          if self.prometheus.query(rule["expr"])], [])


if __name__ == "__main__":
    prometheus.skip_without_prometheus()
    system_support.main()
