"""Hosts, each with a store and workers; the Redis cluster that the stores share; and a client."""

import json
import pathlib
import subprocess

from engine import wait_for
from hearth_procs import Cluster
from load import Answer, Client, Prompts, Reference
from namespaces import Host
from system_support import CHUNK_TOKENS, GEOMETRIES, LONG_S

SECRET = "5a" * 32
STORE_PORT, METRICS_PORT = 7080, 7081
CONTEXT_TOKENS = 2048


class Node:
    """A host with a store and workers. The store can be killed and started again."""

    def __init__(self, fleet, name, store_flags):
        self.fleet, self.host, self._flags = fleet, Host(name), store_flags
        self.workers = []
        self.store = None

    def start(self):
        self.store = self.fleet.cluster.store(
            "", "--metrics-listen", f"127.0.0.1:{METRICS_PORT}", *self._flags,
            listen=f"127.0.0.1:{STORE_PORT}", under=self.host.words)

    def add_worker(self):
        worker = self.fleet.start_worker(f"127.0.0.1:{STORE_PORT}", self.host)
        self.workers.append(worker)
        return worker

    def counters(self):
        """Returns the store's counters, as in `hearthctl stats`."""
        said = subprocess.run(
            [*self.host.words, str(self.fleet.cluster.bin_dir / "hearthctl"), "stats", "--store",
             self.store.address, "--json"], capture_output=True, text=True, check=True)
        return json.loads(said.stdout.splitlines()[-1])["counters"]

    def drop_all(self):
        subprocess.run(
            [*self.host.words, str(self.fleet.cluster.bin_dir / "hearthctl"), "drop", "--all",
             "--store", self.store.address], capture_output=True, text=True, check=True)


class Fleet:
    """The nodes, a reference worker without a store, and a client. `engine`: addresses of the Redis
    cluster. `model`: a folder; None: a tiny model. `patient`: lookups get long time limits,
    so that, even on a busy machine, they find the entries of the cluster."""

    def __init__(self, bin_dir, checkpoint_writer, folder, engine, nodes=(2, 1, 1),
                 store_flags=(), model=None, patient=False):
        self.cluster = Cluster(bin_dir, folder / "processes")
        self.folder, self.engine = pathlib.Path(folder), engine
        self._secret = self.folder / "secret"
        self._secret.write_text(SECRET)
        self._secret.chmod(0o600)
        self.model = model or self._write_model(checkpoint_writer)
        self.small_ram = "24MiB" if model else "1MiB"  # a few prompts
        self.flags = ("--secret-file", self._secret, *store_flags,
                      *(("--shared-fetch-budget", "1m") if patient else ()))
        self._worker_flags = ("--fetch-budget", f"{LONG_S}s") if patient else ()
        self.nodes = []
        for workers in nodes:
            node = self.add_node()
            for _ in range(workers):
                node.add_worker()
        self.reference = Reference(self.cluster, self.start_worker("none", None))
        self.prompts = Prompts()
        self.client = Client(self.cluster, [])
        self.see_workers()

    def close(self):
        for process in self.cluster.processes:
            process.kill()

    def _write_model(self, checkpoint_writer):
        folder = self.folder / "model"
        folder.mkdir()
        subprocess.run([checkpoint_writer, folder, *map(str, GEOMETRIES["wide"]),
                        str(CONTEXT_TOKENS), "1"], check=True)
        return folder

    def start_worker(self, store, host):
        flags = ["--load", "always", "--chunk-tokens", CHUNK_TOKENS, "--threads", "1",
                 "--pool-bytes", 0, "--digest-cache", "", *self._worker_flags]
        place = {} if host is None else {"listen": f"{host.address}:0", "under": host.words}
        return self.cluster.worker(self.model, store, *flags, **place)

    def add_node(self, host_bytes="256MiB", engine=None, cut=lambda node: None):
        """Adds a node. `cut(node)` is called before its store starts."""
        node = Node(self, f"node{len(self.nodes) + 1}",
                    (*self.flags, "--host-bytes", host_bytes, "--shared",
                     f"redis://{engine or self.engine}"))
        cut(node)
        node.start()
        self.nodes.append(node)
        return node

    def see_workers(self):
        self.client.workers = [worker for node in self.nodes for worker in node.workers]

    def ask(self, ids, worker=None, *flags):
        # On a busy machine, the first connect can fail.
        flags += () if worker is None else ("--wait", LONG_S)
        client = self.client if worker is None else Client(self.cluster, [worker])
        answer = client.ask(Answer(ids, 0), *flags)
        assert answer.result, answer.errors
        return answer

    def publish(self, ids, worker=None):
        """Publishes a prompt until the Redis cluster has it: a write can fail while a server of the
        cluster stalls."""
        wait_for(lambda: self.ask(ids, worker, "--durability", "shared",
                                  "--wait-published").result["durable"] == "shared",
                 "the cluster has the prompt")

    def publish_known(self):
        """Publishes all known prompts to the Redis cluster."""
        for ids in self.prompts.known:
            self.publish(ids)

    def count(self, name):
        return sum(node.counters()[name] for node in self.nodes if node.store.popen.poll() is None)
