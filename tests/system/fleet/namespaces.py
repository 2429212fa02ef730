"""The hosts of a fleet on one machine: one network namespace for each host, all on one bridge.

Call enter() first: the program continues in its own namespaces, so that everything that it makes
there is removed at its end. It has an address on the bridge, like a client in the same network.
"""

import os
import shutil
import subprocess
import sys

INSIDE = "HEARTH_FLEET_INSIDE"
NETWORK = "10.77.0."
SKIPPED = 77
# Mounts a private /run/netns for the names of network namespaces.
MOUNT = "mount -t tmpfs tmpfs /run && mkdir /run/netns"


def run(*words):
    subprocess.run(list(map(str, words)), check=True, stdin=subprocess.DEVNULL)


def _skip(why):
    print(why)
    sys.exit(SKIPPED)


def enter():
    """Restarts the program in namespaces; ends it as skipped if they are not permitted."""
    if os.environ.get(INSIDE):
        _make_bridge()
        return
    unshare, ip = shutil.which("unshare"), shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if unshare is None or ip is None:
        _skip("unshare (util-linux) or ip (iproute2) is not installed")
    # In a PID namespace, all child processes end when this program ends, even if it is killed.
    words = [unshare, "--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
    if os.geteuid() != 0:
        words += ["--user", "--map-root-user"]
    trial = f"{MOUNT} && {ip} netns add trial && {ip} link add trial type bridge"
    tried = subprocess.run(words + ["sh", "-c", trial], capture_output=True, text=True,
                           check=False)
    if tried.returncode != 0:
        _skip(f"network namespaces are refused: {tried.stderr.strip()}")
    os.environ[INSIDE] = "1"
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    sys.stdout.flush()
    os.execv(unshare, words + [sys.executable, "-B", *sys.argv])


def _make_bridge():
    run("sh", "-c", MOUNT)
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "fleet", "type", "bridge")
    run("ip", "address", "add", f"{NETWORK}1/24", "dev", "fleet")
    run("ip", "link", "set", "fleet", "up")


class Host:
    """A network namespace with one address. `words`: command prefix to run a program in it."""

    _all = []

    def __init__(self, name):
        Host._all.append(self)
        number = len(Host._all)
        self.name, self.address = name, f"{NETWORK}{number + 1}"
        self.words = ["nsenter", f"--net=/run/netns/{name}"]
        self._outer = f"host{number}"
        run("ip", "netns", "add", name)
        run("ip", "link", "add", self._outer, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", self._outer, "master", "fleet", "up")
        self.ip("link", "set", "lo", "up")
        self.ip("address", "add", f"{self.address}/24", "dev", "eth0")
        self.ip("link", "set", "eth0", "up")

    @classmethod
    def forget_names(cls):
        """Deletes all namespaces, so that new hosts can use their names. REQUIRES: the hosts'
        programs have ended."""
        for host in cls._all:
            if host.name is not None:
                run("ip", "netns", "del", host.name)
                host.name = None

    def ip(self, *words):
        run("ip", "-netns", self.name, *words)

    def block_replies(self, others):
        """Silently drops this host's packets to the others."""
        for other in others:
            self.ip("route", "add", "blackhole", f"{other.address}/32")

    def unblock_replies(self, others):
        for other in others:
            self.ip("route", "del", "blackhole", f"{other.address}/32")

    def limit(self, rate):
        """Limits the rate of this host's outgoing packets; `rate` as in tc ("20mbit")."""
        run("tc", "-netns", self.name, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate,
            "burst", "64kb", "latency", "400ms")

    def unlimit(self):
        run("tc", "-netns", self.name, "qdisc", "del", "dev", "eth0", "root")
