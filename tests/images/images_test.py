"""The images hearth-store:dev and hearth-worker:dev in the containers of docker-compose.yml.

scripts/images.sh test makes the images and runs this file. It exits with status 77 if no container
engine answers. The project's name differs from the file's, so that a running `docker compose up`
is left alone; no port of this machine is used.
"""

import concurrent.futures
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
import unittest

from containers import CLIENT, ROOT, SERVERS, build, missing, run

PROJECT = "hearth-images-test"
WORKERS = ("worker-1", "worker-2")
# Added to docker-compose.yml: log lines as JSON, no published ports (another program may use them),
# and a store and a worker that run as another user.
OVERRIDES = """
services:
  store: {ports: !reset [], environment: {HEARTH_STORE_LOG_FORMAT: json}}
  worker-1: {ports: !reset [], environment: {HEARTH_WORKER_LOG_FORMAT: json}}
  worker-2: {ports: !reset [], environment: {HEARTH_WORKER_LOG_FORMAT: json}}
  other-store:
    extends: {file: COMPOSE_FILE, service: store}
    user: "54321:54321"
    ports: !reset []
    volumes: !override []
    tmpfs: [/tmp, "/var/lib/hearth:uid=54321"]
    environment: {HEARTH_STORE_SHARED_MEMORY: ""}
  other-worker:
    extends: {file: COMPOSE_FILE, service: worker-1}
    user: "54321:54321"
    ports: !reset []
    environment: {HEARTH_WORKER_STORE: "other-store:7080", HEARTH_WORKER_HTTP_HOSTS: other-worker}
    tmpfs: [/tmp, "/var/cache/hearth:uid=54321"]
    networks: !override [default]
"""
# The images of other projects are replaced by one with Debian's packages of the same programs.
# Whether a prefix comes from Redis must not depend on the machine's speed.
PROFILE_OVERRIDES = """
services:
  store: {ports: !reset [], environment: {HEARTH_STORE_SHARED_FETCH_BUDGET: 60s}}
  worker-1:
    ports: !reset []
    environment: {HEARTH_WORKER_FETCH_BUDGET: 120s, HEARTH_WORKER_LOAD: always}
  worker-2: {ports: !reset []}
  redis-1: {image: SERVERS}
  redis-2: {image: SERVERS}
  redis-3: {image: SERVERS}
  redis-cluster: {image: SERVERS}
  prometheus: {image: SERVERS, user: "65534:65534", entrypoint: [prometheus], ports: !reset []}
  envoy: {image: SERVERS, ports: !reset []}
"""
CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


class ComposeCase(unittest.TestCase):
    """Containers of docker-compose.yml under a project name of the class's own."""

    @classmethod
    def prepare(cls, project, overrides, *options, environment=""):
        build(CLIENT)
        build(SERVERS)
        folder = tempfile.TemporaryDirectory(prefix="hearth-images-")
        cls.addClassCleanup(folder.cleanup)
        file, variables = (pathlib.Path(folder.name) / name for name in ("overrides.yml", "env"))
        variables.write_text(environment)
        file.write_text(overrides.replace("COMPOSE_FILE", str(ROOT / "docker-compose.yml"))
                        .replace("SERVERS", SERVERS))
        cls.project = project
        cls.base = ("docker", "compose", "-p", project, "-f", ROOT / "docker-compose.yml",
                    "-f", file, "--env-file", variables, *options)
        cls.addClassCleanup(cls.compose, "down", "--volumes", "--timeout", "5")

    @classmethod
    def compose(cls, *command, **options):
        return run(*cls.base, *command, **options)

    @classmethod
    def up(cls, *services):
        """Starts the containers that do not run, and waits until all are healthy."""
        cls.compose("up", "--no-build", "--detach", "--wait", "--wait-timeout", "300", *services)

    def chat_command(self, mode, host, tokens, port=8000):
        """Returns the command of a client in the containers' network (client.py)."""
        return ["docker", "run", "--rm", "--interactive", "--network", f"{self.project}_default",
                CLIENT, mode, f"http://{host}:{port}/v1", str(tokens)]

    def chat(self, host, message, port=8000):
        return json.loads(run(*self.chat_command("chat", host, 12, port), text=message))

    def inside(self, service, script, check=True):
        return self.compose("exec", "-T", service, "bash", "-c", script, check=check)

    def generate(self, worker, prompt, *options):
        """Answers a prompt over gRPC. Returns the text and the number of cached tokens."""
        printed = self.compose(
            "exec", "-T", worker, "hearthctl", "generate", "--prompt-file", "-", "--json",
            "--max-new-tokens", "12", *options, text=prompt)
        answer = json.loads(printed.splitlines()[-1])
        return answer["text"], answer["cached_tokens"]


class ImagesTest(ComposeCase):
    """The tests share one store and two workers. Each test leaves them healthy."""

    @classmethod
    def setUpClass(cls):
        cls.prepare(PROJECT, OVERRIDES)
        cls.up()
        cls.license = (ROOT / "LICENSE").read_text()

    def container(self, service):
        return self.compose("ps", "--all", "--quiet", service).strip()

    def state(self, service, field):
        return run("docker", "inspect", "--format", f"{{{{.State.{field}}}}}",
                   self.container(service)).strip()

    def metric(self, worker, name):
        """Returns the sum of a metric's samples on the page of a worker."""
        page = self.inside(worker, "exec 3<>/dev/tcp/127.0.0.1/9070; printf 'GET /metrics HTTP/1.1"
                           "\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' >&3; cat <&3")
        samples = [line.split() for line in page.splitlines() if line.startswith(name)]
        self.assertTrue(samples, name)
        return sum(float(sample[-1]) for sample in samples)

    def test_prefix_of_one_worker_is_restored_by_the_other(self):
        prompt = "gRPC. " + self.license
        text, cached = self.generate("worker-1", prompt, "--wait-published")
        self.assertEqual(cached, 0)
        before = self.metric("worker-2", "hearth_worker_store_shared_bytes_total")
        again, cached = self.generate("worker-2", prompt)
        self.assertEqual(again, text)
        self.assertGreater(cached, 2000)
        # The first hit reads the store's shared memory already.
        after = self.metric("worker-2", "hearth_worker_store_shared_bytes_total")
        self.assertGreater(after, before)
        self.assertEqual(self.metric("worker-2", "hearth_worker_store_shared_fallbacks_total"), 0)

    def test_commands_of_the_page(self):
        page = (ROOT / "docs" / "deploy.md").read_text()
        said = ""
        for words, file in re.findall(r"(?m)^docker compose (exec .*) < (\S+)$", page):
            said = run("bash", "-c", '"$@" 2>&1', "-", *self.base, *shlex.split(words),
                       text=(ROOT / file).read_text())
        shown = re.search(r"`-- (\d+ of \d+ prompt tokens cached) \((\w+)\)`", page)
        self.assertIn(f"-- {shown[1]} ({shown[2]})", said)

    def test_worker_image_downloads_files(self):
        # The downloader tries again until the server listens.
        said = self.inside("worker-1", """cd /usr/share/doc/hearth
            python3 -m http.server 8765 --bind 127.0.0.1 >/dev/null 2>&1 & server=$!
            trap "kill $server" EXIT
            digest=$(sha256sum <LICENSE); digest=${digest%% *}
            hearth-model http://127.0.0.1:8765/LICENSE --sha256 "$digest" --out /tmp/
            cmp LICENSE /tmp/LICENSE""")
        self.assertIn("/tmp/LICENSE is complete", said)

    def test_openai_client_chats_by_service_name(self):
        message = "HTTP. " + self.license[:6000]
        answers = [self.chat(host, message) for host in ("worker", *WORKERS)]
        self.assertEqual(len({answer["text"] for answer in answers}), 1)
        self.assertGreater(answers[-1]["cached_tokens"], 1000)

    def test_processes_have_no_privileges(self):
        for service in ("store", *WORKERS):
            with self.subTest(service):
                fields = dict(line.split(":\t") for line in
                              self.inside(service, "cat /proc/1/status").splitlines())
                self.assertEqual(fields["Uid"].split(), ["10001"] * 4)
                self.assertEqual(fields["NoNewPrivs"], "1")
                self.assertEqual({int(fields[name], 16) for name in CAPABILITIES}, {0})
                self.assertIn("Read-only file system",
                              self.inside(service, "touch /etc/new 2>&1", check=False))

    def test_images_run_as_any_user(self):
        self.assertIn("Uid:\t54321", self.inside("other-store", "cat /proc/1/status"))
        prompt = "Any user. " + self.license[:4000]
        text, _ = self.generate("other-worker", prompt, "--wait-published")
        self.assertEqual(self.generate("worker-1", prompt)[0], text)
        self.assertEqual(self.chat("other-worker", "Hello")["finish_reason"], "length")

    def test_log_lines_are_json(self):
        for service in ("store", *WORKERS):
            lines = run("bash", "-c", f"docker logs {self.container(service)} 2>&1").splitlines()
            self.assertGreater(len(lines), 1, service)
            for line in lines:
                self.assertRegex(line, r'^\{"time":".*","level":"\w+","event":.*\}$')
                json.loads(line)

    def test_restarted_store_keeps_prefixes(self):
        prompt = "Restart. " + self.license
        text, _ = self.generate("worker-1", prompt, "--wait-published")
        self.compose("restart", "store")
        self.compose("restart", "worker-2")  # forgets the pool of the worker
        self.up()
        again, cached = self.generate("worker-2", prompt)
        self.assertEqual(again, text)
        self.assertGreater(cached, 2000)

    def test_killed_worker_is_started_again(self):
        prompt = "Killed. " + self.license[:4000]
        text, _ = self.generate("worker-1", prompt)
        started = self.state("worker-1", "StartedAt")
        # Process 1 is the container's init, which ends with its child.
        self.inside("worker-1", "for one in /proc/[0-9]*; do if [[ $(<$one/comm) == hearth-worker "
                    "]]; then kill -9 ${one#/proc/}; fi; done", check=False)
        self.up()
        self.assertNotEqual(self.state("worker-1", "StartedAt"), started)
        self.assertEqual(self.generate("worker-1", prompt)[0], text)

    def test_stopped_worker_finishes_its_stream(self):
        client = subprocess.Popen(self.chat_command("stream", "worker-2", 200), text=True,
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(client.wait)
        client.stdin.write("Count from one to a thousand.")
        client.stdin.close()
        self.assertEqual(client.stdout.readline(), "begun\n")
        self.compose("stop", "worker-2")
        answer = json.loads(client.stdout.read())
        client.stdout.close()
        self.assertEqual((answer["finish_reason"], answer["completion_tokens"]), ("length", 200))
        self.assertEqual(self.state("worker-2", "ExitCode"), "0")
        self.up()


class ProfilesTest(ComposeCase):
    """The profiles redis, envoy and monitoring."""

    @classmethod
    def setUpClass(cls):
        cls.prepare(PROJECT + "-profiles", PROFILE_OVERRIDES, "--profile", "redis",
                    "--profile", "envoy", "--profile", "monitoring",
                    environment="HEARTH_STORE_SHARED=redis://redis-1:6379\n")
        cls.up("worker-1", "worker-2", "prometheus", "envoy")

    def test_new_store_restores_from_redis(self):
        prompt = (ROOT / "LICENSE").read_text()
        text, _ = self.generate("worker-1", prompt, "--wait-published", "--durability", "shared")
        self.compose("rm", "--stop", "--force", "store")
        run("docker", "volume", "rm", f"{self.project}_store-data")
        self.compose("restart", "worker-1")  # forgets the pool of the worker
        self.up("worker-1")
        again, cached = self.generate("worker-1", prompt)
        self.assertEqual(again, text)
        self.assertGreater(cached, 2000)

    def test_prometheus_scrapes_every_server(self):
        def healthy():
            said = self.compose("exec", "-T", "prometheus", "promtool", "query", "instant",
                                "http://localhost:9090", "sum by (job) (up)", check=False)
            return {line.split('"')[1]: line.split("=> ")[1].split()[0]
                    for line in said.splitlines() if "=> " in line}

        deadline = time.monotonic() + 60
        while (found := healthy()) != {"hearth-store": "1", "hearth-worker": "2"}:
            self.assertLess(time.monotonic(), deadline, found)

    def test_envoy_passes_chats_and_grpc_calls(self):
        """All callers have Envoy's address, also when many of them call at once."""
        message = (ROOT / "LICENSE").read_text()[:2000]
        with concurrent.futures.ThreadPoolExecutor(8) as callers:
            answers = list(callers.map(lambda _: self.chat("envoy", message, 8443), range(8)))
        self.assertEqual(len({answer["text"] for answer in answers}), 1)
        self.assertEqual(answers[0]["text"], self.chat("worker-1", message)["text"])
        text, _ = self.generate("worker-1", message)
        self.assertEqual(self.generate("worker-1", message, "--worker", "envoy:8443")[0], text)


if __name__ == "__main__":
    if why := missing():
        print("skipped:", why)
        sys.exit(77)
    unittest.main()
