"""Starts a Redis server for a test."""

import shutil
import socket
import subprocess
import sys
import time

from system_support import LONG_S, SystemTest

# redis-check-rdb, in redis-tools, is the same program as redis-server under another name.
REDIS = shutil.which("redis-server") or shutil.which("redis-check-rdb")
SKIPPED = 77


def skip_without_redis():
    if REDIS is None:
        print("redis-tools is not installed")
        sys.exit(SKIPPED)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Redis:
    def __init__(self, folder, port=None):
        """Without `port`, the server gets a free port. Starts the server again if another process
        has taken the port."""
        folder.mkdir()
        until = time.monotonic() + LONG_S
        while True:
            self.port = port or free_port()
            self.popen = subprocess.Popen(
                ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                 "--dir", folder, "--logfile", folder / "log"], executable=REDIS)
            while self.popen.poll() is None:
                if self.answers():
                    return
                assert time.monotonic() < until
            assert time.monotonic() < until

    def answers(self):
        """Returns whether this process answers; a server of another test may have the port."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=LONG_S) as connection:
                connection.sendall(b"INFO server\r\nQUIT\r\n")
                with connection.makefile("rb") as answer:
                    return b"process_id:%d\r\n" % self.popen.pid in answer.read()
        except OSError:
            return False

    def send(self, number):
        self.popen.send_signal(number)

    def kill(self):
        self.popen.kill()
        self.popen.wait()


class RedisTest(SystemTest):
    """Each test has its own Redis; `shared`: the flags of a store that uses it as shared tier."""

    def setUp(self):
        super().setUp()
        self.redis = Redis(self.folder / "redis")
        self.addCleanup(self.redis.kill)
        self.secret = self.folder / "secret"
        self.secret.write_text("5a" * 32)
        self.secret.chmod(0o600)
        self.shared = ("--secret-file", self.secret, "--shared",
                       f"redis://127.0.0.1:{self.redis.port}")
