"""probe.py grpc HOST PORT | tcp HOST PORT | http URL: asks as a kubelet's probe does.

Exits with 0 if the server is healthy. Like the kubelet, does not verify certificates.
"""

import socket
import ssl
import sys
import urllib.request

kind, *target = sys.argv[1:]
if kind == "http":
    context = ssl._create_unverified_context()
    urllib.request.urlopen(target[0], timeout=5, context=context)  # raises unless the status is 2xx
elif kind == "tcp":
    socket.create_connection((target[0], int(target[1])), timeout=5)
else:
    import grpc
    with grpc.insecure_channel(":".join(target)) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check", bytes, bytes)
        SERVING = b"\x08\x01"
        sys.exit(check(b"", timeout=5) != SERVING)
