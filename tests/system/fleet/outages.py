"""Faults in which a process ends or does not answer. Each takes a Field (chaos.py) and adds to its
verdict."""

import time

import load
from probe import OneChunk, Probe, publish_one_chunk

BUDGET_S = 0.5  # --shared-fetch-budget


def primary_killed(field, silent=False):
    """A primary is killed or, with `silent`, cut off from all hosts: its replica must take over."""
    fleet, verdict = field.fleet, field.verdict
    node = fleet.add_node(fleet.small_ram)
    probe = Probe(fleet, node.add_worker())
    probe.publish(fleet.nodes[0].workers[0])
    primary = field.engine.primaries()[0]
    elsewhere = [ids for ids, holders in publish_one_chunk(fleet, field.engine, field.count // 3)
                 if primary not in holders]
    others = OneChunk(fleet, fleet.add_node(fleet.small_ram).add_worker(), elsewhere)
    with load.Load(fleet.client, fleet.prompts, field.rate) as requests, probe:
        before = requests.wait_for_more(field.count // 4)
        probe.wait_whole(0)
        began = time.monotonic()
        if silent:
            rest = [server.host for server in field.engine.servers if server is not primary]
            primary.host.block_replies(rest + [some.host for some in fleet.nodes])
        else:
            primary.kill()
        with others:
            again = probe.wait_whole(began)
        requests.wait_for_more(field.count // 2)
    asked = others.answers
    verdict.note("meanwhile asked for other shards' keys", len(asked))
    lost = sum(answer.cached == 0 for answer in asked)
    if silent:  # If the silent primary has the generation, lookups may wait for their whole budget.
        verdict.note("of those, not restored", lost)
    else:  # A server that stalls for half a second on a busy machine counts as silent.
        verdict.in_time("of those, not restored", lost, 0, 0)
    verdict.in_time("readable again after s", again, 3.5)
    answers = requests.answers
    verdict.hits(answers[:before], answers[before:], 0.95)
    verdict.answers(fleet, answers, probe.answers, asked)


def primary_silent(field):
    primary_killed(field, silent=True)


def shard_lost(field):
    """A primary without a replica is killed: a third of the keys is lost and cannot be written."""
    def fault(_):
        field.engine.primaries()[0].kill()
    trace(field, fault)


def store_lost(field):
    """A store is killed; its workers compute until a new, empty store is started in its place."""
    def fault(requests):
        node = field.fleet.nodes[1]
        node.store.kill()
        requests.wait_for_more(field.count // 20)
        node.start()
    trace(field, fault)


def worker_lost(field):
    def fault(_):
        field.fleet.nodes[0].workers[0].kill()
    trace(field, fault)


def trace(field, fault):
    fleet, verdict = field.fleet, field.verdict
    with load.Load(fleet.client, fleet.prompts, field.rate) as requests:
        before = requests.wait_for_more(field.count // 2)
        fault(requests)
        requests.wait_for_more(field.count - before)
    tenth = field.count // 10
    answers = requests.answers
    verdict.note("hits in the tenth after it", f"{load.hit_rate(answers[before:before+tenth]):.3f}")
    verdict.hits(answers[before - 3 * tenth:before], answers[before + tenth:], 0.95,
                 "hits a tenth of the trace later, of those before")
    verdict.answers(fleet, answers)


def engine_silent(field):
    """The cluster's answers to one store are dropped for a while."""
    fleet, verdict = field.fleet, field.verdict
    node = fleet.add_node(fleet.small_ram)
    probe = Probe(fleet, node.add_worker())
    probe.publish(fleet.nodes[0].workers[0])
    with load.Load(fleet.client, fleet.prompts, field.rate) as requests, probe:
        requests.wait_for_more(field.count // 4)
        probe.wait_whole(0)
        cold = [fleet.ask(ids, probe.worker, "--cache", "off") for ids in probe.prompts]
        began = time.monotonic()
        field.cut(node)
        requests.wait_for_more(field.count // 4)
        healed = time.monotonic()
        field.heal(node)
        again = probe.wait_whole(healed)
        requests.wait_for_more(field.count // 4)
    during = [answer for answer in probe.answers if began <= answer.ended and
              answer.began <= healed]
    verdict.note("first tokens ms, cold: median, worst",
                 f"{load.first_token_ms(cold, .5):.0f}, {load.first_token_ms(cold, 1):.0f}")
    verdict.note("first tokens ms, silent: median, p99",
                 f"{load.first_token_ms(during, .5):.0f}, {load.first_token_ms(during, .99):.0f}")
    verdict.in_time("worst first token ms while silent", load.first_token_ms(during, 1),
                    load.first_token_ms(cold, 1) + 1e3 * BUDGET_S, 0)
    verdict.in_time("used again after s", again, 2.0)
    verdict.answers(fleet, requests.answers, probe.answers)
