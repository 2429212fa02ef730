"""Faults in which the Redis cluster is changed, slowed down, cut off or full. Each takes a Field
(chaos.py)."""

import pathlib
import subprocess
import sys
import time

import load
from engine import Connection, wait_for
from hearth_procs import ProcessFailed
from outages import BUDGET_S, trace
from probe import Probe
from system_support import prompt

SLOTS = 16384
DELAYED_PORT = 6380
USER = "hearth"
RIGHTS = ("on", "~h1:*", "+exists", "+getrange", "+set", "+pexpire", "+unlink",
          "+asking", "+ping", "+client|setname", "+cluster|slots")


def _answered_in_ms(answers, share):
    values = sorted(answer.result["server"]["fetch_ms"] for answer in answers)
    return values[min(len(values) - 1, int(share * len(values)))]


def reshard(field):
    """A new, fourth primary gets a quarter of the slots from the other three."""
    fleet, verdict, engine = field.fleet, field.verdict, field.engine
    node = fleet.add_node(fleet.small_ram)
    probe = Probe(fleet, node.add_worker())
    probe.publish(fleet.nodes[0].workers[0])
    with load.Load(fleet.client, fleet.prompts, field.rate) as requests, probe:
        requests.wait_for_more(field.count // 3)
        added = engine.add_server()
        began, before = time.monotonic(), len(requests.answers)
        first = engine.servers[0]
        engine.manage("add-node", added.address, first.address)
        wait_for(lambda: len(added.cli("cluster", "nodes").splitlines()) == len(engine.servers),
                 "the new one knows all")
        engine.wait_whole()
        engine.manage("reshard", first.address, "--cluster-from", "all", "--cluster-to",
                      engine.node_id(added), "--cluster-slots", SLOTS // 4, "--cluster-yes")
        ended, after = time.monotonic(), len(requests.answers)
        requests.wait_for_more(field.count // 3)
    answers = requests.answers
    verdict.note("took s", f"{ended - began:.1f}")
    verdict.note("keys of the new one", added.cli("dbsize"))
    verdict.hits(answers[:before], answers[before:after], 0.99, "hits meanwhile, of those before")
    earlier = [answer for answer in probe.answers if answer.began < began]
    during = [answer for answer in probe.answers if began <= answer.began < ended]
    verdict.share("of the engine alone", load.hit_rate(during) / load.hit_rate(earlier), 0.99)
    verdict.note("fetch ms, before: median, p99",
                 f"{_answered_in_ms(earlier, .5):.1f}, {_answered_in_ms(earlier, .99):.1f}")
    verdict.note("fetch ms, meanwhile: median, p99",
                 f"{_answered_in_ms(during, .5):.1f}, {_answered_in_ms(during, .99):.1f}")
    here = [_answered_in_ms([answer for answer in some if answer.result["source_tier"] == "host"],
                            .99) for some in (answers[:before], answers[before:after])]
    verdict.note("p99 of what RAM had, before, meanwhile", f"{here[0]:.1f}, {here[1]:.1f}")
    # Resharding uses processor time too. The slowdown of RAM hits measures its effect.
    slower = _answered_in_ms(during, .99) / _answered_in_ms(earlier, .99)
    verdict.note("fetch p99, times that of before", f"{slower:.2f}")
    verdict.in_time("the same, of what RAM's p99 grew", slower / max(1.0, here[1] / here[0]), 2.0)
    verdict.answers(fleet, answers, probe.answers)


class DelayedRoutes:
    """Delaying proxies (delay.py), one for each server of a Redis cluster. A store that gets `urls`
    reaches the cluster only through them."""

    def __init__(self, field, folder):
        self._file = folder / "delay"
        self.set_ms(0)
        program = pathlib.Path(__file__).parent / "delay.py"
        self._programs = [subprocess.Popen(
            [*server.host.words, sys.executable, "-B", str(program), str(self._file),
             f"{server.host.address}:{DELAYED_PORT}", server.address])
            for server in field.engine.servers]
        field.engine.of_all("config", "set", "cluster-announce-port", DELAYED_PORT)
        self.urls = ",".join(f"{server.host.address}:{DELAYED_PORT}"
                             for server in field.engine.servers)
        wait_for(lambda: all(self._announces_delay(server) for server in field.engine.servers),
                 "all tell the slow way to all")

    def _announces_delay(self, server):
        try:
            Connection(server.host.address, DELAYED_PORT).ask("ping")
        except OSError:
            return False
        return all(place[1] == str(DELAYED_PORT)
                   for entry in server.cli("cluster", "slots") for place in entry[2:])

    def set_ms(self, delay_ms):
        fresh = self._file.with_suffix(".new")
        fresh.write_text(str(delay_ms))
        fresh.rename(self._file)

    def close(self):
        for program in self._programs:
            program.kill()
            program.wait()


def engine_delayed(field):
    """The cluster's answers to one store are delayed by 50 ms, then by more than its budget."""
    fleet, verdict = field.fleet, field.verdict
    way = DelayedRoutes(field, fleet.folder)
    try:
        node = fleet.add_node(fleet.small_ram, way.urls)
        probe = Probe(fleet, node.add_worker())
        probe.publish(fleet.nodes[0].workers[0])
        with load.Load(fleet.client, fleet.prompts, field.rate) as requests, probe:
            probe.wait_whole(0)
            cold = [fleet.ask(ids, probe.worker, "--cache", "off") for ids in probe.prompts]
            verdict.note("first tokens ms, cold: median, worst",
                         f"{load.first_token_ms(cold, .5):.0f}, {load.first_token_ms(cold, 1):.0f}")
            for delay_ms in (50, 400):
                way.set_ms(delay_ms)
                began = time.monotonic()
                requests.wait_for_more(field.count // 4)
                slow = [answer for answer in probe.answers if answer.began >= began]
                verdict.note(f"{delay_ms} ms: hits, first token ms median",
                             f"{load.hit_rate(slow):.3f}, {load.first_token_ms(slow, .5):.0f}")
                verdict.in_time(f"{delay_ms} ms: worst first token ms",
                                load.first_token_ms(slow, 1),
                                load.first_token_ms(cold, 1) + 1e3 * BUDGET_S, 0)
            healed = time.monotonic()
            way.set_ms(0)
            verdict.in_time("used again after s", probe.wait_whole(healed), 2.0)
        verdict.answers(fleet, requests.answers, probe.answers)
    finally:
        way.close()


class Dropped:
    """Publishes prompts, which are then dropped. Counts later answers of the nodes that still
    restore them."""

    def __init__(self, fleet, name):
        self._fleet = fleet
        self._prompts = [prompt(100, f"{name} {number}") for number in range(8)]
        for ids in self._prompts:
            fleet.publish(ids, fleet.nodes[0].workers[0])

    def __len__(self):
        return len(self._prompts)

    def count_served(self, node):
        return sum(self._fleet.ask(ids, node.workers[0], "--cache", "read").cached > 0
                   for ids in self._prompts)

    def check_forgotten(self, verdict, node, since, bar_s=2.0):
        """Checks that `node` soon serves none of the prompts, and none later."""
        wait_for(lambda: self.count_served(node) == 0, "it serves nothing dropped")
        verdict.in_time("the other serves none s after it is back", time.monotonic() - since, bar_s)
        verdict.none("served by it later", sum(self.count_served(node) for _ in range(3)))


def _drop_while_cut(field, name):
    """Cuts the second store, which serves the prompts, off from the cluster; then the first store
    drops everything. Returns the dropped prompts."""
    dropper, blind = field.fleet.nodes[:2]
    dropped = Dropped(field.fleet, name)
    field.verdict.all("served by the other before", dropped.count_served(blind), len(dropped))
    field.cut(blind)
    wait_for(lambda: _drops(dropper), "the first store drops everything")
    return dropped


def partition_and_drop(field):
    """One store is cut off from the cluster while another store drops everything; then their roles
    are swapped."""
    fleet, verdict = field.fleet, field.verdict
    dropper, blind = fleet.nodes[0], fleet.nodes[1]
    with load.Load(fleet.client, fleet.prompts, field.rate) as requests:
        dropped = _drop_while_cut(field, "drop")
        verdict.none("served by who dropped, after it", dropped.count_served(dropper))
        verdict.note("served by the other, cut off", dropped.count_served(blind))
        field.heal(blind)
        dropped.check_forgotten(verdict, blind, time.monotonic())
        newcomer = fleet.add_node()
        newcomer.add_worker()
        verdict.none("served by a new store", dropped.count_served(newcomer))
        field.cut(dropper)
        verdict.hold("a drop of one cut off", "is refused" if not _drops(dropper) else "is done",
                     "is refused", not _drops(dropper))
        field.heal(dropper)
        wait_for(lambda: _drops(dropper), "it can drop again")
        requests.wait_for_more(field.count // 8)
    verdict.answers(fleet, requests.answers)


def drop_and_loss(field):
    """While one store is cut off, another drops everything and the cluster loses all data; then the
    first store returns."""
    fleet, verdict = field.fleet, field.verdict
    blind = fleet.nodes[1]
    with load.Load(fleet.client, fleet.prompts, field.rate) as requests:
        dropped = _drop_while_cut(field, "loss")
        field.engine.of_all("flushall")
        field.heal(blind)
        # The first store reads the tenant's generation once a second. When it sees the loss, it
        # repeats its drop.
        dropped.check_forgotten(verdict, blind, time.monotonic(), 4.0)
        requests.wait_for_more(field.count // 8)
    verdict.answers(fleet, requests.answers)


def narrow_engine(field):
    """Each server of the cluster can send only 1 Mbit/s."""
    fleet, verdict = field.fleet, field.verdict
    node = fleet.add_node(fleet.small_ram)
    probe = Probe(fleet, node.add_worker())
    probe.publish(fleet.nodes[0].workers[0])
    with load.Load(fleet.client, fleet.prompts, field.rate) as requests, probe:
        probe.wait_whole(0)
        cold = [fleet.ask(ids, probe.worker, "--cache", "off") for ids in probe.prompts]
        for server in field.engine.servers:
            server.host.limit("1mbit")
        began = time.monotonic()
        requests.wait_for_more(field.count // 4)
        for server in field.engine.servers:
            server.host.unlimit()
        healed = time.monotonic()
        verdict.in_time("used again after s", probe.wait_whole(healed), 2.0)
    slow = [answer for answer in probe.answers if began <= answer.began <= healed]
    verdict.note("hits, first token ms: median, p99", f"{load.hit_rate(slow):.3f}, "
                 f"{load.first_token_ms(slow, .5):.0f}, {load.first_token_ms(slow, .99):.0f}")
    verdict.in_time("worst first token ms", load.first_token_ms(slow, 1),
                    load.first_token_ms(cold, 1) + 1e3 * BUDGET_S, 0)
    verdict.answers(fleet, requests.answers, probe.answers)


def _drops(node):
    try:
        node.drop_all()
    except subprocess.CalledProcessError:
        return False
    return True


def newcomers(field):
    """Measures the first requests of a new store with a worker, and of a new worker."""
    fleet, verdict = field.fleet, field.verdict
    with load.Load(fleet.client, fleet.prompts, field.rate) as requests:
        requests.wait_for_more(field.count // 8)
        node = fleet.add_node()
        first = fleet.ask(fleet.prompts.known[0], node.add_worker())
        verdict.hold("a new store's first request", f"{first.cached} of {first.restorable} tokens, "
                     f"{first.result['source_tier']}", "all, shared",
                     first.cached == first.restorable and first.result["source_tier"] == "shared")
        first = fleet.ask(fleet.prompts.known[0], fleet.nodes[2].add_worker())
        verdict.hold("a new worker's first request", f"{first.cached} of {first.restorable} tokens",
                     "all", first.cached == first.restorable)
        blind = fleet.add_node(cut=field.cut)
        alone = fleet.ask(fleet.prompts.known[1], blind.add_worker())
        verdict.none("tokens that one gets which never saw the engine", alone.cached)
        field.heal(blind)
        healed = time.monotonic()
        wait_for(lambda: _is_shared(fleet, blind), "it shares what others have")
        verdict.in_time("it shares s after it sees the engine", time.monotonic() - healed, 2.0)
        requests.wait_for_more(field.count // 8)
    verdict.answers(fleet, requests.answers, [first, alone])


def _is_shared(fleet, node):
    ids = prompt(100, f"seen {time.monotonic()}")
    fleet.ask(ids, fleet.nodes[0].workers[0], "--durability", "shared", "--wait-published")
    return fleet.ask(ids, node.workers[0], "--cache", "read").result["source_tier"] == "shared"


def _shares(field, number=0):
    """Returns whether a prompt published now through one store is restored through another."""
    fleet = field.fleet
    ids = prompt(100, f"share {time.monotonic()} {number}")
    try:
        given = fleet.ask(ids, fleet.nodes[0].workers[0], "--durability", "shared",
                          "--wait-published")
        if given.result["durable"] != "shared":
            return False
        got = fleet.ask(ids, fleet.nodes[1].workers[0], "--cache", "read")
    except ProcessFailed:
        return False
    return got.cached == got.restorable and got.result["source_tier"] == "shared"


def _break_and_repair(field, fault, mend, least=0.95):
    """Runs a load with a fault and its repair; the stores must soon share prefixes again."""
    fleet, verdict = field.fleet, field.verdict
    third = field.count // 3
    with load.Load(fleet.client, fleet.prompts, field.rate) as requests:
        before = requests.wait_for_more(third)
        fault()
        verdict.note("shares in the fault", _shares(field))
        requests.wait_for_more(third)
        mend()
        mended = time.monotonic()
        wait_for(lambda: _shares(field), "stores share again")
        verdict.in_time("stores share again after s", time.monotonic() - mended, 3.0)
        after = len(requests.answers)
        requests.wait_for_more(third)
    answers = requests.answers
    verdict.hits(answers[:before], answers[before + field.count // 10:after], least,
                 "hits a tenth of the trace later, of those before")
    verdict.hits(answers[:before], answers[after:], least, "hits after all, of those before")
    verdict.answers(fleet, answers)


def full_engine(field):
    """The cluster has no memory for another value and evicts nothing."""
    engine = field.engine

    def fault():
        engine.of_all("config", "set", "maxmemory-policy", "noeviction")
        engine.of_all("config", "set", "maxmemory", 1)

    _break_and_repair(field, fault, lambda: engine.of_all("config", "set", "maxmemory", 0))


def wrong_password(field):
    """Redis gets a new password; later the stores' password file gets it, too."""
    engine, file = field.engine, field.password_file

    def fault():
        engine.of_all("acl", "setuser", USER, "resetpass", ">another")
        engine.of_all("client", "kill", "user", USER)

    _break_and_repair(field, fault, lambda: file.write_text("another\n"))


def flushed(field):
    """Deletes all data of the cluster (FLUSHALL)."""
    trace(field, lambda _: field.engine.of_all("flushall"))


def emptied_server(field):
    """An empty server replaces a server at its address, and later gets its slots."""
    engine = field.engine
    server = engine.servers[0]
    old, slots = engine.node_id(server), engine.slots_of(server)

    def fault():
        server.kill()
        server.start(fresh=True)

    def mend():
        others = [other for other in engine.servers if other is not server]
        for other in others:
            other.cli("cluster", "forget", old)
        server.cli("cluster", "meet", others[0].host.address, 6379)
        wait_for(lambda: len(server.cli("cluster", "nodes").splitlines()) == len(engine.servers),
                 "they have met")
        for first, last in slots:
            server.cli("cluster", "addslotsrange", first, last)
        engine.wait_whole()

    _break_and_repair(field, fault, mend)


def another_cluster(field):
    """All servers are killed, and new ones form another cluster at the same addresses."""
    engine = field.engine

    def mend():
        for server in reversed(engine.servers):
            server.start(fresh=True)
        engine.servers.reverse()
        engine.join()

    _break_and_repair(field, engine.kill, mend)
