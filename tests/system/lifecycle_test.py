"""How the servers start, refuse to start, report their addresses, drain and end."""

import json
import os
import pathlib
import signal
import subprocess

import system_support
from log_waits import wait_for_log
from system_support import LONG_S, SystemTest, prompt


def open_files(pid):
    """Returns the paths of the open files of a process; none if it has ended."""
    try:
        links = list(pathlib.Path(f"/proc/{pid}/fd").iterdir())
        return [os.readlink(link) for link in links]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


class Start(SystemTest):

    def test_locked_data_folder_is_named(self):
        data = self.folder / "data"
        self.cluster.store(data)
        said = self.fails_to_start("hearth-store", "--data-dir", data, "--listen", "127.0.0.1:0")
        self.assertIn(str(data), said)

    def test_address_in_use_is_named(self):
        store = self.cluster.store(self.folder / "data")
        said = self.fails_to_start("hearth-store", "--data-dir", "", "--listen", store.address)
        self.assertIn(store.address, said)

    def test_address_conflict_precedes_model_load(self):
        store = self.cluster.store(self.folder / "data")
        model = self.model()
        (model / "model.safetensors").write_bytes(b"torn")
        for flags in (("--listen", store.address),
                      ("--listen", "127.0.0.1:0", "--metrics-listen", store.address)):
            said = self.fails_to_start("hearth-worker", "--model", model, "--store", "none", *flags)
            self.assertIn(flags[-2][2:] + ": cannot listen on " + store.address, said)

    def test_missing_model_folder_is_named(self):
        said = self.fails_to_start("hearth-worker", "--model", self.folder / "nowhere", "--store",
                                   "none", "--listen", "127.0.0.1:0")
        self.assertIn("nowhere is not a folder or a GGUF file", said)
        self.assertIn("hf download", said)

    def test_truncated_weights_file_is_named(self):
        model = self.model()
        weights = model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1000])
        said = self.fails_to_start("hearth-worker", "--model", model, "--store", "none", "--listen",
                                   "127.0.0.1:0")
        self.assertIn("model.safetensors", said)

    def test_unsupported_config_field_is_named(self):
        model = self.model()
        config = json.loads((model / "config.json").read_text())
        config["hidden_activation"] = "relu"
        (model / "config.json").write_text(json.dumps(config))
        said = self.fails_to_start("hearth-worker", "--model", model, "--store", "none", "--listen",
                                   "127.0.0.1:0")
        self.assertIn("config.json", said)
        self.assertIn("hidden_activation", said)

    def test_invalid_flag_is_named(self):
        for flag, value in (("--host-bytes", "lots"), ("--log-level", "loud"), ("--nonsense", "1")):
            said = self.fails_to_start("hearth-store", flag, value)
            self.assertIn(flag, said)

    def test_file_and_environment_set_flags(self):
        config = self.folder / "store.toml"
        config.write_text(f'data-dir = "{self.folder / "data"}"\nhost-bytes = "3MiB"\n')
        os.environ["HEARTH_STORE_DISK_BYTES"] = "5MiB"
        try:
            store = self.cluster._start("store", ["--config", config])
        finally:
            del os.environ["HEARTH_STORE_DISK_BYTES"]
        stats = self.cluster.ctl("stats", "--store", store.address)
        tiers = {tier["tier"]: tier for tier in stats["tiers"]}
        self.assertEqual(tiers["host"]["capacity_bytes"], 3 << 20)
        self.assertEqual(tiers["disk"]["capacity_bytes"], 5 << 20)


class Serve(SystemTest):

    def test_both_servers_serve_metrics(self):
        store = self.cluster.store(self.folder / "data", pages=("metrics",))
        worker = self.worker(self.model(), store.address, pages=("metrics",))
        for _ in range(2):
            self.cluster.generate(worker.address, prompt(100, 1), "--wait-published")
        self.wait_for_metrics(store.url("metrics"),
                              'hearth_store_rpc_seconds_count{code="OK",method="Publish"}',
                              'hearth_store_hit_tokens_total{tier="host"} 96')
        self.wait_for_metrics(worker.url("metrics"),
                              'hearth_worker_store_fetches_total{outcome="hit"} 1',
                              'hearth_worker_generation_seconds_count{part="ttft"} 2',
                              'hearth_worker_cached_tokens_total{tier="host"} 96')

    def test_json_log_lines_are_objects(self):
        store = self.cluster.store(self.folder / "data", "--log-format", "json")
        self.assertEqual(store.stop(), 0)
        events = [json.loads(line)["event"] for line in store.log_path.read_text().splitlines()]
        self.assertEqual(events, ["opened", "ready", "draining", "stopped"])


class Stop(SystemTest):

    def test_stopped_store_has_closed_its_files(self):
        data = self.folder / "data"
        store = self.cluster.store(data)
        store.popen.send_signal(signal.SIGTERM)
        wait_for_log(store, lambda text: " stopped " in text)
        held = [path for path in open_files(store.popen.pid) if str(data) in path]
        self.assertEqual(held, [])

    def running_request(self, worker, new_tokens):
        """Starts a request and waits for its first token; returns the hearthctl process."""
        client = subprocess.Popen(
            [str(self.cluster.bin_dir / "hearthctl"), "generate", "--worker", worker.address,
             "--token-ids", ",".join(map(str, prompt(40, 1))), "--max-new-tokens", str(new_tokens),
             "--ignore-eos", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(client.stdout.close)
        self.addCleanup(client.stderr.close)
        self.addCleanup(client.wait)
        self.addCleanup(client.kill)
        for line in client.stdout:
            if json.loads(line).get("event") == "token":
                return client
        self.fail(client.stderr.read())

    def test_sigterm_finishes_running_requests(self):
        store = self.cluster.store(self.folder / "data")
        worker = self.worker(self.model(), store.address, "--drain-timeout", f"{LONG_S}s")
        client = self.running_request(worker, 300)
        worker.popen.send_signal(signal.SIGTERM)
        rest = [json.loads(line) for line in client.stdout]
        self.assertEqual(client.wait(), 0)
        self.assertEqual(len(rest[-1]["token_ids"]), 300)
        self.assertEqual(worker.popen.wait(LONG_S), 0)
        self.assertEqual(store.stop(), 0)

    def test_sigint_stops_idle_servers(self):
        store = self.cluster.store(self.folder / "data")
        worker = self.worker(self.model(), store.address)
        for process in (worker, store):
            process.popen.send_signal(signal.SIGINT)
            self.assertEqual(process.popen.wait(LONG_S), 0)

    def test_drain_finishes_pending_publishes(self):
        store = self.cluster.store(self.folder / "data")
        model = self.model()
        worker = self.worker(model, store.address)
        self.cluster.generate(worker.address, prompt(400, 7))
        self.assertEqual(worker.stop(), 0)
        other = self.worker(model, store.address)
        answer = self.cluster.generate(other.address, prompt(400, 7), "--cache", "read")
        self.assertEqual(answer["cached_tokens"], 384)

    def test_drain_timeout_cuts_off_requests(self):
        worker = self.worker(self.model(context_tokens=100000), "none", "--drain-timeout", "10ms",
                             "--log-format", "json")
        client = self.running_request(worker, 90000)
        worker.popen.send_signal(signal.SIGTERM)
        self.assertEqual(worker.popen.wait(LONG_S), 0)
        client.communicate()  # reads the pipes, so that the client can end
        self.assertNotEqual(client.returncode, 0)
        stopped = json.loads(worker.log_path.read_text().splitlines()[-1])
        self.assertEqual((stopped["event"], stopped["cut_off_calls"]), ("stopped", 1))

    def test_second_signal_exits_at_once(self):
        worker = self.worker(self.model(context_tokens=100000), "none")
        client = self.running_request(worker, 90000)
        worker.popen.send_signal(signal.SIGTERM)
        # The first signal has been handled when the log says so.
        wait_for_log(worker, lambda text: "draining" in text)
        worker.popen.send_signal(signal.SIGTERM)
        self.assertEqual(worker.popen.wait(LONG_S), 1)
        client.communicate()  # reads the pipes, so that the client can end
        self.assertNotEqual(client.returncode, 0)


if __name__ == "__main__":
    system_support.main()
