"""The Kubernetes manifests build, are valid and consistent; and the checks report broken ones."""
import copy
import functools
import pathlib
import re
import shutil
import tempfile
import unittest

import kubernetes_validate
import yaml

import checks
import manifests as m

# From the oldest Kubernetes release with stable gRPC probes to the newest with published schemas.
KUBERNETES_RELEASES = [f"1.{minor}" for minor in range(27, 38)]
# Kinds that Kubernetes does not define, so it has no schemas for them.
CUSTOM_KINDS = {"PodMonitor", "PrometheusRule", "ScaledObject"}
# The kustomization of an overlay, up to its list of components.
ON_THE_BASE = """apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: hearth
resources: [../../base]
components: """
# kubernetes_validate would read the schema files again for each object.
kubernetes_validate.utils.schema_contents = functools.cache(
    kubernetes_validate.utils.schema_contents)


def schema_errors(objects, releases=KUBERNETES_RELEASES):
    errors = []
    for o in {repr(o): o for o in objects if o["kind"] not in CUSTOM_KINDS}.values():
        for release in releases:
            try:
                kubernetes_validate.validate(o, release, strict=True)
            except kubernetes_validate.ValidationError as error:
                errors.append(f"{o['kind']}/{o['metadata']['name']}: {error.message}")
    return errors


def names_of(objects):
    return {(o["kind"], o["metadata"]["name"]) for o in objects if o["kind"] != "ConfigMap"}


class ManifestsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.cpu = m.kustomize(m.CPU)
        cls.gpu = m.kustomize(m.GPU)
        cls.one_node = m.kustomize(m.ONE_NODE)

    def test_manifests_match_kubernetes_schemas(self):
        installed = kubernetes_validate.utils.all_versions()
        self.assertEqual([r for r in KUBERNETES_RELEASES if r + ".0" not in installed], [])
        self.assertEqual(schema_errors([o for folder in m.OVERLAYS for o in m.kustomize(folder)]),
                         [])

    def test_every_folder_builds(self):
        """The base builds alone and with each component. No overlay has the component keda."""
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder) / "deploy"
            shutil.copytree(m.ROOT / "deploy", tree)

            def built(name, components):
                overlay = tree / "kubernetes" / "overlays" / f"test-{name}"
                overlay.mkdir()
                (overlay / "kustomization.yaml").write_text(ON_THE_BASE + str(components))
                return m.kustomize(overlay)

            m.kustomize(m.BASE)
            base = built("base", [])
            for path in sorted((m.KUBERNETES / "components").iterdir()):
                with self.subTest(path.name):
                    objects = built(path.name, [f"../../components/{path.name}"])
                    self.assertEqual(schema_errors(objects, KUBERNETES_RELEASES[-1:]), [])
                    self.assertNotEqual(objects, base)

    def test_manifests_pass_all_checks(self):
        for folder in m.OVERLAYS:
            self.assertEqual(checks.all_problems(m.kustomize(folder)), [], folder.name)

    def test_cpu_overlay_has_every_object(self):
        have = names_of(self.cpu)
        for part in (("StatefulSet", "hearth-store"), ("Service", "hearth-store"),
                     ("PodDisruptionBudget", "hearth-store"), ("Deployment", "hearth-worker"),
                     ("Service", "hearth-worker"), ("HorizontalPodAutoscaler", "hearth-worker"),
                     ("PodDisruptionBudget", "hearth-worker"), ("ServiceAccount", "hearth"),
                     ("NetworkPolicy", "hearth-default-deny"), ("NetworkPolicy", "hearth-store"),
                     ("CronJob", "hearth-warm")):
            self.assertIn(part, have)

    def test_all_objects_share_one_namespace(self):
        for folder in m.OVERLAYS:
            for o in m.kustomize(folder):
                if o["kind"] != "Namespace":
                    self.assertEqual(o["metadata"]["namespace"], "hearth", o["metadata"]["name"])

    def test_workers_spread_over_zones(self):
        for folder in m.OVERLAYS:
            worker = m.pod_template(m.find(m.kustomize(folder), "Deployment", "hearth-worker"))
            spread = worker["spec"]["topologySpreadConstraints"]
            self.assertEqual([term["topologyKey"] for term in spread],
                             ["topology.kubernetes.io/zone", "kubernetes.io/hostname"])
            self.assertTrue(all(checks.selects(term["labelSelector"]["matchLabels"], worker)
                                for term in spread))

    def test_gpu_overlay_requests_gpu_and_image(self):
        owner = m.find(self.gpu, "Deployment", "hearth-worker")
        container = m.pod_template(owner)["spec"]["containers"][0]
        self.assertEqual(container["resources"]["limits"]["nvidia.com/gpu"], "1")
        self.assertIn("/hearth-worker-cuda:", container["image"])
        self.assertEqual(m.environment(self.gpu, container)["HEARTH_WORKER_DEVICE"], "cuda")
        self.assertEqual(m.of_kind(self.gpu, "HorizontalPodAutoscaler"), [])
        self.assertGreaterEqual(owner["spec"]["replicas"], 1)
        self.assertEqual(owner["spec"]["strategy"]["rollingUpdate"],
                         {"maxSurge": 0, "maxUnavailable": 1})

    def test_one_node_overlay_shares_store_memory(self):
        store = m.pod_template(m.store_of(self.one_node))
        env = m.environment(self.one_node, store["spec"]["containers"][0])
        self.assertEqual(env.pop("HEARTH_STORE_SHARED_MEMORY"), "/run/hearth/memory.sock")
        cpu = m.pod_template(m.store_of(self.cpu))
        self.assertEqual(env, m.environment(self.cpu, cpu["spec"]["containers"][0]))
        self.assertEqual(names_of(self.one_node) - names_of(self.cpu),
                         {("PersistentVolumeClaim", "hearth-shared")})

    def test_fleet_overlay_has_store_per_node(self):
        fleet = m.kustomize(m.FLEET)
        owner = m.store_of(fleet)
        self.assertEqual(owner["kind"], "DaemonSet")
        container = m.pod_template(owner)["spec"]["containers"][0]
        env = m.environment(fleet, container)
        mounts = [v["mountPath"] for v in container["volumeMounts"]]
        for name in ("SECRET_FILE", "SHARED_CA", "SHARED_PASSWORD_FILE", "SHARED_MEMORY"):
            self.assertIn(env["HEARTH_STORE_" + name].rpartition("/")[0], mounts)
        for kind in ("Service", "PodDisruptionBudget"):
            self.assertNotIn((kind, "hearth-store"), names_of(fleet))

    def test_tls_overlay_gives_every_program_certificates(self):
        tls = m.kustomize(m.TLS)
        for label, _, template in m.workloads(tls):
            container = template["spec"]["containers"][0]
            files = [value for name, value in m.environment(tls, container).items()
                     if value.startswith("/etc/hearth/") and not name.startswith("HEARTH_STORE_D")]
            self.assertGreaterEqual(len(files), 2, label)
            mounts = [v["mountPath"] for v in container["volumeMounts"]]
            for file in files:
                self.assertIn(file.rpartition("/")[0], mounts, label)

    def test_monitoring_overlay_scrapes_every_pod(self):
        objects = m.kustomize(m.MONITORING)
        monitor = m.find(objects, "PodMonitor", "hearth")["spec"]
        (endpoint,) = monitor["podMetricsEndpoints"]
        for label, owner, template in m.workloads(objects):
            ports = [p["name"] for c in m.containers(template) for p in c.get("ports", [])]
            is_chosen = checks.covers({"spec": {"selector": monitor["selector"]}}, template)
            self.assertEqual(is_chosen, endpoint["port"] in ports, label)
        alerts = yaml.safe_load((m.ROOT / "deploy/monitoring/alerts.yml").read_text())
        self.assertEqual(m.find(objects, "PrometheusRule", "hearth")["spec"], alerts)
        self.assertIn("dashboard.json", m.find(objects, "ConfigMap", "hearth-dashboard")["data"])

    def test_autoscalers_agree(self):
        (queue,) = m.of_kind(m.kustomize(m.MONITORING), "HorizontalPodAutoscaler")
        limits = {metric["pods"]["metric"]["name"]: metric["pods"]["target"]["averageValue"]
                  for metric in queue["spec"]["metrics"]}
        keda = yaml.safe_load((m.KUBERNETES / "components/keda/scaled-object.yaml").read_text())
        self.assertEqual({trigger["metadata"]["query"]: trigger["metadata"]["threshold"]
                          for trigger in keda["spec"]["triggers"]},
                         {f'sum({name}{{namespace="hearth"}})': limit
                          for name, limit in limits.items()})
        reference = (m.ROOT / "docs/reference/reference.md").read_text()
        for name in limits:
            self.assertIn(f"| `{name}` | gauge |", reference)

    def test_job_and_cronjob_are_equal(self):
        for folder in m.OVERLAYS:
            objects = m.kustomize(folder)
            self.assertEqual(m.pod_template(m.warm_job(objects)),
                             m.pod_template(m.find(objects, "CronJob", "hearth-warm")))

    def test_warm_up_job_is_named_by_its_inputs(self):
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder) / "kubernetes"
            shutil.copytree(m.KUBERNETES, tree)

            def name():
                m.kustomize.cache_clear()
                return m.warm_job(m.kustomize(tree / "overlays" / "cpu"))["metadata"]["name"]

            names = [name()]
            self.assertEqual(names[0], m.warm_job(self.cpu)["metadata"]["name"])
            for file, old, new in (("prompts.yaml", "Example Ltd", "Other Ltd"),
                                   ("model.env", "gemma-3-270m-it", "gemma-3-1b-it"),
                                   ("kustomization.yaml", "newTag: 0.1.0", "newTag: 0.2.0")):
                text = (tree / "base" / file).read_text()
                self.assertIn(old, text)
                (tree / "base" / file).write_text(text.replace(old, new))
                names.append(name())
        for one in names:
            self.assertRegex(one, r"^hearth-warm-[a-z0-9]{10}$")
        self.assertEqual(len(set(names)), 4)

    def test_commands_of_the_pages(self):
        """No cluster is at hand, so the objects that the commands name are looked up."""
        deploy, observability = ((m.ROOT / "docs" / name).read_text()
                                 for name in ("deploy.md", "observability.md"))
        first, last = re.findall(r"(?m)^ *kubectl apply -k OVERLAY -l (\S+)$", deploy)
        rollout = re.search(r"(?m)^ *kubectl -n (\S+) rollout status (\S+) --timeout \d+m$", deploy)
        waits = re.search(r"(?m)^ *kubectl -n (\S+) wait job -l (\S+) --for=condition=Complete ",
                          deploy)
        forward = re.search(r"`kubectl -n (\S+) port-forward (\S+) (\d+)`", observability)
        namespace, label = rollout[1], "app.kubernetes.io/component"
        self.assertEqual({waits[1], forward[1]}, {namespace})
        self.assertEqual([first, last, waits[2]],
                         [f"'{label}!=warm'", f"{label}=warm", f"{label}=warm"])
        for folder in m.OVERLAYS:
            objects = m.kustomize(folder)
            with self.subTest(folder.name):
                self.assertEqual({o["kind"] for o in objects
                                  if o["metadata"].get("labels", {}).get(label) == "warm"},
                                 {"Job", "CronJob"})
                self.assertEqual(rollout[2], "deployment/hearth-worker")
                m.find(objects, "Deployment", "hearth-worker")
        store = m.find(self.cpu, "StatefulSet", forward[2].removesuffix("-0"))
        (container,) = m.pod_template(store)["spec"]["containers"]
        self.assertIn(int(forward[3]), [port["containerPort"] for port in container["ports"]])
        self.assertEqual(store["metadata"]["namespace"], namespace)


class BrokenManifestsTest(unittest.TestCase):
    """Each check must report the errors for which it was made."""

    @classmethod
    def setUpClass(cls):
        cls.base = m.kustomize(m.CPU)

    def setUp(self):
        self.objects = copy.deepcopy(self.base)
        self.store = m.store_of(self.objects)
        self.worker = m.find(self.objects, "Deployment", "hearth-worker")
        self.store_pod = m.pod_template(self.store)
        self.worker_pod = m.pod_template(self.worker)
        self.worker_container = self.worker_pod["spec"]["containers"][0]

    def env(self, prefix):
        for o in m.of_kind(self.objects, "ConfigMap"):
            if o["metadata"]["name"].startswith(prefix + "-"):
                if any(key.startswith("HEARTH_") for key in o["data"]):
                    return o["data"]
        raise KeyError(prefix)

    def expect(self, check, words):
        problems = check(self.objects)
        self.assertTrue(any(words in problem for problem in problems), problems)

    def test_schema_errors_are_reported(self):
        self.worker["spec"]["replica"] = 2
        self.store_pod["spec"]["containers"][0]["ports"][0]["containerPort"] = "grpc"
        for release in KUBERNETES_RELEASES:
            errors = schema_errors([self.worker, self.store], [release])
            self.assertEqual(len({e.split(":")[0] for e in errors}), 2, release)

    def test_broken_services_are_reported(self):
        service = m.find(self.objects, "Service", "hearth-worker")
        service["spec"]["ports"][0]["targetPort"] = "https"
        self.expect(checks.check_services, "no container port https")
        service["spec"]["selector"] = {"app": "elsewhere"}
        self.expect(checks.check_services, "selects no pod")
        del m.find(self.objects, "Service", "hearth-store")["spec"]["clusterIP"]
        self.expect(checks.check_services, "no headless Service")

    def test_wrong_selectors_are_reported(self):
        self.worker_pod["metadata"]["labels"]["app.kubernetes.io/component"] = "other"
        self.expect(checks.check_selectors, "does not match its own pods")
        self.expect(checks.check_selectors, "PodDisruptionBudget/hearth-worker selects no pod")

    def test_wrong_probes_are_reported(self):
        self.worker_container["readinessProbe"] = {"grpc": {"port": 7070}}
        self.expect(checks.check_probes, "does not ask /health of the HTTP port")
        self.worker_container["livenessProbe"]["grpc"]["port"] = 7071
        self.expect(checks.check_probes, "asks port 7071")
        self.worker_container["livenessProbe"] = {"httpGet": {"port": 9070, "path": "/"}}
        self.expect(checks.check_probes, "does not ask the gRPC health service")
        del self.worker_container["livenessProbe"]
        self.expect(checks.check_probes, "no livenessProbe")

    def test_wrong_replica_settings_are_reported(self):
        self.worker["spec"]["replicas"] = 3
        self.expect(checks.check_scaling, "fixes its replicas")
        self.worker["metadata"]["name"] = "renamed"
        self.expect(checks.check_scaling, "no Deployment/hearth-worker")
        self.store["spec"]["replicas"] = 2
        self.expect(checks.check_scaling, "one replica")

    def test_dangling_references_are_reported(self):
        self.worker_pod["spec"]["volumes"] += [
            {"name": "x", "persistentVolumeClaim": {"claimName": "gone"}},
            {"name": "y", "secret": {"secretName": "gone-secret"}}]
        self.expect(checks.check_references, "no PersistentVolumeClaim/gone")
        self.expect(checks.check_references, "no Secret/gone-secret")
        self.worker_container["volumeMounts"][0]["name"] = "gone"
        self.expect(checks.check_references, "mounts gone")

    def test_missing_hardening_is_reported(self):
        for change, words in (
                (lambda: self.store_pod["spec"]["securityContext"].pop("runAsNonRoot"), "as root"),
                (lambda: self.store_pod["spec"].pop("enableServiceLinks"), "of its own"),
                (lambda: self.worker_container["securityContext"].pop("capabilities"),
                 "capabilities"),
                (lambda: self.worker_container["resources"].pop("limits"), "no memory limit"),
                (lambda: self.worker_container["volumeMounts"][0].pop("readOnly"), "is writable")):
            change()
            self.expect(checks.check_hardening, words)

    def test_open_network_is_reported(self):
        policy = m.find(self.objects, "NetworkPolicy", "hearth-store")
        policy["spec"]["ingress"][0]["from"].append({"podSelector": {}})
        self.expect(checks.check_network_is_fenced, "others than workers")
        del policy["spec"]["ingress"][0]["from"]
        self.expect(checks.check_network_is_fenced, "others than workers")
        policy["spec"]["egress"] = [{"ports": [{"port": 6379}]}]
        self.expect(checks.check_network_is_fenced, "the store may call out")
        self.expect(checks.check_network_is_fenced, "may not ask for names")
        policy["spec"]["podSelector"]["matchLabels"] = {"app": "elsewhere"}
        self.expect(checks.check_network_is_fenced, "no NetworkPolicy covers the store")
        m.find(self.objects, "NetworkPolicy", "hearth-default-deny")["spec"]["egress"] = [{}]
        self.expect(checks.check_network_is_fenced, "denies by default")

    def test_misplaced_model_is_reported(self):
        self.env("hearth-worker")["HEARTH_WORKER_MODEL"] = "/elsewhere/model.gguf"
        self.expect(checks.check_model, "is written to /models/model.gguf and read from /elsewhere")
        self.expect(checks.check_model, "worker has no volume at")
        self.worker_pod["spec"]["initContainers"][0]["image"] = "hearthctl:1"
        self.expect(checks.check_model, "another image")

    def test_broken_http_access_is_reported(self):
        service = m.find(self.objects, "Service", "hearth-worker")
        service["spec"]["ports"] = [p for p in service["spec"]["ports"] if p["name"] != "http"]
        self.expect(checks.check_http, "Service/hearth-worker has no port 8000")
        service["metadata"]["namespace"] = "elsewhere"
        self.expect(checks.check_http, "refuse the Host hearth-worker.elsewhere.svc")
        policy = m.find(self.objects, "NetworkPolicy", "hearth-worker")
        policy["spec"]["ingress"][0]["ports"].pop()
        self.expect(checks.check_http, "different clients")

    def test_oversized_limits_are_reported(self):
        self.env("hearth-store")["HEARTH_STORE_DISK_BYTES"] = "40GiB"
        self.expect(checks.check_sizes, "do not fit its volume")
        self.env("hearth-store")["HEARTH_STORE_HOST_BYTES"] = "7GiB"
        self.expect(checks.check_sizes, "do not fit its memory limit")
        self.env("hearth-worker")["HEARTH_WORKER_THREADS"] = "4"
        self.expect(checks.check_sizes, "threads differ")

    def test_short_grace_periods_are_reported(self):
        self.worker_pod["spec"]["terminationGracePeriodSeconds"] = 30
        self.expect(checks.check_drain, "killed before")
        self.worker_container["livenessProbe"]["failureThreshold"] = 3
        self.expect(checks.check_drain, "while it drains")

    def test_wrong_addresses_are_reported(self):
        self.env("hearth-worker")["HEARTH_WORKER_STORE"] = "hearth-store:7081"
        self.expect(checks.check_addresses, "no Service at hearth-store:7081")
        self.env("hearth-store")["HEARTH_STORE_LISTEN"] = "127.0.0.1:7080"
        self.expect(checks.check_addresses, "is not its grpc port")
        self.env("hearth-worker")["HEARTH_WORKER_HTTP_LISTEN"] = "127.0.0.1:8000"
        self.expect(checks.check_addresses, "is not its HTTP port")
        self.worker_pod["metadata"]["annotations"]["prometheus.io/port"] = "9071"
        self.expect(checks.check_addresses, "another port")
        job = m.pod_template(m.warm_job(self.objects))
        args = job["spec"]["containers"][0]["args"]
        args[args.index("--file") + 1] = "/tmp/prompts.yaml"
        self.expect(checks.check_addresses, "is on no volume")

    def test_broken_shared_memory_is_reported(self):
        self.objects = copy.deepcopy(m.kustomize(m.ONE_NODE))
        worker = m.pod_template(m.find(self.objects, "Deployment", "hearth-worker"))["spec"]
        store = m.pod_template(m.store_of(self.objects))["spec"]
        affinity = worker.pop("affinity")
        self.expect(checks.check_shared_memory, "another node")
        worker["affinity"] = affinity
        self.assertEqual(checks.check_shared_memory(self.objects), [])
        worker["securityContext"]["runAsUser"] = 10002
        self.expect(checks.check_shared_memory, "several users")
        for spec, words in ((worker, "do not have the folder"), (store, "cannot make its socket")):
            mounts = spec["containers"][0]["volumeMounts"]
            next(v for v in mounts if v["name"] == "shared")["mountPath"] = "/run/other"
            self.expect(checks.check_shared_memory, words)
        volume = next(v for v in worker["volumes"] if v["name"] == "shared")
        volume.pop("persistentVolumeClaim")
        volume["hostPath"] = {"path": "/run/hearth"}
        self.expect(checks.check_volumes_are_allowed, "hostPath")

    def test_wrong_devices_are_reported(self):
        self.objects = copy.deepcopy(m.kustomize(m.GPU))
        worker = m.find(self.objects, "Deployment", "hearth-worker")["spec"]
        resources = worker["template"]["spec"]["containers"][0]["resources"]
        worker["strategy"]["rollingUpdate"]["maxSurge"] = 1
        self.expect(checks.check_devices, "waits for a spare GPU")
        del resources["requests"]["nvidia.com/gpu"]
        self.expect(checks.check_devices, "worker has 0/1 GPUs")
        self.env("hearth-worker")["HEARTH_WORKER_DEVICE"] = "cpu"
        del resources["limits"]["nvidia.com/gpu"]
        self.assertEqual(checks.check_devices(self.objects), [])
        self.env("hearth-store")["HEARTH_STORE_GPU_BYTES"] = "8GiB"
        self.expect(checks.check_devices, "store has 0 GPUs")
        self.expect(checks.check_devices, "no worker uses the GPU")

    def test_moving_image_tags_are_reported(self):
        self.worker_container["image"] = "hearth-worker:latest"
        self.expect(checks.check_images, "no fixed tag")
        self.expect(checks.check_images, "several releases")


if __name__ == "__main__":
    unittest.main()
