"""The Kubernetes manifests build, are valid and consistent; and the checks report broken ones."""
import copy
import unittest

import kubernetes_validate

import checks
import manifests as m

# The oldest Kubernetes release with stable gRPC probes, and the newest with published schemas.
KUBERNETES_RELEASES = ("1.27", "1.37")


def schema_errors(objects):
    errors = []
    for o in objects:
        for release in KUBERNETES_RELEASES:
            try:
                kubernetes_validate.validate(o, release, strict=True)
            except kubernetes_validate.ValidationError as error:
                errors.append(f"{o['kind']}/{o['metadata']['name']}: {error.message}")
    return errors


class ManifestsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.base = m.kustomize(m.BASE)
        cls.gpu = m.kustomize(m.GPU)
        cls.one_node = m.kustomize(m.ONE_NODE)

    def test_manifests_match_kubernetes_schemas(self):
        for objects in (self.base, self.gpu, self.one_node, m.kustomize(m.LOAD_MODEL)):
            self.assertEqual(schema_errors(objects), [])

    def test_manifests_pass_all_checks(self):
        self.assertEqual(checks.all_problems(self.base), [])
        self.assertEqual(checks.all_problems(self.gpu), [])
        self.assertEqual(checks.all_problems(self.one_node), [])

    def test_base_has_every_object(self):
        have = {(o["kind"], o["metadata"]["name"]) for o in self.base}
        for part in (("StatefulSet", "hearth-store"), ("Service", "hearth-store"),
                     ("PodDisruptionBudget", "hearth-store"), ("Deployment", "hearth-worker"),
                     ("Service", "hearth-worker"), ("HorizontalPodAutoscaler", "hearth-worker"),
                     ("NetworkPolicy", "hearth-store"), ("ServiceAccount", "hearth"),
                     ("PersistentVolumeClaim", "hearth-models"), ("Job", "hearth-warm"),
                     ("CronJob", "hearth-warm")):
            self.assertIn(part, have)

    def test_all_objects_share_one_namespace(self):
        for o in self.base + self.gpu + self.one_node + m.kustomize(m.LOAD_MODEL):
            if o["kind"] != "Namespace":
                self.assertEqual(o["metadata"]["namespace"], "hearth", o["metadata"]["name"])

    def test_gpu_overlay_requests_gpu_and_image(self):
        owner = m.find(self.gpu, "Deployment", "hearth-worker")
        container = m.pod_template(owner)["spec"]["containers"][0]
        self.assertEqual(container["resources"]["limits"]["nvidia.com/gpu"], "1")
        self.assertIn("/hearth-worker-cuda:", container["image"])
        self.assertEqual(m.environment(self.gpu, container)["HEARTH_WORKER_DEVICE"], "cuda")
        self.assertEqual(m.of_kind(self.gpu, "HorizontalPodAutoscaler"), [])
        self.assertGreaterEqual(owner["spec"]["replicas"], 1)

    def test_one_node_overlay_shares_store_memory(self):
        store = m.pod_template(m.find(self.one_node, "StatefulSet", "hearth-store"))
        env = m.environment(self.one_node, store["spec"]["containers"][0])
        self.assertEqual(env.pop("HEARTH_STORE_SHARED_MEMORY"), "/run/hearth/memory.sock")
        base = m.pod_template(m.find(self.base, "StatefulSet", "hearth-store"))
        self.assertEqual(env, m.environment(self.base, base["spec"]["containers"][0]))
        names = {(o["kind"], o["metadata"]["name"]) for o in self.one_node
                 if o["kind"] != "ConfigMap"}
        self.assertEqual(names - {("PersistentVolumeClaim", "hearth-shared")},
                         {(o["kind"], o["metadata"]["name"]) for o in self.base
                          if o["kind"] != "ConfigMap"})

    def test_loader_writes_workers_volume(self):
        pod = m.kustomize(m.LOAD_MODEL)[0]
        self.assertEqual(checks.check_hardening([pod]), [])
        claim = pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
        m.find(self.base, "PersistentVolumeClaim", claim)
        images = {c["image"] for _, _, t in m.workloads(self.base) for c in m.containers(t)}
        self.assertIn(pod["spec"]["containers"][0]["image"], images)

    def test_job_and_cronjob_are_equal(self):
        job = m.pod_template(m.find(self.base, "Job", "hearth-warm"))
        cron = m.pod_template(m.find(self.base, "CronJob", "hearth-warm"))
        self.assertEqual(job, cron)


class BrokenManifestsTest(unittest.TestCase):
    """Each check must report the errors for which it was made."""

    @classmethod
    def setUpClass(cls):
        cls.base = m.kustomize(m.BASE)

    def setUp(self):
        self.objects = copy.deepcopy(self.base)
        self.store = m.find(self.objects, "StatefulSet", "hearth-store")
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
        self.assertEqual(len({e.split(":")[0] for e in schema_errors(self.objects)}), 2)

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

    def test_wrong_scaling_is_reported(self):
        self.worker["spec"]["replicas"] = 3
        self.expect(checks.check_scaling, "fixes its replicas")
        self.worker["metadata"]["name"] = "renamed"
        self.expect(checks.check_scaling, "no Deployment/hearth-worker")
        self.store["spec"]["replicas"] = 2
        self.expect(checks.check_scaling, "one replica")

    def test_dangling_references_are_reported(self):
        self.worker_pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] = "gone"
        self.expect(checks.check_references, "no PersistentVolumeClaim/gone")
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

    def test_open_store_policy_is_reported(self):
        policy = m.find(self.objects, "NetworkPolicy", "hearth-store")
        policy["spec"]["ingress"][0]["from"].append({"podSelector": {}})
        self.expect(checks.check_store_is_fenced, "others than workers")
        del policy["spec"]["ingress"][0]["from"]
        self.expect(checks.check_store_is_fenced, "others than workers")
        policy["spec"]["podSelector"]["matchLabels"] = {"app": "elsewhere"}
        self.expect(checks.check_store_is_fenced, "no NetworkPolicy")

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
        job = m.pod_template(m.find(self.objects, "Job", "hearth-warm"))
        args = job["spec"]["containers"][0]["args"]
        args[args.index("--file") + 1] = "/tmp/prompts.yaml"
        self.expect(checks.check_addresses, "is on no volume")

    def test_broken_shared_memory_is_reported(self):
        self.objects = copy.deepcopy(m.kustomize(m.ONE_NODE))
        worker = m.pod_template(m.find(self.objects, "Deployment", "hearth-worker"))["spec"]
        store = m.pod_template(m.find(self.objects, "StatefulSet", "hearth-store"))["spec"]
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

    def test_moving_image_tags_are_reported(self):
        self.worker_container["image"] = "hearth-worker:latest"
        self.expect(checks.check_images, "no fixed tag")
        self.expect(checks.check_images, "several releases")


if __name__ == "__main__":
    unittest.main()
