"""Router: reads the events of hearth_cache.events as routers for vLLM do.

It subscribes, decodes with msgspec, and requests a replay if a batch number is missing.
"""

import time

import msgspec
import zmq

from vllm_events import AllBlocksCleared, Batch, BlockRemoved

LONG_S = 120
END = b"\xff" * 8


class Router:

    def __init__(self, publisher, replayer, topic="kv@"):
        self.context = zmq.Context()
        self.subscriber = self.context.socket(zmq.SUB)
        self.subscriber.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.subscriber.connect(publisher)
        self.asker = self.context.socket(zmq.DEALER)
        self.asker.connect(replayer)
        self.blocks = {}  # id: (parent, tokens)
        self.last = None  # number of the last batch received
        self.replays = 0

    def close(self):
        self.context.destroy(linger=0)

    def take(self, until):
        """Applies the next batch. If batches were missed, requests a replay first."""
        left_ms = max(0, int((until - time.monotonic()) * 1000))
        if not self.subscriber.poll(left_ms):
            raise TimeoutError("no batch came")
        topic, number, payload = self.subscriber.recv_multipart()
        number = int.from_bytes(number, "big")
        if self.last is None or number > self.last + 1:
            self.replay(0 if self.last is None else self.last + 1)
        if number > self.last:
            self.apply(number, payload)
        return topic

    def replay(self, first):
        self.replays += 1
        self.asker.send_multipart([b"", first.to_bytes(8, "big")])
        while True:
            if not self.asker.poll(LONG_S * 1000):
                raise TimeoutError("no answer came")
            empty, number, payload = self.asker.recv_multipart()
            assert empty == b""
            if number == END:
                return
            self.apply(int.from_bytes(number, "big"), payload)

    def apply(self, number, payload):
        for event in msgspec.msgpack.decode(payload, type=Batch).events:
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
            elif isinstance(event, BlockRemoved):
                for block in event.block_hashes:
                    del self.blocks[block]
            else:
                parent, size = event.parent_block_hash, event.block_size
                assert len(event.token_ids) == size * len(event.block_hashes)
                assert parent is None or parent in self.blocks
                for i, block in enumerate(event.block_hashes):
                    tokens = tuple(event.token_ids[i * size:(i + 1) * size])
                    self.blocks[block] = (parent, tokens)
                    parent = block
        self.last = number

    def wait_for(self, what):
        """Applies batches until what() is true."""
        until = time.monotonic() + LONG_S
        while not what():
            self.take(until)

    def matched_tokens(self, ids):
        """Returns how many tokens of a prompt this router expects to be cached."""
        children = {(parent, tokens): block for block, (parent, tokens) in self.blocks.items()}
        parent, matched = None, 0
        while True:
            for size in {len(tokens) for _, tokens in self.blocks.values()}:
                block = children.get((parent, tuple(ids[matched:matched + size])))
                if block is not None:
                    parent, matched = block, matched + size
                    break
            else:
                return matched
