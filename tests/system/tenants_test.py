"""Store, worker and hearthctl with identities and TLS: the example of docs/security.md."""

import hashlib
import json
import subprocess
import time

import system_support
from system_support import CHUNK_TOKENS, ProcessFailed, SystemTest, prompt

PREFIX_TOKENS = 8 * CHUNK_TOKENS
LONG_S = 120  # time limit of a wait; only a hanging process reaches it


class Tenants(SystemTest):

    def setUp(self):
        super().setUp()
        self.access = self.folder / "access"
        self.access.mkdir()
        self.authority()
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

    def authority(self):
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                     "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")

    def openssl(self, *arguments):
        subprocess.run(["openssl", *arguments], cwd=self.access, check=True, capture_output=True)

    def certificate(self, name):
        (self.access / "san").write_text("subjectAltName=IP:127.0.0.1\n")
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                     "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                     "-CAcreateserial", "-extfile", "san", "-out", f"{name}.pem")

    def by_token(self, name, role, **more):
        token = f"token-of-{name}"
        (self.access / f"{name}.token").write_text(token + "\n")
        return {"name": name, "role": role,
                "token_sha256": hashlib.sha256(token.encode()).hexdigest(), **more}

    def identities(self, file, **content):
        (self.access / file).write_text(json.dumps(content))

    def served_by(self, name):
        return ["--tls-cert", self.access / f"{name}.pem", "--tls-key",
                self.access / f"{name}.key", "--tls-client-ca", self.access / "ca.pem"]

    def who(self, name):
        return ["--tls-ca", self.access / "ca.pem", "--token-file", self.access / f"{name}.token"]

    def start_worker(self, *flags):
        model = self.folder / "model-wide-1"
        return self.worker(model if model.exists() else self.model(), self.store.address,
                           *self.served_by("worker-1"), "--identities-file",
                           self.access / "callers.json", *(flags or self.to_store))

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
