"""Store, worker and hearthctl with identities and TLS: the example of docs/security.md."""

import http.client
import socket
import ssl
import time

import grpc

import system_support
from access_support import AccessTest
from system_support import CHUNK_TOKENS, ProcessFailed, prompt

PREFIX_TOKENS = 8 * CHUNK_TOKENS
LONG_S = 120  # time limit of a wait; only a hanging process reaches it


class Tenants(AccessTest):

    def setUp(self):
        super().setUp()
        for name in ("store", "worker-1"):
            self.certificate(name)
        self.identities("store.json", public_tenant="public", identities=[
            {"name": "worker-1", "role": "worker", "certificate": "worker-1",
             "publishes_public": True},
            self.by_token("ops", "admin", publishes_public=True)])
        self.identities("callers.json", public_tenant="public", identities=[
            self.by_token("team-a", "tenant"), self.by_token("team-b", "tenant"),
            self.by_token("librarian", "tenant", tenant="public", publishes_public=True)])
        self.store = self.cluster.store(self.folder / "data", *self.served_by("store"),
                                        "--identities-file", self.access / "store.json")
        as_worker = [f"--store-tls-{flag}" for flag in ("ca", "cert", "key")]
        files = ["ca.pem", "worker-1.pem", "worker-1.key"]
        self.to_store = [part for flag, file in zip(as_worker, files)
                         for part in (flag, self.access / file)]

    def start_worker(self, *flags, **options):
        model = self.folder / "model-wide-1"
        return self.worker(model if model.exists() else self.model(), self.store.address,
                           *self.served_by("worker-1"), "--identities-file",
                           self.access / "callers.json", *(flags or self.to_store), **options)

    def generate(self, worker, name, ids):
        return self.cluster.generate(worker.address, ids, "--breakpoint", PREFIX_TOKENS,
                                     "--wait-published", *self.who(name))

    def test_tenant_sees_own_and_public_prefixes(self):
        first, second = self.start_worker(), self.start_worker()
        ids = prompt(PREFIX_TOKENS + 9, 1)
        self.assertEqual(self.generate(first, "team-a", ids)["cached_tokens"], 0)
        again = self.generate(second, "team-a", ids)
        self.assertGreaterEqual(again["cached_tokens"], PREFIX_TOKENS)
        cold = self.generate(second, "team-b", ids)
        self.assertEqual(cold["cached_tokens"], 0)
        self.assertEqual(cold["first_logits_sha256"], again["first_logits_sha256"])
        # All tenants may read prefixes that the librarian publishes.
        shared = prompt(PREFIX_TOKENS + 9, 2)
        self.generate(first, "librarian", shared)
        explained = self.cluster.ctl("explain", "--worker", second.address, "--token-ids",
                                     ",".join(map(str, shared)), "--breakpoint", PREFIX_TOKENS,
                                     *self.who("team-b"))
        self.assertTrue(any(b["from_public"] for b in explained["boundaries"]), explained)
        self.assertGreaterEqual(self.generate(second, "team-b", shared)["cached_tokens"],
                                PREFIX_TOKENS)
        at_store = ["--store", self.store.address, *self.who("ops")]
        counters = self.cluster.ctl("stats", *at_store)["counters"]
        self.assertGreaterEqual(counters["public_hits"], 1)
        for tenant in ("team-a", "team-b", "public"):
            stats = self.cluster.ctl("stats", "--tenant", tenant, *at_store)
            self.assertGreater(stats["restore_points"], 0, tenant)

    def test_worker_uses_renewed_certificate(self):
        worker = self.start_worker()
        self.generate(worker, "team-a", prompt(PREFIX_TOKENS + 9, 1))
        address = self.store.address
        self.store.stop()
        # A new authority, and new certificates of all servers.
        (self.access / "ca.pem").rename(self.access / "old-ca.pem")
        self.authority()
        for name in ("store", "worker-1"):
            self.certificate(name)
        self.cluster.store(self.folder / "data", *self.served_by("store"), "--identities-file",
                           self.access / "store.json", listen=address)
        end, seed, stored = time.monotonic() + LONG_S, 2, 0
        while not stored:
            self.assertLess(time.monotonic(), end, worker.log_tail())
            stored = self.cluster.generate(
                worker.address, prompt(PREFIX_TOKENS + 9, seed), "--wait-published", "--tls-ca",
                self.access / "old-ca.pem", "--token-file",
                self.access / "team-a.token")["published_tokens"]
            seed += 1

    def tls(self, certificate=None):
        """Returns the TLS settings of an HTTP caller."""
        context = ssl.create_default_context(cafile=self.access / "ca.pem")
        if certificate:
            context.load_cert_chain(self.access / f"{certificate}.pem",
                                    self.access / f"{certificate}.key")
        return context

    def ask_http(self, worker, headers, certificate=None):
        """Calls /tokenize; returns the status of the answer."""
        address = worker.url("http").removeprefix("http://")
        caller = http.client.HTTPSConnection(address, context=self.tls(certificate), timeout=LONG_S)
        self.addCleanup(caller.close)
        caller.request("POST", "/tokenize", '{"prompt": "a"}',
                       {"Content-Type": "application/json", **headers})
        return caller.getresponse().status

    def ask_grpc(self, worker, headers, certificate=None):
        """Calls GetModel; returns its status as HTTP has it."""
        files = [f"{certificate}.key", f"{certificate}.pem"] if certificate else []
        credentials = grpc.ssl_channel_credentials(
            *[(self.access / file).read_bytes() for file in ["ca.pem", *files]])
        with grpc.secure_channel(worker.address, credentials) as channel:
            call = channel.unary_unary("/hearth.v1.Inference/GetModel")
            try:
                call(b"", metadata=[(key.lower(), value) for key, value in headers.items()],
                     timeout=LONG_S)
            except grpc.RpcError as error:
                return 401 if error.code() == grpc.StatusCode.UNAUTHENTICATED else error.code()
        return 200

    def test_only_proxy_names_tenants(self):
        for name in ("door", "stranger"):
            self.certificate(name)
        self.identities("callers.json", identities=[
            self.by_token("team-a", "tenant"),
            {"name": "door", "role": "proxy", "certificate": "door"}])
        worker = self.start_worker(*self.to_store, "--log-level", "debug", "--log-format", "json",
                                   pages=("http",))
        token = {"Authorization": "Bearer token-of-team-a"}
        tenants = {}  # {request id of a call that must pass: its tenant}
        for number in range(5):
            named = {"X-Hearth-Tenant": f"team-{number}"}
            for ask, key in ((self.ask_http, "X-Request-Id"), (self.ask_grpc, "Hearth-Request-Id")):
                self.assertEqual(ask(worker, named), 401)
                self.assertEqual(ask(worker, named, "stranger"), 401)
                self.assertEqual(ask(worker, {}, "door"), 401)
                self.assertEqual(ask(worker, {"X-Hearth-Tenant": "a b"}, "door"), 401)
                for sent, certificate, tenant in (({**named, **token}, None, "team-a"),
                                                  (named, "door", f"team-{number}")):
                    call = f"call-{len(tenants)}"
                    self.assertNotEqual(ask(worker, {**sent, key: call}, certificate), 401)
                    tenants[call] = tenant
        self.assertEqual(self.logged_tenants(worker, tenants), tenants)

    def test_certificate_survives_session_resumption(self):
        self.identities("callers.json", identities=[
            {"name": "team-a", "role": "tenant", "certificate": "worker-1"}])
        worker = self.start_worker(*self.to_store, pages=("http",))
        context, session = self.tls("worker-1"), None
        host, port = worker.url("http").removeprefix("http://").split(":")
        for _ in range(2):
            with socket.create_connection((host, int(port)), timeout=LONG_S) as plain, \
                    context.wrap_socket(plain, server_hostname=host, session=session) as caller:
                caller.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertTrue(caller.recv(1 << 16).startswith(b"HTTP/1.1 200"))
                resumed, session = caller.session_reused, caller.session
        self.assertTrue(resumed)

    def test_unknown_identities_are_refused(self):
        worker = self.start_worker()
        (self.access / "stranger.token").write_text("token-of-nobody\n")
        ids = prompt(20, 1)
        for flags in (self.who("stranger"), ["--tls-ca", self.access / "ca.pem"]):
            with self.assertRaisesRegex(ProcessFailed, "no valid identity"):
                self.cluster.generate(worker.address, ids, *flags)
        # A worker that the store does not know works without the store.
        (self.access / "worker.token").write_text("token-of-nobody\n")
        unknown = self.start_worker("--store-tls-ca", self.access / "ca.pem", "--store-token-file",
                                    self.access / "worker.token")
        answer = self.generate(unknown, "team-a", prompt(PREFIX_TOKENS + 9, 3))
        self.assertEqual(answer["cached_tokens"], 0)
        self.assertEqual(answer["published_tokens"], 0)


if __name__ == "__main__":
    system_support.main()
