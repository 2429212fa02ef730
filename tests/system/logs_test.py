"""Logs of the servers: a request's id is in the logs of both, and JSON logs are always JSON.

Run as: python logs_test.py BIN_DIR WRITE_CHECKPOINT|none Store|Worker.
"""

import json
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

import system_support
from hearth_procs import make_certificate
from http2_peer import Http2Peer
from log_waits import wait_for_log
from system_support import ProcessFailed, SystemTest, prompt

LONG_S = 120  # time limit of a wait; only a hanging process reaches it
JSON = ("--log-format", "json", "--log-level", "debug")


class Logs(SystemTest):

    def lines(self, process):
        """Returns all log lines, parsed; fails if a line is not JSON."""
        return [json.loads(line) for line in process.log_path.read_text().splitlines()]

    def wait_for(self, process, found):
        return wait_for_log(
            process, lambda text: [line for line in map(json.loads, text.splitlines())
                                   if found(line)])


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

    def test_store_loss_and_return_are_logged(self):
        store = self.cluster.store(self.folder / "data")
        worker = self.worker_with_page(store.address)
        self.cluster.generate(worker.address, prompt(100, 1), "--wait-published")
        store.kill()
        self.assert_unreachable(worker, store.address)
        self.cluster.store(self.folder / "data", listen=store.address)
        self.wait_for(worker, lambda line: line["event"] == "store reachable")
        self.assertEqual(self.reachable(), 1)

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

    def reachable(self):
        text = urllib.request.urlopen(self.page + "/metrics").read().decode()
        return int(re.search(r"^hearth_worker_store_reachable (\d)$", text, re.MULTILINE)[1])

    def worker_with_page(self, store_address):
        worker = self.worker(self.model(), store_address, *JSON, pages=("metrics",))
        self.page = worker.url("metrics")
        return worker

    def assert_unreachable(self, worker, address):
        lines = self.wait_for(worker, lambda line: line["event"] == "store unreachable")
        self.assertEqual([line["address"] for line in lines], [address])
        self.assertEqual(self.reachable(), 0)
        with self.assertRaises(ProcessFailed) as failed:
            self.cluster.ctl("doctor", "--no-probe", "--worker", worker.address)
        self.assertIn(f"cannot reach its store, {address}", str(failed.exception))


if __name__ == "__main__":
    system_support.main("WRITE_CHECKPOINT")
