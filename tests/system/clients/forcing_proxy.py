"""A proxy between a client and a worker, for a model that chooses tools at random.

The proxy changes requests so that they force a call with fixed arguments, then a fixed answer. It
changes nothing else. It is also the client's only way to the worker, so it sees each request and
its status.
"""

import contextlib
import http.client
import http.server
import json
import threading

from clients_test import MODEL
from system_support import SystemTest

SAID = "Done."
CLIENT_S = 1800  # seconds; Claude Code's prompt has 12,000 tokens, and the machine may be busy
GENERATING = ("/v1/chat/completions", "/v1/messages", "/v1/responses")


class Handler(http.server.BaseHTTPRequestHandler):
    """Forwards requests to `upstream`, HOST:PORT. Notes (path, status) and the results of calls."""
    upstream = None
    force = None
    seen, results = [], []

    def do_GET(self):
        self._forward(None)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.split("?")[0] in GENERATING:
            self.results += type(self).force(body)
        self._forward(json.dumps(body))

    do_HEAD = do_GET

    def _forward(self, body):
        with contextlib.closing(http.client.HTTPConnection(self.upstream, timeout=CLIENT_S)) as to:
            headers = {name: value for name, value in self.headers.items()
                       if name.lower() not in ("host", "content-length", "connection")}
            to.request(self.command, self.path, body, headers)
            answer = to.getresponse()
            self.seen.append((self.path, answer.status))
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers.get("Content-Type", "text/plain"))
            self.send_header("Connection", "close")
            self.end_headers()
            for part in iter(lambda: answer.read1(1 << 16), b""):
                self.wfile.write(part)
        self.close_connection = True

    def log_message(self, *unused):
        pass


class ForcingProxyTest(SystemTest):

    @contextlib.contextmanager
    def proxy(self, force):
        """Starts a worker and a proxy; yields the handler's class and the proxy's URL. `force`
        changes a request of a path in GENERATING; it returns the results of calls in the request.
        """
        worker = self.cluster.worker(MODEL, f"embedded:{self.folder / 'data'}", pages=("http",))
        handler = type("Forward", (Handler,), {
            "upstream": worker.url("http").removeprefix("http://"), "force": staticmethod(force),
            "seen": [], "results": []})
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield handler, f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()
