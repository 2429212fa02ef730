"""Faults in which something ends or falls silent. Each takes a Field and returns its verdict."""

import time

import load
from probe import SMALL_RAM, Probe

BUDGET_S = 0.5  # --shared-fetch-budget


def primary_killed(field, silent=False):
    """A primary's process ends, or its host falls silent: its replica takes over."""
    fleet, verdict = field.fleet, field.verdict
    node = fleet.add_node(SMALL_RAM)
    probe = Probe(fleet, node.add_worker())
    probe.publish(fleet.nodes[0].workers[0])
    primary = field.engine.primaries()[0]
    with load.Load(fleet.client, fleet.prompts, field.rate) as requests, probe:
        before = requests.go_on(field.count // 4)
        probe.wait_whole(0)
        began = time.monotonic()
        if silent:
            others = [server.host for server in field.engine.servers if server is not primary]
            primary.host.ignore(others + [some.host for some in fleet.nodes])
        else:
            primary.kill()
        again = probe.wait_whole(began)
        requests.go_on(field.count // 2)
    verdict.at_most("readable again after s", again, 3.5, 2)
    answers = requests.answers
    verdict.hits(answers[:before], answers[before:], 0.95)
    verdict.answers(fleet, answers, probe.answers)


def primary_silent(field):
    primary_killed(field, silent=True)


def shard_lost(field):
    """A third of the keys is gone for good, and cannot be written either."""
    def fault(_):
        field.engine.primaries()[0].kill()
    trace(field, fault)


def store_lost(field):
    """A store is killed; its workers compute until another one stands in its place, empty."""
    def fault(requests):
        node = field.fleet.nodes[1]
        node.store.kill()
        requests.go_on(field.count // 20)
        node.start()
    trace(field, fault)


def worker_lost(field):
    def fault(_):
        field.fleet.nodes[0].workers[0].kill()
    trace(field, fault)


def trace(field, fault):
    fleet, verdict = field.fleet, field.verdict
    with load.Load(fleet.client, fleet.prompts, field.rate) as requests:
        before = requests.go_on(field.count // 2)
        fault(requests)
        requests.go_on(field.count - before)
    tenth = field.count // 10
    answers = requests.answers
    verdict.note("hits in the tenth after it", f"{load.hit_rate(answers[before:before+tenth]):.3f}")
    verdict.hits(answers[before - 3 * tenth:before], answers[before + tenth:], 0.95,
                 "hits a tenth of the trace later, of those before")
    verdict.answers(fleet, answers)


def engine_silent(field):
    """What the engine answers one of the stores goes nowhere, and then comes again."""
    fleet, verdict = field.fleet, field.verdict
    node = fleet.add_node(SMALL_RAM)
    probe = Probe(fleet, node.add_worker())
    probe.publish(fleet.nodes[0].workers[0])
    servers = [server.host for server in field.engine.servers]
    with load.Load(fleet.client, fleet.prompts, field.rate) as requests, probe:
        requests.go_on(field.count // 4)
        probe.wait_whole(0)
        cold = [fleet.ask(ids, probe.worker, "--cache", "off") for ids in probe.prompts]
        began = time.monotonic()
        for server in servers:
            server.ignore([node.host])
        requests.go_on(field.count // 4)
        healed = time.monotonic()
        for server in servers:
            server.heed([node.host])
        again = probe.wait_whole(healed)
        requests.go_on(field.count // 4)
    during = [answer for answer in probe.answers if began <= answer.ended and
              answer.began <= healed]
    verdict.note("first tokens ms, cold: median, worst",
                 f"{load.first_token_ms(cold, .5):.0f}, {load.first_token_ms(cold, 1):.0f}")
    verdict.note("first tokens ms, silent: median, p99",
                 f"{load.first_token_ms(during, .5):.0f}, {load.first_token_ms(during, .99):.0f}")
    verdict.at_most("worst first token ms while silent", load.first_token_ms(during, 1),
                    load.first_token_ms(cold, 1) + 1e3 * BUDGET_S)
    verdict.at_most("used again after s", again, 2.0, 2)
    verdict.answers(fleet, requests.answers, probe.answers)
