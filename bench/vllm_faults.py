"""vLLM with a store behind a proxy that disconnects, stalls, slows down or corrupts bytes, and with
a full store.

usage: .clients/vllm/bin/python bench/vllm_faults.py MODEL STORE FULL ROUNDS SEED
       (PYTHONPATH=build/python)

MODEL: a folder, as build/tests/write_checkpoint writes it (layers gllgl, a window of 24, heads 2 1
32, 160 tokens). STORE, FULL: addresses of two stores, FULL with --host-bytes 1MiB --disk-bytes
1MiB. A round is four greedy prompts at once; the fault begins at a random moment of the round.
Prints the number of answers that differed from the answers before the first fault, the number of
restored prompts, the requests, their calls of the stores, and the used cores, over 10 s before the
first and after the last fault, including the proxy, without the polling threads of torch's gloo.
"""

import asyncio
import json
import os
import pathlib
import random
import sys
import threading
import time

os.environ.update({"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0-0",
                   "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_HOST_IP": "127.0.0.1",
                   "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"})
said, sys.stdout = sys.stdout, sys.stderr

from hearth_cache import Store  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402
from vllm.distributed.kv_transfer import get_kv_transfer_group  # noqa: E402

VOCABULARY, NEW_TOKENS = 160, 4
FAULTS = ("none", "killed", "silent", "slow", "lying", "full")
SLOW_S = 0.02  # for each piece


class Wire:
    """A proxy with one port in front of two stores. `fault`: the fault that it makes now."""

    def __init__(self, address, full_address):
        self.addresses = {False: address, True: full_address}
        self.fault, self.source, self.open = "none", random.Random(1), set()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.port = asyncio.run_coroutine_threadsafe(self.listen(), self.loop).result()

    async def listen(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return self.server.sockets[0].getsockname()[1]

    async def serve(self, reader, writer):
        if self.fault == "killed":
            writer.close()
            return
        host, port = self.addresses[self.fault == "full"].rsplit(":", 1)
        up = await asyncio.open_connection(host, int(port))
        self.open |= {writer, up[1]}
        await asyncio.gather(self.pump(reader, up[1]), self.pump(up[0], writer, lies=True))
        self.open -= {writer, up[1]}

    async def pump(self, reader, writer, lies=False):
        try:
            while piece := await reader.read(1 << 16):
                while self.fault == "silent":
                    await asyncio.sleep(SLOW_S)
                if self.fault == "slow":
                    await asyncio.sleep(SLOW_S)
                if lies and self.fault == "lying" and len(piece) > 4096:
                    piece = bytearray(piece)
                    piece[self.source.randrange(len(piece))] ^= 1 << self.source.randrange(8)
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    def change(self, fault):
        """Sets the fault. Closes open connections if the fault stops the proxy or switches to the
        other store."""
        def set_it():
            if {fault, self.fault} & {"killed", "full"}:
                for writer in self.open:
                    writer.close()
            self.fault = fault
        self.loop.call_soon_threadsafe(set_it)


def idle_cores():
    """Measures for 10 s how many processor cores this process uses."""
    def spent():
        polling = [int((task / "schedstat").read_text().split()[0]) / 1e9
                   for task in pathlib.Path("/proc/self/task").iterdir()
                   if (task / "comm").read_text().startswith("gloo_")]
        return time.process_time() - sum(polling)
    time.sleep(1)
    begin = spent()
    time.sleep(10)
    return (spent() - begin) / 10


def counted(name, counts):
    whole = getattr(Store, name)

    def call(*arguments, **options):
        counts[name] = counts.get(name, 0) + 1
        return whole(*arguments, **options)
    setattr(Store, name, call)


def main(model, address, full_address, rounds, seed):
    wire, counts, source = Wire(address, full_address), {}, random.Random(seed)
    for name in ("lease", "fetch"):
        counted(name, counts)
    engine = LLM(model, skip_tokenizer_init=True, dtype="float32", enforce_eager=True,
                 max_model_len=1024, enable_prefix_caching=False, max_num_seqs=4,
                 kv_transfer_config=KVTransferConfig(
                     kv_connector="HearthConnector", kv_connector_module_path="hearth_cache.vllm",
                     kv_role="kv_both", kv_load_failure_policy="recompute",
                     kv_connector_extra_config={"store": f"127.0.0.1:{wire.port}"}))
    sampling = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False,
                              temperature=0)
    mover = get_kv_transfer_group()._mover  # of this process

    def answers(prompts):
        return [(list(done.outputs[0].token_ids), done.num_cached_tokens)
                for done in engine.generate([{"prompt_token_ids": ids} for ids in prompts],
                                            sampling, use_tqdm=False)]

    shared = [[2] + [source.randrange(3, VOCABULARY) for _ in range(300 + 130 * i)]
              for i in range(4)]
    prompts = [ids + [3 + i] for i, ids in enumerate(shared)]
    right = [ids for ids, _ in answers(prompts)]
    mover.flush()
    before = idle_cores()
    wrong = asked = loaded = 0
    counts.clear()
    for number in range(rounds):
        fault = FAULTS[number % len(FAULTS)]
        timer = threading.Timer(source.uniform(0, 0.1), wire.change, (fault,))
        timer.start()
        for made, cached in zip(answers(prompts), right):
            wrong += made[0] != cached
            loaded += made[1] > 0
            asked += 1
        timer.join()
        mover.quiet.end()
        get_planner(engine).quiet.end()
    wire.change("killed")
    after = idle_cores()
    print(json.dumps({"wrong": wrong, "asked": asked, "loaded": loaded, "counts": counts,
                      "failures": mover.quiet.failures + get_planner(engine).quiet.failures,
                      "idle_before": before, "idle_after": after}), file=said)


def get_planner(engine):
    return engine.llm_engine.engine_core.engine_core.scheduler.connector._planner


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5]))
