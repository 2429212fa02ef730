"""Checks between the objects of a kustomize build. Each check returns a list of problems.

The schemas do not find these errors: a Service that selects no pod, a probe of a closed port, or an
unknown flag is valid YAML but breaks a cluster.
"""
import manifests as m

SERVING = ("Deployment", "StatefulSet", "DaemonSet")
NODE_FOLDER = "/var/lib/hearth"


def selects(selector, template):
    labels = template["metadata"].get("labels", {})
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())


def covers(policy, template):
    """Returns whether a NetworkPolicy or a PodDisruptionBudget is about these pods."""
    spec = policy["spec"].get("podSelector", policy["spec"].get("selector"))
    labels = template["metadata"].get("labels", {})
    return (all(labels.get(key) == value for key, value in spec.get("matchLabels", {}).items()) and
            all(labels.get(term["key"]) in term["values"]
                for term in spec.get("matchExpressions", [])))


def check_services(objects):
    problems = []
    for service in m.of_kind(objects, "Service"):
        name, spec = service["metadata"]["name"], service["spec"]
        chosen = [t for _, _, t in m.workloads(objects) if selects(spec.get("selector"), t)]
        if not chosen:
            problems.append(f"Service/{name} selects no pod")
        for template in chosen:
            ports = [p for c in m.containers(template) for p in c.get("ports", [])]
            for port in spec["ports"]:
                target = port.get("targetPort", port["port"])
                names = [p.get("name") for p in ports] + [p["containerPort"] for p in ports]
                if target not in names:
                    problems.append(f"Service/{name}: no container port {target}")
    for owner in m.of_kind(objects, "StatefulSet"):
        service = owner["spec"]["serviceName"]
        if service not in [s["metadata"]["name"] for s in m.of_kind(objects, "Service")
                           if s["spec"].get("clusterIP") == "None"]:
            problems.append(f"{owner['metadata']['name']}: no headless Service {service}")
    return problems


def check_selectors(objects):
    problems = []
    for label, owner, template in m.workloads(objects):
        selector = owner.get("spec", {}).get("selector", {}).get("matchLabels")
        if owner["kind"] in SERVING and not selects(selector, template):
            problems.append(f"{label}: its selector does not match its own pods")
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        for o in m.of_kind(objects, kind):
            if not any(covers(o, t) for _, _, t in m.workloads(objects)):
                problems.append(f"{kind}/{o['metadata']['name']} selects no pod")
    return problems


def probe_problem(kind, probe, ports, has_tls):
    """Returns what is wrong with a container's probe, or None. `ports`: {name: port}. A worker is
    ready only when its HTTP port answers. /health needs no token, and has reserved connections. The
    kubelet's gRPC probes know neither TLS nor unix sockets."""
    asked = probe.get("httpGet", {})
    if kind == "readinessProbe" and "http" in ports:
        if asked.get("path") != "/health" or asked.get("port") not in ("http", ports["http"]):
            return f"{kind} does not ask /health of the HTTP port"
        if (asked.get("scheme") == "HTTPS") != has_tls:
            return f"{kind} and the HTTP port differ in TLS"
    elif has_tls or "grpc" not in ports:
        if kind == "livenessProbe" and (asked.get("path"), asked.get("port")) != (
                "/metrics", "metrics"):
            return f"{kind} does not ask for the metrics"
        if "grpc" in probe or not probe.keys() & {"httpGet", "tcpSocket", "exec"}:
            return f"{kind} cannot reach the gRPC port"
        if "tcpSocket" in probe and probe["tcpSocket"]["port"] != "grpc":
            return f"{kind} does not connect to the gRPC port"
    elif "grpc" not in probe:
        return f"{kind} does not ask the gRPC health service"
    elif probe["grpc"]["port"] not in ports.values():
        return f"{kind} asks port {probe['grpc']['port']}, open: {list(ports.values())}"
    return None


def check_probes(objects):
    problems = []
    for label, owner, template in m.workloads(objects):
        for container in template["spec"]["containers"]:
            ports = {p["name"]: p["containerPort"] for p in container.get("ports", [])}
            has_tls = any(name.endswith("_TLS_CERT") for name in m.environment(objects, container))
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                probe = container.get(kind)
                if probe is None:
                    if owner["kind"] in SERVING:
                        problems.append(f"{label}: no {kind}")
                elif found := probe_problem(kind, probe, ports, has_tls):
                    problems.append(f"{label}: {found}")
    return problems


def check_scaling(objects):
    problems = []
    for hpa in m.of_kind(objects, "HorizontalPodAutoscaler"):
        target = hpa["spec"]["scaleTargetRef"]
        try:
            owner = m.find(objects, target["kind"], target["name"])
        except KeyError:
            problems.append(f"HPA: no {target['kind']}/{target['name']}")
            continue
        if "replicas" in owner["spec"]:
            problems.append(f"HPA: {target['name']} fixes its replicas too")
        for container in m.containers(m.pod_template(owner)):
            if "cpu" not in container["resources"].get("requests", {}):
                problems.append(f"HPA: {target['name']} requests no cpu to take a share of")
    for owner in m.of_kind(objects, "StatefulSet"):
        if owner["spec"].get("replicas") != 1:
            problems.append("StatefulSet: the cache node runs as one replica")
    return problems


def check_references(objects):
    """Each ConfigMap, claim and account that a pod names must exist; each mount needs a volume.
    Secrets that a cluster's operator makes are named in a comment of their component."""
    problems = []
    names = {(o["kind"], o["metadata"]["name"]) for o in objects}
    comments = "".join(line for path in m.KUBERNETES.rglob("*.yaml")
                       for line in path.read_text().splitlines() if line.lstrip().startswith("#"))
    for label, owner, template in m.workloads(objects):
        spec = template["spec"]
        wanted = [("ServiceAccount", spec.get("serviceAccountName", "default"))]
        volumes = {v["name"]: v for v in spec.get("volumes", [])}
        for volume in volumes.values():
            if "configMap" in volume:
                wanted.append(("ConfigMap", volume["configMap"]["name"]))
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                wanted.append(("PersistentVolumeClaim", claim))
            if "secret" in volume:
                wanted.append(("Secret", volume["secret"]["secretName"]))
        claims = owner.get("spec", {}).get("volumeClaimTemplates", [])
        volumes.update({c["metadata"]["name"]: c for c in claims})
        for container in m.containers(template):
            for source in container.get("envFrom", []):
                wanted.append(("ConfigMap", source["configMapRef"]["name"]))
            for mount in container.get("volumeMounts", []):
                if mount["name"] not in volumes:
                    problems.append(f"{label}: mounts {mount['name']}, which is no volume")
        problems += [f"{label}: no {kind}/{name}" for kind, name in wanted
                     if (kind, name) not in names and not (kind == "Secret" and name in comments)]
    return problems


def check_hardening(objects):
    problems = []
    for label, _, template in m.workloads(objects):
        pod = template["spec"]
        if not pod.get("securityContext", {}).get("runAsNonRoot"):
            problems.append(f"{label}: may run as root")
        if pod.get("automountServiceAccountToken") is not False:
            problems.append(f"{label}: mounts an API token")
        if pod.get("enableServiceLinks") is not False:
            problems.append(f"{label}: Kubernetes adds HEARTH_* variables of its own")
        for container in m.containers(template):
            context = container.get("securityContext", {})
            if context.get("runAsUser", 1) == 0:
                if [v["mountPath"] for v in container["volumeMounts"]] != ["/node"]:
                    problems.append(f"{label}: a container of root has other volumes than the node")
                if not set(context["capabilities"].get("add", [])) <= {"CHOWN", "FOWNER"}:
                    problems.append(f"{label}: adds capabilities")
            elif context.get("capabilities", {}).get("add"):
                problems.append(f"{label}: adds capabilities")
            if not context.get("readOnlyRootFilesystem"):
                problems.append(f"{label}: writable root filesystem")
            if context.get("capabilities", {}).get("drop") != ["ALL"]:
                problems.append(f"{label}: keeps capabilities")
            if context.get("allowPrivilegeEscalation") is not False:
                problems.append(f"{label}: may gain privileges")
            if "memory" not in container["resources"].get("limits", {}):
                problems.append(f"{label}: no memory limit")
        for container in template["spec"]["containers"]:
            for mount in container.get("volumeMounts", []):
                if mount["name"] == "models" and not mount.get("readOnly"):
                    problems.append(f"{label}: the model folder is writable")
    return problems


def check_network_is_fenced(objects):
    """Without a rule nothing may pass. Only workers may connect to the store's port. The store may
    connect to a Redis only, and may ask for names only then."""
    problems = []
    policies = m.of_kind(objects, "NetworkPolicy")
    if not any(p["spec"]["podSelector"] == {} and p["spec"].keys() == {"podSelector", "policyTypes"}
               and len(p["spec"]["policyTypes"]) == 2 for p in policies):
        problems.append("no NetworkPolicy denies by default")
    store = m.pod_template(m.store_of(objects))
    worker = m.pod_template(m.find(objects, "Deployment", "hearth-worker"))
    env = m.environment(objects, store["spec"]["containers"][0])
    allowed = {6379, 53} if env.get("HEARTH_STORE_SHARED", "none") != "none" else set()
    own = [p["spec"] for p in policies if p["spec"]["podSelector"] and covers(p, store)]
    if not own:
        return problems + ["no NetworkPolicy covers the store"]
    for policy in own:
        for rule in policy.get("egress", []):
            if not {p["port"] for p in rule.get("ports", [{"port": "any"}])} <= allowed:
                problems.append("the store may call out")
        for rule in policy.get("ingress", []):
            ports = [p["port"] for p in rule.get("ports", [])]
            if ports and 7080 not in ports:
                continue
            for peer in rule.get("from") or [{}]:
                if not selects(peer.get("podSelector", {}).get("matchLabels"), worker):
                    problems.append(f"others than workers reach the store: {peer}")
    for label, _, template in m.workloads(objects):
        calls = [p["spec"] for p in policies if covers(p, template) and p["spec"].get("egress")]
        ports = {p["port"] for spec in calls for rule in spec["egress"] for p in rule["ports"]}
        if ports and 53 not in ports:
            problems.append(f"{label}: may call out, and may not ask for names")
    return problems


def check_http(objects):
    """Clients must reach OpenAI's API through each Service by each of its names. Clients that may
    use the gRPC port must also be allowed to use the HTTP port."""
    problems = []
    worker = m.pod_template(m.find(objects, "Deployment", "hearth-worker"))
    env = m.environment(objects, worker["spec"]["containers"][0])
    hosts = env.get("HEARTH_WORKER_HTTP_HOSTS", "").split(",")
    port = int(env.get("HEARTH_WORKER_HTTP_LISTEN", ":0").rpartition(":")[2])
    services = [s for s in m.of_kind(objects, "Service") if selects(s["spec"]["selector"], worker)]
    for service in services:
        name, namespace = (service["metadata"][key] for key in ("name", "namespace"))
        if port not in [p["port"] for p in service["spec"]["ports"]]:
            problems.append(f"Service/{name} has no port {port} of HTTP")
        for suffix in ("", f".{namespace}", f".{namespace}.svc",
                       f".{namespace}.svc.cluster.local"):
            if name + suffix not in hosts:
                problems.append(f"workers refuse the Host {name + suffix}")
    for policy in m.of_kind(objects, "NetworkPolicy"):
        if covers(policy, worker):
            for rule in policy["spec"].get("ingress", []):
                ports = [p["port"] for p in rule["ports"]]
                if (7070 in ports) != (port in ports):
                    problems.append(f"{policy['metadata']['name']}: HTTP and gRPC are open to "
                                    "different clients")
    return problems


def check_sizes(objects):
    """The sizes in flags must fit the resources that Kubernetes grants."""
    problems = []
    store = m.store_of(objects)
    container = store["spec"]["template"]["spec"]["containers"][0]
    env = m.environment(objects, container)
    # Database files may need a fifth more than the limit, plus 2 GiB (cache_store/store/options.h);
    # ext4 reserves 5 %.
    needed = 1.2 * m.bytes_of(env["HEARTH_STORE_DISK_BYTES"]) + 2 * 2**30
    for claim in store["spec"].get("volumeClaimTemplates", []):
        if needed > 0.95 * m.bytes_of(claim["spec"]["resources"]["requests"]["storage"]):
            problems.append("the store's disk-bytes do not fit its volume")
    # The store also needs 1 GiB for staged publishes and 0.5 GiB for write-behind
    # (cache_store/store/options.h).
    needed = m.bytes_of(env["HEARTH_STORE_HOST_BYTES"]) + 3 * 2**29
    if needed > 0.9 * m.bytes_of(container["resources"]["limits"]["memory"]):
        problems.append("the store's host-bytes do not fit its memory limit")
    worker = m.pod_template(m.find(objects, "Deployment", "hearth-worker"))
    container = worker["spec"]["containers"][0]
    env = m.environment(objects, container)
    for grant in ("requests", "limits"):
        if container["resources"][grant]["cpu"] != env["HEARTH_WORKER_THREADS"]:
            problems.append(f"the worker's threads differ from its cpu {grant}")
    if m.bytes_of(env["HEARTH_WORKER_POOL_BYTES"]) > 0.5 * m.bytes_of(
            container["resources"]["limits"]["memory"]):
        problems.append("the worker's pool takes over half of its memory")
    return problems


def check_drain(objects):
    """Grace periods must exceed the time for preStop, drain and flush. Liveness probes must not
    fail during a drain."""
    problems = []
    for owner, prefix in ((m.store_of(objects), "HEARTH_STORE_"),
                          (m.find(objects, "Deployment", "hearth-worker"), "HEARTH_WORKER_")):
        name, pod = owner["metadata"]["name"], m.pod_template(owner)["spec"]
        container = pod["containers"][0]
        drain_s = int(m.environment(objects, container)[prefix + "DRAIN_TIMEOUT"].rstrip("s"))
        pre_stop = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        pre_stop_s = int(pre_stop[1]) if pre_stop else 0
        if pre_stop_s + drain_s + 5 > pod["terminationGracePeriodSeconds"]:
            problems.append(f"{name}: killed before its drain can end")
        liveness = container["livenessProbe"]
        if liveness["periodSeconds"] * liveness["failureThreshold"] <= drain_s:
            problems.append(f"{name}: liveness would kill it while it drains")
    return problems


def check_addresses(objects):
    """Listen ports, the workers' store address and the Job's worker address must exist."""
    problems = []
    services = {s["metadata"]["name"]: [p["port"] for p in s["spec"]["ports"]]
                for s in m.of_kind(objects, "Service")}

    def reach(who, address):
        host, _, port = address.rpartition(":")
        if int(port) not in services.get(host, []):
            problems.append(f"{who}: no Service at {address}")

    for label, _, template in m.workloads(objects):
        annotations = template["metadata"].get("annotations", {})
        for container in m.containers(template):
            ports = {p["name"]: p["containerPort"] for p in container.get("ports", [])}
            for name, value in m.environment(objects, container).items():
                if name.endswith("_METRICS_LISTEN"):
                    if value != f"0.0.0.0:{ports.get('metrics')}":
                        problems.append(f"{label}: {name}={value} is not its metrics port")
                    if annotations.get("prometheus.io/port") != value.rpartition(":")[2]:
                        problems.append(f"{label}: Prometheus would ask another port")
                elif name.endswith("_HTTP_LISTEN"):
                    if value != f"0.0.0.0:{ports.get('http')}":
                        problems.append(f"{label}: {name}={value} is not its HTTP port")
                elif name.endswith("_LISTEN") and not value.startswith("unix:"):
                    if value != f"0.0.0.0:{ports.get('grpc')}":
                        problems.append(f"{label}: {name}={value} is not its grpc port")
                elif name == "HEARTH_WORKER_STORE":
                    store_env = m.environment(
                        objects, m.pod_template(m.store_of(objects))["spec"]["containers"][0])
                    if not value.startswith("unix:"):
                        reach(label, value)
                    elif value != store_env["HEARTH_STORE_LISTEN"]:
                        problems.append(f"{label}: no store at {value}")
            args = container.get("args", [])
            if "--worker" in args:
                reach(label, args[args.index("--worker") + 1])
            if "--file" in args:
                path = args[args.index("--file") + 1]
                mounts = [v["mountPath"] for v in container.get("volumeMounts", [])]
                if not any(path.startswith(mount + "/") for mount in mounts):
                    problems.append(f"{label}: {path} is on no volume")
    return problems


def check_images(objects):
    """All images must be of one release, with a fixed tag."""
    images = {c["image"] for _, _, t in m.workloads(objects) for c in m.containers(t)}
    problems = [f"image {i} has no fixed tag" for i in images
                if ":" not in i.rpartition("/")[2] or i.endswith(":latest")]
    tags = {i.rpartition(":")[2] for i in images}
    if len(tags) != 1:
        problems.append(f"images of several releases: {sorted(images)}")
    return problems


def folder_at(template, path):
    """Returns (claim or folder of the node, is writable) of the volume that the first container
    mounts at `path`."""
    spec = template["spec"]
    folders = {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in spec.get("volumes", [])
               if "persistentVolumeClaim" in v}
    folders.update({v["name"]: v["hostPath"]["path"] for v in spec.get("volumes", [])
                    if "hostPath" in v})
    for mount in spec["containers"][0].get("volumeMounts", []):
        if mount["mountPath"] == path and mount["name"] in folders:
            below = "/" + mount["subPath"] if "subPath" in mount else ""
            return folders[mount["name"]] + below, not mount.get("readOnly", False)
    return None, False


def check_shared_memory(objects):
    """If the store has a memory socket, store and workers must share its folder, node and user."""
    owner = m.store_of(objects)
    store = m.pod_template(owner)
    worker = m.pod_template(m.find(objects, "Deployment", "hearth-worker"))
    env = m.environment(objects, store["spec"]["containers"][0])
    folder, _, socket = env.get("HEARTH_STORE_SHARED_MEMORY", "").rpartition("/")
    if not socket or not folder:
        return []
    problems = []
    claim, writable = folder_at(store, folder)
    if claim is None or not writable:
        problems.append("the store cannot make its socket in a folder that others have")
    if folder_at(worker, folder)[0] != claim:
        problems.append("the workers do not have the folder of the store's socket")
    together = worker["spec"].get("affinity", {}).get("podAffinity", {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution", [])
    if owner["kind"] == "DaemonSet":
        if worker["spec"].get("nodeSelector") != store["spec"].get("nodeSelector"):
            problems.append("workers may run on nodes without a store")
    elif not any(term["topologyKey"] == "kubernetes.io/hostname" and
               selects(term["labelSelector"]["matchLabels"], store) for term in together):
        problems.append("workers may run on another node than the store, whose socket they have")
    users = {pod["spec"]["securityContext"].get("runAsUser") for pod in (store, worker)}
    if len(users) != 1:
        problems.append("store and workers run as several users")
    return problems


def check_devices(objects):
    """Containers that use a GPU must request one, and only they. Workers with a GPU roll out
    without a spare GPU. The gpu tier serves workers on the store's GPU, so both are in one pod."""
    problems = []
    for label, owner, template in m.workloads(objects):
        has_tier = False
        users = {}  # container's name -> the variable for which it needs a GPU
        for container in m.containers(template):
            env = m.environment(objects, container)
            name, granted = container["name"], container.get("resources", {})
            tier = m.bytes_of(env.get("HEARTH_STORE_GPU_BYTES", 0)) > 0
            has_tier |= tier
            if tier:
                users[name] = "HEARTH_STORE_GPU_BYTES"
            elif env.get("HEARTH_WORKER_DEVICE", "cpu").startswith("cuda"):
                users[name] = "HEARTH_WORKER_DEVICE"
            gpus = {granted.get(grant, {}).get("nvidia.com/gpu", "0")
                    for grant in ("requests", "limits")}
            if gpus != {"1" if name in users else "0"}:
                problems.append(f"{label}: {name} has {'/'.join(sorted(gpus))} GPUs")
        if has_tier and "HEARTH_WORKER_DEVICE" not in users.values():
            problems.append(f"{label}: no worker uses the GPU of the store's gpu tier")
        rolling = owner["spec"].get("strategy", {}).get("rollingUpdate", {})
        if users and owner["kind"] == "Deployment" and rolling != {"maxSurge": 0,
                                                                  "maxUnavailable": 1}:
            problems.append(f"{label}: a rollout waits for a spare GPU")
    return problems


# Kinds of volumes that pod security allows in a `restricted` namespace.
RESTRICTED_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral",
                      "persistentVolumeClaim", "projected", "secret"}


def check_volumes_are_allowed(objects):
    level = m.find(objects, "Namespace", "hearth")["metadata"]["labels"].get(
        "pod-security.kubernetes.io/enforce")
    volumes = [(label, volume) for label, _, template in m.workloads(objects)
               for volume in template["spec"].get("volumes", [])]
    if level == "privileged":
        problems = [f"{label}: folder {volume['hostPath']['path']} of the node"
                    for label, volume in volumes if "hostPath" in volume and
                    not (volume["hostPath"]["path"] + "/").startswith(NODE_FOLDER + "/")]
        if not any("hostPath" in volume for _, volume in volumes):
            problems.append("the namespace lets pods do more than they need")
        return problems
    if level != "restricted":
        return ["the namespace lets pods do more than they need"]
    return [f"{label}: pod security refuses a volume of the kind {kind}"
            for label, volume in volumes
            for kind in volume.keys() - {"name"} if kind not in RESTRICTED_VOLUMES]


def check_model(objects):
    """The init container must write the model where the worker reads it."""
    pod = m.pod_template(m.find(objects, "Deployment", "hearth-worker"))["spec"]
    (init,), worker = pod["initContainers"], pod["containers"][0]
    written = m.environment(objects, init)["MODEL_TO"]
    read = m.environment(objects, worker)["HEARTH_WORKER_MODEL"]
    problems = []
    if written.rstrip("/") != read:
        problems.append(f"the model is written to {written} and read from {read}")
    for container in (init, worker):
        if not any(read.startswith(v["mountPath"] + "/") and v["name"] == "models"
                   for v in container["volumeMounts"]):
            problems.append(f"{container['name']} has no volume at {read}")
    if init["image"] != worker["image"]:
        problems.append("the model is downloaded by another image")
    return problems


ALL = (check_services, check_selectors, check_probes, check_scaling, check_references,
       check_hardening, check_network_is_fenced, check_http, check_sizes, check_drain,
       check_addresses, check_images, check_shared_memory, check_volumes_are_allowed, check_model,
       check_devices)


def all_problems(objects):
    return [problem for check in ALL for problem in check(objects)]
