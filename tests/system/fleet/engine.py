"""The Redis Cluster that the stores of a fleet share; each server is on its own host."""

import socket
import subprocess
import threading
import time

from namespaces import Host
from redis_process import REDIS

PORT = 6379
NODE_TIMEOUT_MS = 1000
# On a busy machine, servers would often count as failed after one second.
PATIENT_NODE_TIMEOUT_MS = 5000
LONG_S = 120  # time limit of a wait; only a hanging process reaches it
_pause = threading.Event()  # never set


def wait_for(what, why, timeout_s=LONG_S):
    """Polls `what()` until it is true; returns its result. `why`: text of the error."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        result = what()
        if result:
            return result
        _pause.wait(0.02)
    raise AssertionError(f"not in {timeout_s} s: {why}")


class Server:
    """A redis-server. It can be killed, and started again at its address."""

    def __init__(self, host, folder, *settings):
        self.host, self._folder, self._settings = host, folder, settings
        self.address = f"{host.address}:{PORT}"
        folder.mkdir()
        self.start()

    def start(self, fresh=False):
        if fresh:
            for name in ("nodes.conf", "dump.rdb"):
                (self._folder / name).unlink(missing_ok=True)
        words = ["--port", PORT, "--bind", self.host.address, "--save", "", "--dir", self._folder,
                 "--logfile", self._folder / "log", "--protected-mode", "no", *self._settings]
        self.popen = subprocess.Popen(
            [*self.host.words, "bash", "-c", 'exec -a redis-server "$0" "$@"', REDIS,
             *map(str, words)], stdin=subprocess.DEVNULL)
        wait_for(self._answers, f"{self.address} answers")

    def _answers(self):
        assert self.popen.poll() is None, (self._folder / "log").read_text()
        try:
            return self.cli("ping") == "PONG"
        except (OSError, RuntimeError):
            return False

    def cli(self, *words):
        """Sends a command; returns the answer."""
        return Connection(self.host.address).ask(*words)

    def signal(self, number):
        self.popen.send_signal(number)

    def kill(self):
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()


class Connection:
    """A connection for one command; answers are strings, lists or None."""

    def __init__(self, address, port=PORT):
        self._socket = socket.create_connection((address, port), timeout=LONG_S)
        self._reader = self._socket.makefile("rb")

    def ask(self, *words):
        with self._socket, self._reader:
            encoded = [str(word).encode() for word in words]
            self._socket.sendall(b"*%d\r\n" % len(encoded) + b"".join(
                b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded))
            return self._answer()

    def _answer(self):
        line = self._reader.readline().rstrip(b"\r\n").decode(errors="replace")
        if not line:
            raise OSError("the connection was closed")
        kind, rest = line[0], line[1:]
        if kind == "-":
            raise RuntimeError(rest)
        if kind == "$":
            if rest == "-1":
                return None
            return self._reader.read(int(rest) + 2)[:-2].decode(errors="replace")
        if kind == "*":
            return [self._answer() for _ in range(int(rest))]
        return rest


class Engine:
    """A Redis Cluster of `primaries` servers, each with `replicas` replicas."""

    def __init__(self, folder, primaries=3, replicas=1, settings=(), name="redis",
                 node_timeout_ms=NODE_TIMEOUT_MS):
        self._folder, self._name, self._settings = folder, name, settings
        self._node_timeout_ms = node_timeout_ms
        self._replicas = replicas
        self.servers = []
        for _ in range(primaries * (1 + replicas)):
            self.add_server()
        self.join()

    def add_server(self):
        name = f"{self._name}{len(self.servers) + 1}"
        self.servers.append(Server(
            Host(name), self._folder / name, "--cluster-enabled", "yes", "--cluster-node-timeout",
            self._node_timeout_ms, "--cluster-require-full-coverage", "no", "--cluster-port", 16379,
            "--cluster-replica-validity-factor", 0, "--repl-diskless-sync-delay", 0,
            *self._settings))
        return self.servers[-1]

    def join(self):
        """Makes a cluster of the servers, which do not know each other yet."""
        self.manage("create", *[server.address for server in self.servers], "--cluster-replicas",
                    self._replicas, "--cluster-yes")
        self.wait_whole()
        followers = len(self.servers) * self._replicas // (1 + self._replicas)
        wait_for(lambda: sum(self._follows(server) for server in self.servers) == followers,
                 "replicas follow")

    def manage(self, command, *words):
        done = subprocess.run(["nice", "redis-cli", "--cluster", command, *map(str, words)],
                              capture_output=True, text=True, check=False,
                              stdin=subprocess.DEVNULL, timeout=300)
        assert done.returncode == 0, done.stdout[-600:] + done.stderr[-600:]

    def alive(self):
        return [server for server in self.servers if server.popen.poll() is None]

    def wait_whole(self):
        def whole():
            infos = [server.cli("cluster", "info") for server in self.alive()]
            return all("cluster_state:ok" in info and "slots_ok:16384" in info for info in infos)
        wait_for(whole, "every server knows who has which slot")

    @staticmethod
    def _follows(server):
        return "master_link_status:up" in server.cli("info", "replication")

    def primaries(self):
        return [server for server in self.alive()
                if server.cli("role")[0] == "master" and self.slots_of(server)]

    @staticmethod
    def slots_of(server):
        """Returns the server's slots as ranges (first, last)."""
        mine = [line for line in server.cli("cluster", "nodes").splitlines() if "myself" in line]
        ranges = [word.split("-") for word in mine[0].split()[8:] if not word.startswith("[")]
        return [(entry[0], entry[-1]) for entry in ranges]

    def node_id(self, server):
        return server.cli("cluster", "myid")

    def keys(self):
        return sum(int(server.cli("dbsize")) for server in self.primaries())

    def of_all(self, *words):
        for server in self.alive():
            server.cli(*words)

    def urls(self):
        return ",".join(server.address for server in self.servers)

    def kill(self):
        for server in self.servers:
            server.kill()
