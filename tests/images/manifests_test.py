"""Each container of the Kubernetes manifests starts as a kubelet would start it.

Renders every overlay of deploy/kubernetes and runs its containers by docker: the manifest's
command, arguments, environment, user, groups, capabilities, read-only root, memory limit and
volumes, and the init containers before them. The manifest's probes decide when a container is
ready. The warm-up Job must complete, and servers must exit with 0 after SIGTERM within their grace
period.

Differences from a cluster: each workload has one pod; there is no scheduler and no network policy;
the worker of the overlay gpu computes on the CPU; the model comes from a web server in the network.
Exits with status 77 without a container engine.
"""

import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

from containers import CLIENT, MODEL, ROOT, SERVERS, build, missing, run

sys.path.insert(0, str(ROOT / "tests" / "deploy"))

import manifests as m  # noqa: E402

PREFIX = "hearth-manifests-test"
PASSWORD = "a-password-of-redis"
TOKEN = "a-token-of-the-warm-up"
OTHER_IMAGES = {"hearth-worker-cuda": "hearth-worker"}


def image_of(name):
    """Returns the local image for registry.example.com/hearth/NAME:TAG."""
    name = name.rpartition("/")[2].partition(":")[0]
    return OTHER_IMAGES.get(name, name) + ":dev"


def expand(words, environment):
    """Replaces $(NAME), as the kubelet does in commands and arguments."""
    return [re.sub(r"\$\((\w+)\)", lambda name: environment.get(name[1], name[0]), word)
            for word in words]


def authority(folder):
    """Makes certificates of one authority: {name: (certificate, key)} and the authority's."""
    key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
    script = f"""cd {folder}
        openssl req -x509 {key} -keyout ca.key -out ca.crt -subj /CN=test-ca
        for who in hearth-store hearth-worker redis.redis; do
          echo "subjectAltName=DNS:$who" >names
          openssl req {key} -keyout $who.key -out $who.csr -subj /CN=$who
          openssl x509 -req -in $who.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile names \
            -out $who.crt
        done"""
    run("bash", "-euc", script)
    return {file.name: file.read_bytes() for file in pathlib.Path(folder).iterdir()}


class Cluster:
    """The pods of one overlay, in a network of their own."""

    def __init__(self, test, name, secrets):
        self.name, self.secrets = f"{PREFIX}-{name}", secrets
        self.objects = m.kustomize(m.KUBERNETES / "overlays" / name)
        folder = tempfile.TemporaryDirectory(prefix=PREFIX)
        test.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        run("docker", "network", "create", self.name)
        test.addCleanup(run, "docker", "network", "rm", self.name)
        self.containers = []
        test.addCleanup(lambda: run("docker", "rm", "--force", "--volumes", *self.containers))

    def helper(self, image, *command, alias="", volumes=()):
        """Starts a container that is not of the manifests; returns its name."""
        name = f"{self.name}-{alias or 'client'}"
        self.containers.append(name)
        run("docker", "run", "--detach", "--name", name, "--network", self.name,
            *(["--network-alias", alias] if alias else []),
            *(word for volume in volumes for word in ("--volume", volume)),
            "--entrypoint", command[0], image, *command[1:])
        return name

    def files(self, path, files, owner, mode):
        """Writes {name: bytes} as a ConfigMap's or a Secret's volume."""
        path.mkdir()
        for name, content in files.items():
            (path / name).write_bytes(content)
            os.chown(path / name, 0, owner)
            (path / name).chmod(mode)
        return path

    def volume(self, pod, group, volume):
        """Makes a pod's volume; returns its folder on this machine."""
        name = volume["name"]
        path = self.folder / f"{pod}-{name}"
        if "configMap" in volume:
            data = m.find(self.objects, "ConfigMap", volume["configMap"]["name"])["data"]
            return self.files(path, {k: v.encode() for k, v in data.items()}, group, 0o644)
        if "secret" in volume:
            source = volume["secret"]
            files = self.secret(source["secretName"])
            files = {item["path"]: files[item["key"]] for item in source.get(
                "items", [{"path": key, "key": key} for key in files])}
            return self.files(path, files, group, source.get("defaultMode", 0o644) | 0o440)
        if "hostPath" in volume:
            path = self.folder / volume["hostPath"]["path"].strip("/").replace("/", "-", 2)
            kind = volume["hostPath"].get("type")
            if kind == "DirectoryOrCreate":
                path.mkdir(mode=0o755, exist_ok=True)
            assert path.is_dir(), f"no folder {volume['hostPath']['path']} on the node"
            return path
        if "persistentVolumeClaim" in volume:
            path = self.folder / volume["persistentVolumeClaim"]["claimName"]
        if not path.exists():
            path.mkdir()
            os.chown(path, 0, group)
            path.chmod(0o2777)
        return path

    def secret(self, name):
        if name in self.secrets:
            return self.secrets[name]
        data = m.find(self.objects, "Secret", name)["data"]
        return {key: base64.b64decode(value) for key, value in data.items()}

    def run_pod(self, owner, changes):
        """Runs a workload's pod: the init containers, then its container, whose name it returns."""
        spec = m.pod_template(owner)["spec"]
        context = spec["securityContext"]
        pod = owner["metadata"]["name"]
        group = context.get("fsGroup", 0)
        claims = [{"name": c["metadata"]["name"]} for c in
                  owner["spec"].get("volumeClaimTemplates", [])]
        folders = {v["name"]: self.volume(pod, group, v) for v in spec.get("volumes", []) + claims}
        aliases = [s["metadata"]["name"] for s in m.of_kind(self.objects, "Service")
                   if s["spec"]["selector"].items() <=
                   m.pod_template(owner)["metadata"]["labels"].items()]
        for container in spec.get("initContainers", []):
            name = self.start(pod, container, context, folders, [], changes)
            status = run("docker", "wait", name).strip()
            assert status == "0", run("bash", "-c", f"docker logs {name} 2>&1")
        return self.start(pod, spec["containers"][0], context, folders, aliases, changes)

    def start(self, pod, container, context, folders, aliases, changes):
        """Starts a container as the kubelet would; returns its name."""
        own = {**context, **container["securityContext"]}
        environment = m.environment(self.objects, container)
        environment.update({k: v for k, v in changes.items() if k in environment})
        words = ["--user", f"{own['runAsUser']}:{own['runAsGroup']}"]
        if "fsGroup" in context:
            words += ["--group-add", str(context["fsGroup"])]
        if own["readOnlyRootFilesystem"]:
            words.append("--read-only")
        if own["allowPrivilegeEscalation"] is False:
            words += ["--security-opt", "no-new-privileges"]
        for change in ("drop", "add"):
            words += [word for one in own["capabilities"].get(change, [])
                      for word in (f"--cap-{change}", one)]
        words += ["--memory", str(m.bytes_of(container["resources"]["limits"]["memory"]))]
        for mount in container["volumeMounts"]:
            source = folders[mount["name"]] / mount.get("subPath", "")
            words += ["--volume", f"{source}:{mount['mountPath']}" + (
                ":ro" if mount.get("readOnly") else "")]
        for key, value in environment.items():
            words += ["--env", f"{key}={value}"]
        for alias in aliases:
            words += ["--network-alias", alias]
        command = expand(container.get("command", []), environment)
        if command:
            words += ["--entrypoint", command[0]]
        name = f"{self.name}-{pod}-{container['name']}"
        self.containers.append(name)
        run("docker", "run", "--detach", "--name", name, "--network", self.name, *words,
            image_of(container["image"]), *command[1:],
            *expand(container.get("args", []), environment))
        return name

    def probe(self, name, probe, container):
        """Returns whether a probe of the container succeeds."""
        ports = {p["name"]: p["containerPort"] for p in container.get("ports", [])}

        def number(port):
            return str(ports.get(port, port))

        if "exec" in probe:
            command = ["docker", "exec", name, *probe["exec"]["command"]]
        else:
            command = ["docker", "exec", f"{self.name}-client", "python3", "/probe.py"]
            if "grpc" in probe:
                command += ["grpc", name, number(probe["grpc"]["port"])]
            elif "tcpSocket" in probe:
                command += ["tcp", name, number(probe["tcpSocket"]["port"])]
            else:
                asked = probe["httpGet"]
                address = run("docker", "inspect", "--format",
                              "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", name)
                command += ["http", f"{asked.get('scheme', 'HTTP').lower()}://{address.strip()}:"
                            f"{number(asked['port'])}{asked['path']}"]
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0

    def wait_until_ready(self, name, container):
        startup = container["startupProbe"]
        deadline = time.monotonic() + startup.get("periodSeconds", 10) * startup["failureThreshold"]
        while not self.probe(name, startup, container):
            state = run("docker", "inspect", "--format", "{{.State.Status}}", name).strip()
            assert state == "running" and time.monotonic() < deadline, (
                f"{name} is {state}: " + run("bash", "-c", f"docker logs {name} 2>&1")[-3000:])
        for kind in ("readinessProbe", "livenessProbe"):
            assert self.probe(name, container[kind], container), f"{name}: {kind} fails"


@unittest.skipIf(os.geteuid(), "needs root, to make volumes as a kubelet does")
class ManifestsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        build(CLIENT)
        build(SERVERS)
        with tempfile.TemporaryDirectory() as folder:
            files = authority(folder)
        cls.certificates = files

        def pair(name):
            return {"tls.crt": files[name + ".crt"], "tls.key": files[name + ".key"],
                    "ca.crt": files["ca.crt"]}

        digests = [hashlib.sha256(text.encode()).hexdigest() for text in (TOKEN, "another")]
        identities = (m.KUBERNETES / "components/tls/worker-identities.json").read_text()
        cls.secrets = {
            "hearth-store-tls": pair("hearth-store"), "hearth-worker-tls": pair("hearth-worker"),
            "hearth-warm-token": {"token": TOKEN.encode()},
            "hearth-worker-identities": {
                "identities.json": re.sub(
                    "REPLACE[^\"]*", lambda _: digests.pop(0), identities).encode()},
            "hearth-secret": {"secret": os.urandom(32).hex().encode()},
            "hearth-redis": {"password": PASSWORD.encode(), "ca.crt": files["ca.crt"]}}
        with MODEL.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        cls.changes = {"MODEL_FROM": f"http://models:8000/{MODEL.name}", "MODEL_SHA256": digest}

    def start(self, name, changes=None):
        """Starts an overlay's store and worker, and runs its warm-up Job."""
        cluster = Cluster(self, name, self.secrets)
        cluster.helper(CLIENT, "sleep", "infinity")
        cluster.helper(CLIENT, "python3", "-m", "http.server", "8000", "--directory", "/models",
                       alias="models", volumes=[f"{MODEL.parent}:/models:ro"])
        if name == "fleet":
            self.start_redis(cluster)
        cluster.started = {}
        for kind, owner in (("store", m.store_of(cluster.objects)),
                            ("worker", m.find(cluster.objects, "Deployment", "hearth-worker"))):
            pod = cluster.run_pod(owner, {**self.changes, **(changes or {})})
            cluster.started[kind] = pod, owner
            cluster.wait_until_ready(pod, m.pod_template(owner)["spec"]["containers"][0])
        job = cluster.run_pod(m.warm_job(cluster.objects), {})
        status = run("docker", "wait", job).strip()
        said = run("bash", "-c", f"docker logs {job} 2>&1")
        self.assertEqual(status, "0", said)
        self.assertIn("example: stored", said)
        return cluster

    def start_redis(self, cluster):
        folder = cluster.folder / "redis-tls"
        cluster.files(folder, {name: content for name, content in self.certificates.items()
                               if name.startswith(("ca.crt", "redis"))}, 0, 0o644)
        cluster.helper(SERVERS, "redis-server", "--port", "0", "--tls-port", "6379", "--save", "",
                       "--tls-cert-file", "/tls/redis.redis.crt", "--tls-key-file",
                       "/tls/redis.redis.key", "--tls-ca-cert-file", "/tls/ca.crt",
                       "--tls-auth-clients", "no", "--requirepass", PASSWORD,
                       alias="redis.redis", volumes=[f"{folder}:/tls:ro"])

    def check_processes(self, cluster):
        """The processes are the manifest's user without rights, on a read-only root."""
        for pod, owner in cluster.started.values():
            status = run("docker", "exec", pod, "cat", "/proc/1/status")
            fields = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
            user = m.pod_template(owner)["spec"]["securityContext"]["runAsUser"]
            self.assertEqual(fields["Uid"].split(), [str(user)] * 4)
            self.assertEqual(fields["NoNewPrivs"], "1")
            self.assertEqual({int(fields[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")},
                             {0})
            touched = run("docker", "exec", pod, "bash", "-c", "touch /etc/new 2>&1", check=False)
            self.assertIn("Read-only file system", touched)

    def stop(self, cluster):
        for pod, owner in reversed(cluster.started.values()):
            grace = m.pod_template(owner)["spec"]["terminationGracePeriodSeconds"]
            run("docker", "stop", "--time", grace, pod)
            code = run("docker", "inspect", "--format", "{{.State.ExitCode}}", pod).strip()
            self.assertEqual(code, "0", run("bash", "-c", f"docker logs {pod} 2>&1")[-2000:])

    def check_shared_memory(self, cluster):
        """A worker without prefixes of its own copies them from the store's memory."""
        worker, owner = cluster.started["worker"]

        def generate():
            run("docker", "exec", "--interactive", worker, "hearthctl", "generate", "--prompt-file",
                "-", "--max-new-tokens", "4", "--wait-published",
                text=(ROOT / "LICENSE").read_text()[:2500])

        generate()
        run("docker", "restart", "--time", "60", worker)
        cluster.wait_until_ready(worker, m.pod_template(owner)["spec"]["containers"][0])
        generate()
        page = run("docker", "exec", worker, "bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/9070; "
                   "printf 'GET /metrics HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3; cat <&3")
        copied = re.search(r"(?m)^hearth_worker_store_shared_bytes_total (\S+)", page)[1]
        fetches = re.findall(r"(?m)^hearth_worker_(?:loads|store_(?:fetch|shared))\S* \S+$", page)
        self.assertGreater(float(copied), 1e6, fetches)

    def check(self, name, changes=None, extra=lambda cluster: None):
        cluster = self.start(name, changes)
        self.check_processes(cluster)
        extra(cluster)
        self.stop(cluster)

    def test_cpu_overlay_starts(self):
        self.check("cpu")

    def test_gpu_overlay_starts(self):
        # The image of CUDA workers differs in its libraries only. The GGUF file stands for the
        # overlay's checkpoint, and needs float32 and the CPU.
        self.check("gpu", {"HEARTH_WORKER_DEVICE": "cpu", "HEARTH_WORKER_DTYPE": "float32",
                           "MODEL_TO": "/models/model.gguf",
                           "HEARTH_WORKER_MODEL": "/models/model.gguf"})

    def test_fleet_overlay_starts(self):
        self.check("fleet", extra=self.check_shared_memory)

    def test_tls_overlay_starts(self):
        self.check("tls")

    def test_monitoring_overlay_starts(self):
        self.check("monitoring")

    def test_one_node_overlay_starts(self):
        self.check("one-node", extra=self.check_shared_memory)


if __name__ == "__main__":
    if why := missing():
        print("skipped:", why)
        sys.exit(77)
    unittest.main()
