"""A fleet behind Envoy with deploy/envoy/envoy.yaml: affinity, drains, crashes, upgrades and
identities.

Run as: python envoy_test.py BIN_DIR WRITE_CHECKPOINT [unittest arguments]. scripts/clients.sh envoy
installs Envoy and an OpenAI client; without them, the exit code is 77, which ctest shows as
skipped. HEARTH_OTHER_BIN, a folder of another version's programs: the upgrade begins with these.
"""

import front_door

front_door.run_with_envoy()

# The rest runs with the Python of .clients/envoy, which has these modules.
import base64
import concurrent.futures
import hashlib
import hmac
import http.client
import http.server
import itertools
import json
import os
import pathlib
import shutil
import signal
import ssl
import threading
import time

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from openai import OpenAI

import system_support
from access_support import AccessTest
from front_door import FrontDoor, configuration, find, limit_callers, manager, set_addresses
from hearth_procs import ProcessFailed
from http_worker import MODEL, TOKENIZER, VOCABULARY
from log_waits import LONG_S
from system_support import CHUNK_TOKENS, SystemTest

CHATS, TURNS, CALLERS = 32, 6, 4
STREAM_S, STREAM_BYTES_PER_S = 60, 100 << 10
OTHER_BIN = os.environ.get("HEARTH_OTHER_BIN")


class Fleet(SystemTest):
    """Four workers behind Envoy, without identities."""

    def start_worker(self, store, **options):
        return self.worker(self.folder / "model-wide-1", store, "--http-model", MODEL,
                           "--max-queue", "1024", pool_bytes=64 << 20,
                           **{"pages": ("http",), **options})

    def start(self, stores):
        """Starts the workers at these stores, and Envoy."""
        model = self.model(context_tokens=100000, vocabulary=VOCABULARY)
        shutil.copy(TOKENIZER, model)
        self.workers = [self.start_worker(store) for store in stores]
        config = configuration([worker.address for worker in self.workers],
                               [http_address(worker) for worker in self.workers])
        limit_callers(config, max_tokens=1000000, tokens_per_fill=1000000)
        self.door = FrontDoor(config, self.folder)
        self.addCleanup(self.door.stop)
        self.client = OpenAI(base_url=f"http://{self.door.address}/v1", api_key="none",
                             max_retries=0, timeout=LONG_S)


def http_address(worker):
    return worker.url("http").removeprefix("http://")


class Affinity(Fleet):

    def setUp(self):
        super().setUp()
        self.start(["none"] * 4)  # a turn finds cached tokens only at the worker of the turn before

    def check(self, chat, count):
        """Runs chats; `chat(number)` returns (prompt tokens, cached tokens) of each turn."""
        with concurrent.futures.ThreadPoolExecutor(CALLERS) as callers:
            chats = list(callers.map(chat, range(count)))
        pairs = [pair for turns in chats for pair in itertools.pairwise(turns)]
        self.assertEqual(len(pairs), count * (TURNS - 1))
        stayed = sum(cached >= tokens - CHUNK_TOKENS for (tokens, _), (_, cached) in pairs)
        print(f"{stayed} of {len(pairs)} turns at their worker", flush=True)
        self.assertGreaterEqual(stayed, 0.95 * len(pairs))

    @staticmethod
    def begin(number):
        """Returns the first messages of a chat. The system texts of half of the chats are longer
        than the part of the body that Envoy reads."""
        text = f"{number}: You keep a lighthouse. " * (200 if number % 2 else 1)
        return [{"role": "system", "content": text},
                {"role": "user", "content": f"Who climbs stair {number}?"}]

    def http_chat(self, number):
        messages, turns = self.begin(number), []
        for turn in range(TURNS):
            answer = self.client.chat.completions.create(model=MODEL, messages=messages,
                                                         max_tokens=8, temperature=0)
            usage = answer.usage
            turns.append((usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens))
            messages += [{"role": "assistant", "content": answer.choices[0].message.content},
                         {"role": "user", "content": f"And after {turn}?"}]
        return turns

    def grpc_chat(self, number):
        messages, turns = self.begin(number), []
        file = self.folder / f"chat{number}.json"
        for turn in range(TURNS):
            file.write_text(json.dumps(messages))
            answer = self.cluster.ctl("generate", "--worker", self.door.address, "--chat", file,
                                      "--max-new-tokens", "8", "--ignore-eos")
            turns.append((answer["prompt_tokens"], answer["cached_tokens"]))
            messages += [{"role": "assistant", "content": answer["text"]},
                         {"role": "user", "content": f"And after {turn}?"}]
        return turns

    def test_turns_stay_at_their_worker(self):
        self.check(self.http_chat, CHATS)
        spread = [self.workers_used("workers_http"), self.workers_used("workers_grpc")]
        self.check(self.grpc_chat, 8)
        self.assertGreater(spread[0], 1)
        self.assertGreater(self.workers_used("workers_grpc"), spread[1])

    def workers_used(self, cluster):
        totals = [{stat["name"]: int(stat.get("value", 0)) for stat in host["stats"]}["rq_total"]
                  for host in self.door.hosts(cluster).values()]
        return sum(total > 0 for total in totals)

    def test_affinity_header_selects_worker(self):
        for _ in range(8):
            self.client.chat.completions.create(
                model=MODEL, messages=self.begin(time.monotonic_ns()), max_tokens=1,
                extra_headers={"x-hearth-affinity": "one"})
        self.assertEqual(self.workers_used("workers_http"), 1)


class Load:
    """Sends chats from CALLERS threads while the block runs. Keeps their errors and texts."""

    PROMPTS = 16

    def __init__(self, client):
        self._client, self._ended, self._stop = client, threading.Condition(), threading.Event()
        self._numbers = itertools.count()
        self.errors, self.texts, self.count = [], {}, 0

    def __enter__(self):
        self._threads = [threading.Thread(target=self._run) for _ in range(CALLERS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *unused):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self):
        while not self._stop.is_set():
            number = next(self._numbers) % self.PROMPTS
            try:
                answer = self._client.chat.completions.create(
                    model=MODEL, max_tokens=24, temperature=0, extra_body={"ignore_eos": True},
                    messages=[{"role": "user", "content": f"Lamp {number}. " * 20}])
                self.texts.setdefault(number, set()).add(answer.choices[0].message.content)
            except Exception as error:  # the test reports each
                self.errors.append(repr(error))
            with self._ended:
                self.count += 1
                self._ended.notify_all()

    def wait(self, done):
        """Waits until `done()` is true after a call."""
        with self._ended:
            assert self._ended.wait_for(done, timeout=4 * LONG_S)

    def wait_for_more(self, count):
        end = self.count + count
        self.wait(lambda: self.count >= end)


class Stream(threading.Thread):
    """A streamed answer, read at a bounded pace."""

    def __init__(self, address):
        super().__init__()
        self._caller = http.client.HTTPConnection(address, timeout=LONG_S)
        self._caller.request("POST", "/v1/completions", json.dumps(
            {"prompt": "the keeper", "max_tokens": 90000, "ignore_eos": True, "stream": True}),
            {"Content-Type": "application/json"})
        self._answer = self._caller.getresponse()
        self._began, self._left = time.monotonic(), threading.Event()
        self.read, self.failure = 0, ""
        self._take()

    def _take(self):
        piece = self._answer.read1(1 << 16)
        self.read += len(piece)
        if not piece:
            self.failure = f"ended after {self.age():.0f} s"

    def age(self):
        return time.monotonic() - self._began

    def run(self):
        try:
            while not self._left.is_set() and not self.failure:
                ahead = self.read / STREAM_BYTES_PER_S - self.age()
                if ahead > 0:
                    self._left.wait(ahead)  # the pace
                else:
                    self._take()
        except OSError as error:
            self.failure = repr(error)

    def stop(self):
        self._left.set()
        self.join()
        self._caller.close()


class Changes(Fleet):
    """Two nodes, each with a store and two workers, change under load."""

    def setUp(self):
        super().setUp()
        new_bin = self.cluster.bin_dir
        if OTHER_BIN:
            self.cluster.bin_dir = pathlib.Path(OTHER_BIN)
        self.stores = [self.cluster.store(self.folder / f"data{node}") for node in range(2)]
        self.start([self.stores[number // 2].address for number in range(4)])
        self.cluster.bin_dir = new_bin

    def restart(self, number):
        """Starts a worker of the newer version at the address of worker `number`."""
        old = self.workers[number]
        self.workers[number] = self.start_worker(
            self.stores[number // 2].address, listen=old.address,
            pages={"http": http_address(old)})

    def restart_store(self, node):
        self.stores[node] = self.cluster.store(self.folder / f"data{node}",
                                               listen=self.stores[node].address)

    def wait_healthy(self, load):
        load.wait(lambda: not any(host["health_status"].get("failed_active_health_check")
                                  for host in self.door.hosts("workers_http").values()))
        load.wait_for_more(50)

    def drain(self, *processes):
        for process in processes:
            process.popen.send_signal(signal.SIGTERM)
        for process in processes:
            self.assertEqual(process.popen.wait(LONG_S), 0, process.log_tail())

    def test_restarts_fail_no_call(self):
        stream = Stream(self.door.address)
        stream.start()
        self.addCleanup(stream.stop)
        running = self.door.running("workers_http")
        busy = next(number for number, worker in enumerate(self.workers)
                    if running[http_address(worker)])
        node = 1 - busy // 2  # a node without the stream
        first, second = 2 * node, 2 * node + 1
        with Load(self.client) as load:
            load.wait_for_more(100)
            self.drain(self.stores[node], self.workers[first], self.workers[second])
            load.wait_for_more(100)
            self.restart_store(node)
            self.restart(first)
            self.restart(second)
            self.wait_healthy(load)
            load.wait(lambda: self.door.running("workers_http")[http_address(self.workers[first])])
            self.workers[first].kill()
            load.wait_for_more(100)
            self.restart(first)
            self.wait_healthy(load)
            load.wait(lambda: stream.failure or stream.age() > STREAM_S)
            stream.stop()
            self.drain(self.stores[1 - node])
            self.restart_store(1 - node)
            for number in (2 * (1 - node), 2 * (1 - node) + 1):
                self.drain(self.workers[number])
                load.wait_for_more(50)
                self.restart(number)
                self.wait_healthy(load)
        print(f"{load.count} calls, {len(load.errors)} failed; stream: {stream.age():.0f} s, "
              f"{stream.read} bytes", flush=True)
        self.assertEqual(load.errors, [])
        self.assertEqual(stream.failure, "")
        self.assertEqual({number: len(texts) for number, texts in load.texts.items()},
                         dict.fromkeys(range(Load.PROMPTS), 1))


class Issuer:
    """An issuer of OIDC tokens: serves its public keys at /jwks."""

    NAME, AUDIENCE = "https://issuer.example.com", "hearth"

    def __init__(self):
        self._fetched, self._fetches, self._served = threading.Condition(), 0, []
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = json.dumps({"keys": issuer._served}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                with issuer._fetched:
                    issuer._fetches += 1
                    issuer._fetched.notify_all()

            def log_message(self, *unused):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()

    def publish(self, *keys):
        self._served = [{**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())),
                         "kid": name, "alg": "RS256"} for name, key in keys]

    def wait_fetched(self):
        """Waits until Envoy uses the published keys: its fetch after the next."""
        with self._fetched:
            end = self._fetches + 2
            assert self._fetched.wait_for(lambda: self._fetches >= end, timeout=LONG_S)

    def claims(self, tenant="team-a", **changes):
        return {"iss": self.NAME, "aud": self.AUDIENCE, "exp": int(time.time()) + 600,
                "tenant": tenant, **changes}

    def token(self, key, **changes):
        return jwt.encode(self.claims(**changes), key[1], "RS256", headers={"kid": key[0]})


def make_key(name):
    return name, rsa.generate_private_key(public_exponent=65537, key_size=2048)


class Identities(AccessTest):
    """One worker with identities; Envoy checks tokens of an issuer."""

    def setUp(self):
        super().setUp()
        for name in ("server", "client", "worker-1"):
            self.certificate(name)
        self.identities("callers.json", identities=[
            self.by_token("team-b", "tenant"),
            {"name": "front-door", "role": "proxy", "certificate": "client"}])
        model = self.model(vocabulary=VOCABULARY)
        shutil.copy(TOKENIZER, model)
        self.node = self.worker(model, "none", *self.served_by("worker-1"), "--identities-file",
                                self.access / "callers.json", "--http-model", MODEL,
                                "--log-level", "debug", "--log-format", "json", pages=("http",))
        self.issuer = Issuer()
        self.addCleanup(self.issuer.close)
        self.key = make_key("one")
        self.issuer.publish(self.key)
        self.open_door()

    def open_door(self, name="envoy", **bucket):
        config = configuration([self.node.address], [http_address(self.node)], self.access)
        limit_callers(config, **bucket)
        clusters = config["static_resources"]["clusters"]
        set_addresses(config, "issuer", [self.issuer.address])
        del find(clusters, "issuer")["transport_socket"]
        filters = manager(config)["http_filters"]
        checks = find(filters, "envoy.filters.http.jwt_authn")["typed_config"]
        provider = checks["providers"]["oidc"]
        self.assertEqual(provider["issuer"], Issuer.NAME)
        self.assertEqual(provider["audiences"], [Issuer.AUDIENCE])
        provider["remote_jwks"]["cache_duration"] = "1s"
        self.door = FrontDoor(config, self.folder, name)
        self.addCleanup(self.door.stop)
        self.issuer.wait_fetched()

    def ask(self, *headers, path="/v1/chat/completions", address=None):
        """Sends a chat; returns the status of the answer."""
        context = ssl.create_default_context(cafile=self.access / "ca.pem")
        caller = http.client.HTTPSConnection(address or self.door.address, context=context,
                                             timeout=LONG_S)
        self.addCleanup(caller.close)
        body = b'{"messages": [{"role": "user", "content": "A"}], "max_tokens": 1}'
        caller.putrequest("POST" if path.startswith("/v1") else "GET", path)
        for name, value in (("Content-Type", "application/json"),
                            ("Content-Length", str(len(body))), *headers):
            caller.putheader(name, value)
        caller.endheaders(body)
        return caller.getresponse().status

    def bearer(self, token):
        return "Authorization", f"Bearer {token}"

    def bad_tokens(self, old):
        """Returns {name: token}; `old`: a key that is no longer published."""
        claims, issuer = self.issuer.claims(), self.issuer
        public = self.key[1].public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

        def encoded(part):
            return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")

        signed = encoded({"alg": "HS256", "kid": self.key[0]}) + b"." + encoded(claims)
        mac = base64.urlsafe_b64encode(hmac.digest(public, signed, hashlib.sha256)).rstrip(b"=")
        return {"forged": issuer.token((self.key[0], make_key("another")[1])),
                "expired": issuer.token(self.key, exp=int(time.time()) - 120),
                "no expiry": issuer.token(self.key, exp=None),
                "wrong audience": issuer.token(self.key, aud="another"),
                "wrong issuer": issuer.token(self.key, iss="https://another.example.com"),
                "no algorithm": jwt.encode(claims, None, "none"),
                "public key as secret": (signed + b"." + mac).decode(),
                "rotated": issuer.token(old)}

    def test_only_valid_tokens_pass(self):
        old = self.key
        self.assertEqual(self.ask(self.bearer(self.issuer.token(old))), 200)
        self.key = make_key("two")
        self.issuer.publish(old, self.key)
        self.issuer.wait_fetched()
        for key in (old, self.key):
            self.assertEqual(self.ask(self.bearer(self.issuer.token(key))), 200)
            self.assertEqual(self.ask(("X-Api-Key", self.issuer.token(key))), 200)
        self.issuer.publish(self.key)
        self.issuer.wait_fetched()
        for _ in range(5):
            for name, token in self.bad_tokens(old).items():
                self.assertIn(self.ask(self.bearer(token)), (401, 403), name)
                self.assertEqual(self.ask(self.bearer(self.issuer.token(self.key))), 200)
        self.assertEqual(self.ask(), 401)
        self.assertEqual(self.ask(path="/health"), 200)
        file = self.access / "jwt"
        for token, passes in ((self.issuer.token(self.key), True), (self.issuer.token(old), False)):
            file.write_text(token)
            flags = ("--tls-ca", self.access / "ca.pem", "--token-file", file)
            if passes:
                self.cluster.generate(self.door.address, [2, 3, 4], *flags)
            else:
                with self.assertRaisesRegex(ProcessFailed, "UNAUTHENTICATED"):
                    self.cluster.generate(self.door.address, [2, 3, 4], *flags)

    def test_token_alone_names_tenant(self):
        token = self.bearer(self.issuer.token(self.key))
        names = ("x-hearth-tenant", "X-Hearth-Tenant", "X-HEARTH-TENANT")
        tenants = {}  # by request id
        for number in range(40):
            call = f"call-{number}"
            named = [(name, f"other-{number}") for name in names[:1 + number % 3]]
            self.assertEqual(self.ask(*named, token, ("X-Request-Id", call)), 200)
            tenants[call] = "team-a"
            direct = http_address(self.node)
            self.assertEqual(self.ask(named[0], address=direct), 401)
            self.assertEqual(self.ask(named[0], token, address=direct), 401)
            own = self.bearer("token-of-team-b")
            self.assertEqual(self.ask(named[0], own, ("X-Request-Id", f"{call}-b"),
                                      address=direct), 200)
            tenants[f"{call}-b"] = "team-b"
        for wrong in ({"tenant": None}, {"tenant": "a b"}, {"tenant": ""}):
            bad = self.bearer(self.issuer.token(self.key, **wrong))
            self.assertEqual(self.ask(("x-hearth-tenant", "team-a"), bad), 401, wrong)
        self.assertEqual(self.logged_tenants(self.node, tenants), tenants)

    def test_strangers_are_limited(self):
        self.open_door("limited", max_tokens=20, tokens_per_fill=1, fill_interval="3600s")
        statuses = [self.ask() for _ in range(30)]
        self.assertEqual(statuses, [401] * 20 + [429] * 10)


if __name__ == "__main__":
    system_support.main()
