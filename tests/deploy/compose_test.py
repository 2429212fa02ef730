"""docker-compose.yml: one store and two workers connected only to each other, and profiles."""
import copy
import pathlib
import re
import unittest

import yaml

import manifests as m

STORE = "store"
PROFILES = {"redis", "envoy", "monitoring"}
GIB = 2**30
HTTP_PORT = 8000
USER = 10001


def load():
    return yaml.safe_load((m.ROOT / "docker-compose.yml").read_text())


def default_of(value):
    """Returns the value of `${VARIABLE:-value}` if the variable is not set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


def limit_of(service):
    return m.bytes_of(re.sub(r"([gm])$", lambda unit: unit[1].upper() + "i",
                             default_of(service["mem_limit"])))


def names_of(name, service):
    """Returns the names by which other containers of the network reach a service."""
    return {name, *service.get("networks", {}).get("default", {}).get("aliases", [])}


def http_problems(name, services):
    """Returns why clients could not reach a worker's OpenAI API, by a port of this machine or by
    the worker's name."""
    worker, found = services[name], []
    environment = worker["environment"]
    if environment.get("HEARTH_WORKER_HTTP_LISTEN") != f"0.0.0.0:{HTTP_PORT}":
        found.append(f"{name}: serves no HTTP to other containers")
    if HTTP_PORT not in [int(p.rpartition(":")[2]) for p in worker["ports"]]:
        found.append(f"{name}: HTTP has no port of this machine")
    if worker["healthcheck"]["test"][4:] != [str(HTTP_PORT)]:
        found.append(f"{name}: health check without HTTP")
    hosts = environment.get("HEARTH_WORKER_HTTP_HOSTS", "").split(",")
    found += [f"{name}: refuses the Host {host}" for host in names_of(name, worker)
              if host not in hosts]
    return found


def problems(compose):
    found = []
    services = compose["services"]
    workers = [name for name in services if name.startswith("worker")]
    if len(workers) != 2:
        found.append("not two workers")
    if {name for name, service in services.items() if "profiles" not in service} != {
            STORE, *workers}:
        found.append("other services start without a profile")
    published = [p for s in services.values() for p in s.get("ports", [])]
    found += [f"{p} is open to the network" for p in published if not p.startswith("127.0.0.1:")]
    host_ports = [p.split(":")[1] for p in published]
    if len(host_ports) != len(set(host_ports)):
        found.append("a host port is used twice")
    for name, service in services.items():
        if "build" in service:
            dockerfile = m.ROOT / service["build"]["dockerfile"]
            if not dockerfile.exists():
                found.append(f"{name}: no {dockerfile}")
            if service["healthcheck"]["test"][0] != "CMD":
                found.append(f"{name}: no health check in exec form")
        elif not re.search(r":(v?\d+\.\d+(\.\d+)?|dev)$", service["image"]):
            found.append(f"{name}: {service['image']} has no version")
        if "mem_limit" not in service:
            found.append(f"{name}: no memory limit")
        if not service.get("read_only") or service.get("cap_drop") != ["ALL"]:
            found.append(f"{name}: not hardened")
        for volume in service.get("volumes", []):
            source = volume.rsplit(":/", 1)[0]
            if source.startswith("${") and not volume.endswith(":ro"):
                found.append(f"{name}: the model folder is writable")
            if source.startswith("./") and not (m.ROOT / source).exists():
                found.append(f"{name}: no {source}")
            if re.fullmatch(r"[\w-]+", source) and source not in compose["volumes"]:
                found.append(f"{name}: volume {source} is not declared")
    for name in workers:
        worker = services[name]
        host, _, port = worker["environment"]["HEARTH_WORKER_STORE"].partition(":")
        listen = services.get(host, {}).get("environment", {}).get("HEARTH_STORE_LISTEN", "")
        if listen != f"0.0.0.0:{port}":
            found.append(f"{name}: no store at {host}:{port}")
        if host not in worker["depends_on"]:
            found.append(f"{name}: starts without its store")
        if not worker["environment"]["HEARTH_WORKER_LISTEN"].endswith(
                ":" + worker["healthcheck"]["test"][2]):
            found.append(f"{name}: health check of another port")
        found += http_problems(name, services)
    data_dir = services[STORE]["environment"]["HEARTH_STORE_DATA_DIR"]
    if not any(v.endswith(":" + data_dir) for v in services[STORE]["volumes"]):
        found.append("the store's data folder is on no volume")
    socket = services[STORE]["environment"].get("HEARTH_STORE_SHARED_MEMORY", "")
    for name in (STORE, *workers):
        service = services[name]
        mounted = dict(v.rsplit(":", 1) for v in service.get("volumes", []) if v.count(":") == 1)
        if mounted.get("shared") != str(pathlib.PurePosixPath(socket).parent):
            found.append(f"{name}: the store's memory is not shared with it")
    owner = compose["volumes"]["shared"]["driver_opts"]["o"]
    if f"uid={USER},gid={USER},mode=0700" != owner:
        found.append("whoever the containers run as cannot make a socket in the shared folder")
    return found


class ComposeTest(unittest.TestCase):

    def test_compose_file_is_consistent(self):
        self.assertEqual(problems(load()), [])

    def test_workers_differ_only_in_ports(self):
        one, two = (copy.deepcopy(load()["services"][name]) for name in ("worker-1", "worker-2"))
        self.assertNotEqual(one.pop("ports"), two.pop("ports"))
        self.assertEqual(one, two)

    def test_head_explains_userns_remap(self):
        head = (m.ROOT / "docker-compose.yml").read_text().partition("name:")[0]
        self.assertIn("userns-remap", head)
        variable = next(word for word in head.split() if word.startswith("HEARTH_STORE_"))
        self.assertIn(variable, load()["services"][STORE]["environment"])

    def test_memory_limits_total_at_most_8_gib(self):
        services = load()["services"]
        # One-shot services end before the others need their memory.
        limits = {name: limit_of(service) for name, service in services.items()
                  if service.get("restart") != "no"}
        self.assertLessEqual(sum(limits.values()), 8 * GIB)
        self.assertLessEqual(sum(limits[n] for n in limits if "profiles" not in services[n]),
                             6.5 * GIB)

    def test_sizes_fit_memory_limits(self):
        # The parts are those of docs/sizing.md.
        services = load()["services"]
        store = services[STORE]
        env = store["environment"]
        parts = [m.bytes_of(env["HEARTH_STORE_" + name]) for name in ("HOST_BYTES",
                                                                    "MAX_STAGED_BYTES")]
        self.assertLessEqual(sum(parts) + 1.25 * GIB, limit_of(store))
        worker = services["worker-1"]
        env = worker["environment"]
        kv, pool, staging = (m.bytes_of(default_of(env[f"HEARTH_WORKER_{name}_BYTES"]))
                             for name in ("KV", "POOL", "STAGING"))
        model, logits, connections = 241 * 2**20, 16 * 2**20, 384 * 2**20
        self.assertLessEqual(model + kv * 1.25 + pool + staging + logits + connections,
                             limit_of(worker))

    def test_profiles_are_as_documented(self):
        compose = load()
        self.assertEqual({p for s in compose["services"].values() for p in s.get("profiles", [])},
                         PROFILES)
        head = (m.ROOT / "docker-compose.yml").read_text().partition("name:")[0]
        page = (m.ROOT / "docs" / "deploy.md").read_text()
        for profile in PROFILES:
            self.assertRegex(head, rf"(?m)^#   {profile} ")
            self.assertIn(f"`{profile}`", page)

    def test_redis_primaries_follow_documentation(self):
        page = (m.ROOT / "docs" / "scale-out.md").read_text()
        policy, samples = re.search(r"`maxmemory-samples` \| `([\w-]+)`; (\d+)", page).groups()
        services = load()["services"]
        primaries = [name for name, service in services.items()
                     if str(service.get("command", "")).startswith("redis-server ")]
        self.assertEqual(len(primaries), 3)
        for name in primaries:
            command = services[name]["command"]
            for words in (f"--maxmemory-policy {policy} ", f"--maxmemory-samples {samples} ",
                          f"--cluster-announce-hostname {name} ", "--cluster-enabled yes "):
                self.assertIn(words, command)
            size = m.bytes_of(re.search(r"--maxmemory (\d+)mb", command)[1] + "Mi")
            self.assertLess(1.25 * size, limit_of(services[name]))
            self.assertIn(name, services["redis-cluster"]["depends_on"])

    def test_example_restores_on_second_worker(self):
        page = (m.ROOT / "docs" / "deploy.md").read_text()
        example = page.partition("\n## Compose\n")[2].partition("\n## ")[0]
        command = r"^docker compose exec -T (\S+) hearthctl generate (.*) < (\S+)$"
        first, second = re.findall(command, example, re.M)
        self.assertEqual((first[0], second[0]), ("worker-1", "worker-2"))
        self.assertEqual(first[2], second[2])
        self.assertIn("--wait-published", first[1])
        chunk = int(load()["services"]["worker-1"]["environment"]["HEARTH_WORKER_CHUNK_TOKENS"])
        # English text has fewer than eight bytes per token.
        self.assertGreater((m.ROOT / first[2]).stat().st_size, 2 * 8 * chunk)

    def test_ports_match_documentation(self):
        ports = load()["services"]["worker-1"]["ports"] + load()["services"][STORE]["ports"]
        self.assertEqual({p.rpartition(":")[2] for p in ports}, {"7070", "8000", "9070", "9080"})

    def test_both_workers_share_host_name(self):
        services = load()["services"]
        self.assertIn("worker", names_of("worker-1", services["worker-1"]) &
                      names_of("worker-2", services["worker-2"]))

    def test_page_names_http_address(self):
        self.assertIn("http://worker:8000/v1", (m.ROOT / "docs/deploy.md").read_text())

    def test_broken_compose_files_are_reported(self):
        def broken(change):
            compose = load()
            change(compose["services"], compose)
            return " ".join(problems(compose))

        def set_environment(name, key, value):
            return lambda s, _: s[name]["environment"].__setitem__(key, value)

        self.assertIn("no store at", broken(
            set_environment("worker-1", "HEARTH_WORKER_STORE", "store:7081")))
        self.assertIn("on no volume", broken(
            set_environment(STORE, "HEARTH_STORE_DATA_DIR", "/data")))
        self.assertIn("another port", broken(
            set_environment("worker-2", "HEARTH_WORKER_LISTEN", "0.0.0.0:7071")))
        self.assertIn("worker-2: serves no HTTP", broken(
            set_environment("worker-2", "HEARTH_WORKER_HTTP_LISTEN", "127.0.0.1:8000")))
        self.assertIn("worker-2: refuses the Host worker-2", broken(
            set_environment("worker-2", "HEARTH_WORKER_HTTP_HOSTS", "worker,worker-1")))
        self.assertIn("worker-1: refuses the Host chat", broken(
            lambda s, _: s["worker-1"].__setitem__("networks", {"default": {"aliases": ["chat"]}})))
        self.assertIn("worker-1: HTTP has no port", broken(
            lambda s, _: s["worker-1"].__setitem__("ports", ["127.0.0.1:7070:7070"])))
        self.assertIn("worker-1: health check without HTTP", broken(
            lambda s, _: s["worker-1"]["healthcheck"]["test"].pop()))
        self.assertIn("used twice", broken(
            lambda s, _: s["worker-2"].__setitem__("ports", s["worker-1"]["ports"])))
        self.assertIn("open to the network", broken(
            lambda s, _: s[STORE]["ports"].append("7080:7080")))
        self.assertIn("not hardened", broken(lambda s, _: s[STORE].pop("read_only")))
        self.assertIn("is writable", broken(
            lambda s, _: s["worker-1"].__setitem__("volumes", ["${M:-./models}:/models/model"])))
        self.assertIn("starts without", broken(lambda s, _: s["worker-1"]["depends_on"].clear()))
        self.assertIn("worker-2: the store's memory", broken(
            lambda s, _: s["worker-2"]["volumes"].remove("shared:/run/hearth")))
        self.assertIn("is not shared with it", broken(
            set_environment(STORE, "HEARTH_STORE_SHARED_MEMORY", "auto")))
        self.assertIn("cannot make a socket", broken(
            lambda _, c: c["volumes"]["shared"]["driver_opts"].__setitem__("o", "mode=0755")))
        self.assertIn("not two workers", broken(lambda s, _: s.pop("worker-2")))
        self.assertIn("without a profile", broken(lambda s, _: s["envoy"].pop("profiles")))
        self.assertIn("has no version", broken(
            lambda s, _: s["redis-1"].__setitem__("image", "redis:latest")))
        self.assertIn("grafana: no memory limit", broken(
            lambda s, _: s["grafana"].pop("mem_limit")))
        self.assertIn("prometheus: no ./gone", broken(
            lambda s, _: s["prometheus"].__setitem__("volumes", ["./gone:/etc/gone:ro"])))
        self.assertIn("no /", broken(
            lambda s, _: s[STORE]["build"].__setitem__("dockerfile", "deploy/gone.Dockerfile")))


if __name__ == "__main__":
    unittest.main()
