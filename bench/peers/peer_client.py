#!/usr/bin/env python3
"""A client of another cache, for wire_bench --peer: reads 256 values of 1 MiB a turn.

    peer_client.py mooncake SEGMENT_PORT METADATA MASTER   mooncake-transfer-engine, over TCP
    peer_client.py lmcache PORT                            lmcache_server's own wire protocol
    peer_client.py mooncake-node SEGMENT_PORT METADATA MASTER   the process that holds the values

Fills the store and prints "ready". Then, for each line of input, reads all values once and prints a
line. The values are read into one buffer that is reused, as by wire_bench's other clients.
"""
import os
import socket
import sys
import time

VALUES, SIZE = 256, 1 << 20


def mooncake_store(port, metadata, master, segment_bytes, buffer_bytes):
    from mooncake.store import MooncakeDistributedStore
    store = MooncakeDistributedStore()
    failed = store.setup(f"127.0.0.1:{port}", metadata, segment_bytes, buffer_bytes, "tcp", "",
                         master)
    if failed:
        sys.exit(f"mooncake: setup failed with {failed}")
    return store


def mooncake(port, metadata, master):
    import numpy
    store = mooncake_store(port, metadata, master, 0, 512 << 20)
    buffer = numpy.zeros(VALUES * SIZE, numpy.uint8)
    buffer[:] = 120
    if store.register_buffer(buffer.ctypes.data, buffer.nbytes):
        sys.exit("mooncake: the buffer was refused")
    keys = [f"{os.getpid()}-{i}" for i in range(VALUES)]
    for i, key in enumerate(keys):
        if store.put_from(key, buffer.ctypes.data + i * SIZE, SIZE):
            sys.exit(f"mooncake: put {i} failed")
    while True:
        yield
        for i, key in enumerate(keys):
            if store.get_into(key, buffer.ctypes.data + i * SIZE, SIZE) != SIZE:
                sys.exit(f"mooncake: get {i} failed")


def mooncake_node(port, metadata, master):
    store = mooncake_store(port, metadata, master, 2 << 30, 64 << 20)
    print("ready", flush=True)
    while store:
        time.sleep(3600)


def lmcache(port):
    import torch
    from lmcache.utils import CacheEngineKey
    from lmcache.v1.memory_management import MemoryFormat
    from lmcache.v1.protocol import ClientCommand, ClientMetaMessage, ServerMetaMessage
    peer = socket.create_connection(("127.0.0.1", int(port)))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer = memoryview(bytearray(VALUES * SIZE))
    head = memoryview(bytearray(ServerMetaMessage.packlength()))

    def send(command, i, size):
        key = CacheEngineKey("m", 1, 0, i, torch.bfloat16)
        shape = torch.Size((size, 0, 0, 0))
        peer.sendall(ClientMetaMessage(command, key, size, MemoryFormat.BINARY, torch.uint8, shape,
                                       None).serialize())

    def receive(into):
        got = 0
        while got < len(into):
            count = peer.recv_into(into[got:])
            if not count:
                sys.exit("lmcache: the server went away")
            got += count

    for i in range(VALUES):
        send(ClientCommand.PUT, i, SIZE)
        peer.sendall(bytes(SIZE))
    while True:
        yield
        for i in range(VALUES):
            send(ClientCommand.GET, i, 0)
            receive(head)
            if ServerMetaMessage.deserialize(bytes(head)).length != SIZE:
                sys.exit(f"lmcache: get {i} failed")
            receive(buffer[i * SIZE:(i + 1) * SIZE])


def main():
    roles = {"mooncake": mooncake, "lmcache": lmcache, "mooncake-node": mooncake_node}
    if len(sys.argv) < 3 or sys.argv[1] not in roles:
        sys.exit(__doc__)
    # stdout carries the answers, but the libraries print to it: answers use a copy of stdout, and
    # stdout itself is redirected to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    turns = roles[sys.argv[1]](*sys.argv[2:])
    next(turns)
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        next(turns)
        print("done", file=answers, flush=True)
    os._exit(0)  # sys.exit() would wait for the libraries' threads, which never end


if __name__ == "__main__":
    main()
