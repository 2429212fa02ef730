"""Repeatedly requests prompts that only the Redis cluster has, to measure when it is readable."""

import itertools

from engine import wait_for
from system_support import BackgroundThread, CHUNK_TOKENS, prompt

PROMPT_TOKENS = 120
PROMPTS = 32  # more prompts than fit into the RAM of a store with `small_ram`


class Probe(BackgroundThread):
    """Requests the prompts in a loop through one worker, whose store has `small_ram`."""

    def __init__(self, fleet, worker, seed="probe"):
        super().__init__()
        self._fleet, self.worker = fleet, worker
        self.prompts = [prompt(PROMPT_TOKENS, f"{seed} {n}") for n in range(PROMPTS)]
        self._cycle = itertools.cycle(self.prompts)
        # (begin, end, whether all tokens were restored) of each answer that needed Redis.
        self.seen = []
        self.answers = []

    def publish(self, worker):
        for ids in self.prompts:
            self._fleet.publish(ids, worker)

    def _run(self):
        while not self._stop.is_set():
            answer = self._fleet.ask(next(self._cycle), self.worker, "--cache", "read")
            whole = answer.cached == answer.restorable
            self.answers.append(answer)
            if whole and answer.result["source_tier"] != "shared":
                continue  # an answer from the store's RAM says nothing about Redis
            self.seen.append((answer.began, answer.ended, whole))

    def wait_whole(self, since, in_a_row=4):
        """Waits until `in_a_row` consecutive prompts were restored. Returns the seconds from
        `since` to the end of the first."""
        def whole():
            later = [entry for entry in self.seen if entry[0] >= since]
            for first in range(len(later) - in_a_row + 1):
                run = later[first:first + in_a_row]
                if all(entry[2] for entry in run):
                    return run[0][1] - since
            return None
        return wait_for(whole, "what the engine has is readable again")


def publish_one_chunk(fleet, engine, count):
    """Publishes prompts of one chunk; returns (token ids, servers that have its two objects) of
    each."""
    def heads():
        return {(name, server) for server in engine.primaries()
                for name in server.cli("keys", "*:[gl]:0")}

    published, known = [], heads()
    for number in range(count):
        ids = prompt(CHUNK_TOKENS + 1, f"one chunk {number}")
        fleet.publish(ids, fleet.nodes[0].workers[0])
        now = heads()
        # The prompt's last token is in separate, smaller objects.
        new = sorted(now - known, key=lambda head: -int(head[1].cli("strlen", head[0])))
        published.append((ids, [server for _, server in new[:2]]))
        known = now
    return published


class OneChunk(BackgroundThread):
    """Requests prompts of one chunk, each once, through a store that has only the first of them in
    RAM. With the first prompt, the store has read the generation and the fingerprint, each of which
    is on one shard."""

    def __init__(self, fleet, worker, prompts):
        super().__init__()
        self._fleet, self._worker, self._prompts = fleet, worker, prompts[1:]
        fleet.ask(prompts[0], worker, "--cache", "read")
        self.answers = []

    def _run(self):
        for ids in self._prompts:
            if self._stop.is_set():
                return
            self.answers.append(self._fleet.ask(ids, self._worker, "--cache", "read"))
