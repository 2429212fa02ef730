"""Logs of the servers: a request's id is in the logs of both, and JSON logs are always JSON.

Run as: python logs_test.py BIN_DIR WRITE_CHECKPOINT|none Store|Worker|HttpTrace.
"""

import datetime
import json
import os
import re
import signal
import subprocess
import time
import unittest.mock
import urllib.error
import urllib.request

import yaml

import system_support
from hearth_procs import make_certificate
from http2_peer import Http2Peer
from http_worker import HttpWorker
from log_waits import complete_lines, wait_for_log
from system_support import LONG_S, ROOT, ProcessFailed, SystemTest, prompt

JSON = ("--log-format", "json", "--log-level", "debug")
INFO = ("--log-format", "json")
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARTS = ("prompt_ms", "queue_ms", "lookup_ms", "load_ms", "prefill_ms", "decode_ms", "publish_ms")


def traceparent(flags="01"):
    return f"00-{TRACE}-{SPAN}-{flags}"


def span_of(line, file_name):
    """Returns the span that deploy/monitoring/otel-collector.yml makes of a log line, as OTLP."""
    config = yaml.safe_load((ROOT / "deploy/monitoring/otel-collector.yml").read_text())
    body = config["processors"]["transform/body"]["log_statements"][-1]
    template, names = re.fullmatch(r'set\(log.body, Format\("(.*)", \[(.*)\]\)\)', body).groups()
    fields = json.loads(line)
    stopped = datetime.datetime.fromisoformat(fields["time"])
    nanoseconds = round(stopped.timestamp() * 1e6) * 1000
    took_ns = int(fields["took_ms"] * 1e6)
    values = {"log.body.string": line, "log.time_unix_nano": nanoseconds,
              "log.time_unix_nano - log.attributes[\"took_ns\"]": nanoseconds - took_ns}
    for name, value in ({"parent_span_id": "", "log.file.name": file_name} | fields).items():
        values[f'log.attributes["{name}"]'] = value
    texts = [values[name.strip()] for name in names.split(",")]
    made = template.replace('\\"', '"').replace("%q", "%s") % tuple(
        json.dumps(text) if isinstance(text, str) else text for text in texts)
    resource = json.loads(made)["resourceSpans"][0]
    return resource["resource"]["attributes"], resource["scopeSpans"][0]["spans"][0]


class Logs(SystemTest):

    def lines(self, process):
        """Returns all log lines, parsed; fails if a line is not JSON."""
        return [json.loads(line) for line in process.log_path.read_text().splitlines()]

    def wait_for(self, process, found, count=1):
        """Waits until at least `count` lines fulfil `found`; returns them. A server may write a
        line after its answer."""
        def lines_of(text):
            lines = [line for line in map(json.loads, complete_lines(text)) if found(line)]
            return lines if len(lines) >= count else None
        return wait_for_log(process, lines_of)


class Store(Logs):

    def test_invalid_protobuf_is_logged_as_json(self):
        store = self.cluster.store("", "--host-bytes", "1MiB", *JSON)
        peer = Http2Peer(store.address)
        self.addCleanup(peer.close)
        # A PinRequest whose tenant is not UTF-8.
        message = b"\x12\x02\xff\xfe"
        peer.open("/hearth.v1.CacheStore/Pin", 0, len(message), message)
        peer.open("/hearth.v1.CacheStore/Pin", 0, 3, b"\xff\xff\xff")
        end = time.monotonic() + LONG_S
        while peer.refused < 2 and not peer.ended:
            self.assertLess(time.monotonic(), end)
            peer.step(0.01)
        said = self.wait_for(store, lambda line: line["event"] == "protobuf")
        self.assertIn("UTF-8", said[0]["message"])
        self.assertEqual(store.stop(), 0)
        self.lines(store)

    def test_unexpected_tls_is_logged(self):
        store = self.cluster.store("", "--host-bytes", "1MiB", *JSON)
        peer = Http2Peer(store.address)
        self.addCleanup(peer.close)
        peer.socket.send(b"\x16\x03\x01\x02\x00\x01")
        said = self.wait_for(store, lambda line: line["event"] == "connection refused")
        self.assertIn("the client uses TLS", said[0]["reason"])
        self.cluster.ctl("stats", "--store", store.address)

    def test_tls_failures_and_expiry_are_logged(self):
        certificate, key = make_certificate(self.folder, "store")
        other, _ = make_certificate(self.folder, "other")
        store = self.cluster.store("", "--host-bytes", "1MiB", "--tls-cert", certificate,
                                   "--tls-key", key, *JSON)
        said = self.wait_for(store, lambda line: line["event"] == "certificate")
        self.assertIn("expires at", said[0]["reason"])
        stats = ["stats", "--store", store.address]
        self.cluster.ctl(*stats, "--tls-ca", certificate)
        with self.assertRaisesRegex(ProcessFailed, "not signed by the authority in --tls-ca"):
            self.cluster.ctl(*stats, "--tls-ca", other)
        done = subprocess.run([f"{system_support.BIN_DIR}/hearthctl", *stats, "--tls-ca", other],
                              capture_output=True, text=True, timeout=LONG_S, check=False)
        self.assertEqual(len(done.stderr.splitlines()), 1, "no lines of gRPC's: " + done.stderr)
        self.wait_for(store, lambda line: line["event"] == "TLS handshake failed")
        with self.assertRaisesRegex(ProcessFailed, "if it uses TLS, pass --tls-ca"):
            self.cluster.ctl(*stats)
        said = self.wait_for(store, lambda line: line["event"] == "connection refused")
        self.assertIn("the client does not use TLS", said[0]["reason"])
        store.popen.send_signal(signal.SIGHUP)
        self.wait_for(store, lambda line: line["event"] == "certificates reloaded")
        self.cluster.ctl(*stats, "--tls-ca", certificate)


class Worker(Logs):

    def test_request_id_is_in_both_logs(self):
        store = self.cluster.store(self.folder / "data", *JSON)
        worker = self.worker(self.model(), store.address, *JSON)
        self.cluster.generate(worker.address, prompt(100, 1), "--wait-published")
        answer = self.cluster.generate(worker.address, prompt(100, 1))
        self.assertEqual(answer["cached_tokens"], 96)
        request = answer["request_id"]
        def is_of(method):
            return lambda line: (line["event"], line.get("id"), line.get("method")) == (
                "call", request, method)
        at_worker = self.wait_for(worker, is_of("Generate"))[0]
        self.assertEqual((at_worker["tokens"], at_worker["hit_tokens"], at_worker["tier"],
                          at_worker["tenant"], at_worker["code"]),
                         (100, 96, "host", "default", "OK"))
        self.assertGreater(at_worker["took_ms"], 0)
        at_store = self.wait_for(store, is_of("Fetch"))[0]
        self.assertEqual((at_store["hit_tokens"], at_store["tier"], at_store["tenant"]),
                         (96, "host", "default"))

    def test_trace_reaches_the_store_and_times_add_up(self):
        store = self.cluster.store(self.folder / "data", *INFO)
        worker = self.worker(self.model(), store.address, *INFO)
        for seed, flags in ((1, "01"), (1, "01"), (2, "00")):
            with unittest.mock.patch.dict(os.environ, TRACEPARENT=traceparent(flags)):
                answer = self.cluster.generate(worker.address, prompt(1000, seed),
                                               "--wait-published", max_new_tokens=20)
            self.assertEqual(answer["trace_id"], TRACE)
        lines = self.wait_for(worker, lambda line: line["event"] == "call", count=3)
        self.assertEqual(len(lines), 3, "one line for each request")
        for line, hits in zip(lines, (0, 992, 0)):
            self.assertEqual((line["level"], line["method"], line["trace_id"], line["tokens"],
                              line["hit_tokens"], line["generated"]),
                             ("info", "Generate", TRACE, 1000, hits, 20))
            self.assertAlmostEqual(sum(line[part] for part in PARTS), line["took_ms"],
                                   delta=0.05 * line["took_ms"])
            self.assertEqual([part for part in PARTS if line[part] < 0], [])
        self.assertGreater(lines[0]["prefill_ms"], lines[1]["prefill_ms"])
        self.assertGreater(lines[1]["load_ms"], 0)
        self.assertGreater(lines[0]["publish_ms"], 0)
        self.assertEqual(store.stop(), 0)
        calls = [line for line in self.lines(store) if line["event"] == "call"]
        self.assertLessEqual({"Fetch", "Lease", "Publish"}, {line["method"] for line in calls})
        self.assertEqual({line["trace_id"] for line in calls}, {TRACE})
        self.assertEqual({line["parent_span_id"] for line in calls},
                         {line["span_id"] for line in lines[:2]}, "only sampled traces")
        self.assert_collector_makes_spans(worker, lines[1])

    def assert_collector_makes_spans(self, worker, line):
        text = next(text for text in worker.log_path.read_text().splitlines()
                    if line["span_id"] in text)
        service, span = span_of(text, "hearth-worker.log")
        self.assertEqual(service, [{"key": "service.name",
                                    "value": {"stringValue": "hearth-worker.log"}}])
        self.assertEqual((span["traceId"], span["spanId"], span["parentSpanId"], span["name"]),
                         (TRACE, line["span_id"], line["parent_span_id"], "Generate"))
        self.assertEqual(json.loads(span["attributes"][0]["value"]["stringValue"]), line)
        took_ms = (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e6
        self.assertAlmostEqual(took_ms, line["took_ms"], delta=0.01)

    def test_store_loss_and_return_are_logged(self):
        store = self.cluster.store(self.folder / "data")
        worker = self.worker_with_page(store.address)
        self.cluster.generate(worker.address, prompt(100, 1), "--wait-published")
        store.kill()
        self.assert_unreachable(worker, store.address)
        self.cluster.store(self.folder / "data", listen=store.address)
        self.wait_for(worker, lambda line: line["event"] == "store reachable")
        self.wait_for_metrics(self.page, "\nhearth_worker_store_reachable 1\n")

    def test_log_of_refused_host_names_flag(self):
        worker = self.worker_with_page("none")
        request = urllib.request.Request(self.page + "/metrics",
                                         headers={"Host": "worker.example."})
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request)
        self.assertEqual(refused.exception.code, 403)
        line = self.wait_for(worker, lambda line: line["event"] == "Host refused")[0]
        self.assertEqual(line["host"], "worker.example")
        self.assertIn("--metrics-hosts", line["why"])

    def test_unreachable_store_address_is_logged(self):
        worker = self.worker_with_page("127.0.0.1:9")
        self.assert_unreachable(worker, "127.0.0.1:9")

    def worker_with_page(self, store_address):
        worker = self.worker(self.model(), store_address, *JSON, pages=("metrics",))
        self.page = worker.url("metrics")
        return worker

    def assert_unreachable(self, worker, address):
        lines = self.wait_for(worker, lambda line: line["event"] == "store unreachable")
        self.assertEqual([line["address"] for line in lines], [address])
        self.wait_for_metrics(self.page, "\nhearth_worker_store_reachable 0\n")
        with self.assertRaises(ProcessFailed) as failed:
            self.cluster.ctl("doctor", "--no-probe", "--worker", worker.address)
        self.assertIn(f"cannot reach its store, {address}", str(failed.exception))


class HttpTrace(HttpWorker, Logs):

    def flags(self):
        return INFO

    def test_header_begins_or_continues_a_trace(self):
        sent = (traceparent(), "00-not a trace-01", None)
        for header in sent:
            request = urllib.request.Request(
                self.url + "/v1/completions", data=b'{"prompt": "the light", "max_tokens": 2}',
                headers={"Content-Type": "application/json"} |
                        ({"traceparent": header} if header else {}))
            with urllib.request.urlopen(request, timeout=LONG_S) as answer:
                answer.read()
        self.assertEqual(self.node.stop(), 0)
        lines = [line for line in self.lines(self.node) if line["event"] == "call"]
        self.assertEqual([(line["trace_id"] == TRACE, line.get("parent_span_id"))
                          for line in lines], [(True, SPAN), (False, None), (False, None)])
        self.assertEqual(len({line["trace_id"] for line in lines}), 3)
        for line in lines:
            self.assertAlmostEqual(sum(line[part] for part in PARTS), line["took_ms"],
                                   delta=0.05 * line["took_ms"])


if __name__ == "__main__":
    system_support.main("WRITE_CHECKPOINT")
