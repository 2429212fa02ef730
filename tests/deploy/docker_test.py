"""The Dockerfiles: hadolint finds nothing, and they follow the project's rules."""
import http.server
import pathlib
import re
import socketserver
import subprocess
import sys
import tempfile
import threading
import unittest

import manifests as m

DOCKER = m.ROOT / "deploy/docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))


def hadolint(path):
    run = subprocess.run(
        [m.tool("hadolint"), "--no-color", "--failure-threshold", "style", str(path)],
        capture_output=True, text=True)
    return run.returncode, run.stdout + run.stderr


def instructions(text):
    """Returns (KEYWORD, rest) of each instruction, with continuation lines joined and without
    comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def rule_problems(text):
    problems = []
    parsed = instructions(text)
    stages = [rest.split()[0] for word, rest in parsed if word == "FROM"]
    last = max(i for i, (word, _) in enumerate(parsed) if word == "FROM")
    final = parsed[last:]
    if len(stages) < 2:
        problems.append("not multi-stage")
    problems += [f"{stage} is no pinned Debian 12" for stage in stages
                 if not re.fullmatch(r"debian:12\.\d+-slim", stage)]
    users = [rest for word, rest in final if word == "USER"]
    if not users or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
        problems.append("does not end as a numbered user other than root")
    if not [rest for word, rest in final if word == "HEALTHCHECK"]:
        problems.append("says nothing about health")
    labels = " ".join(rest for word, rest in final if word == "LABEL")
    problems += [f"no label {name}" for name in ("title", "description", "licenses", "version",
                                                 "revision", "base.name")
                 if f"org.opencontainers.image.{name}=" not in labels]
    if not [rest for word, rest in final if word == "ENTRYPOINT" and rest.startswith("[")]:
        problems.append("no ENTRYPOINT in exec form: signals would not arrive")
    # The folders must belong to group 0: OpenShift runs containers with other user ids, in group 0.
    made = [words for word, rest in final if word == "RUN"
            for words in re.findall(r"install -d ([^&]*)", rest)]
    if any("-g root -m 0770" not in words for words in made):
        problems.append("a folder that only one user may write")
    listens = {port for word, rest in final if word == "ENV"
               for port in re.findall(r"_LISTEN=\S*:(\d+)", rest)}
    exposed = {port for word, rest in final if word == "EXPOSE" for port in rest.split()}
    if listens != exposed:
        problems.append(f"listens at {sorted(listens)} and exposes {sorted(exposed)}")
    for word, rest in parsed:
        if word in ("ENV", "ARG") and re.search(r"(?i)secret|token=|password|_key=", rest):
            problems.append(f"a secret in {word}")
        if word in ("COPY", "ADD") and "models" in rest:
            problems.append("copies a model into the image")
    return problems


class DockerfilesTest(unittest.TestCase):

    def test_every_image_has_dockerfile(self):
        self.assertEqual([p.name.split(".")[0] for p in DOCKERFILES],
                         ["hearthctl", "python", "store", "worker-cuda", "worker"])

    def test_hadolint_finds_nothing(self):
        for path in DOCKERFILES:
            with self.subTest(path.name):
                self.assertEqual(hadolint(path), (0, ""))

    def test_dockerfiles_follow_project_rules(self):
        for path in DOCKERFILES:
            with self.subTest(path.name):
                self.assertEqual(rule_problems(path.read_text()), [])

    def test_copied_files_are_not_ignored(self):
        allowed = [line[1:].rstrip("/") for line in
                   (m.ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
        for path in DOCKERFILES:
            for word, rest in instructions(path.read_text()):
                if word != "COPY" or rest.startswith("--from"):
                    continue
                for source in rest.split()[:-1]:
                    with self.subTest(f"{path.name}: {source}"):
                        self.assertTrue((m.ROOT / source).exists())
                        self.assertTrue(source == "." or any(
                            source == a or source.startswith(a + "/") for a in allowed))

    def test_dockerignore_admits_source_folders(self):
        ignore = (m.ROOT / ".dockerignore").read_text().splitlines()
        self.assertEqual(ignore[1], "*")
        for source in ("proto/", "cache_store/", "worker/", "services/", "scripts/", "python/",
                       "CMakeLists.txt"):
            self.assertIn("!" + source, ignore)

    def test_worker_images_serve_http(self):
        for path in DOCKER.glob("worker*.Dockerfile"):
            environment = " ".join(rest for word, rest in instructions(path.read_text())
                                   if word == "ENV")
            self.assertIn("HEARTH_WORKER_HTTP_LISTEN=0.0.0.0:8000", environment, path.name)

    def test_only_worker_images_build_worker(self):
        for path in DOCKERFILES:
            built = re.search(r"build\.sh /out ([a-z -]+)", path.read_text())
            self.assertEqual(built is None, path.name == "python.Dockerfile", path.name)
            self.assertEqual(built is not None and "hearth-worker" in built.group(1).split(),
                             path.name.startswith("worker"), path.name)

    def test_python_image_pins_its_packages(self):
        installed = re.search(r"pip install (.*)", (DOCKER / "python.Dockerfile").read_text()
                              .replace("\\\n", "")).group(1)
        self.assertIn("--constraint scripts/constraints.txt", installed)
        extra = re.search(r"\./python\[(\w+)\]", installed).group(1)
        project = (m.ROOT / "python/pyproject.toml").read_text()
        needed = re.search(rf"^{extra} = \[(.*)\]$", project, re.M).group(1)
        pinned = (m.ROOT / "scripts/constraints.txt").read_text()
        for name in re.findall(r'"([\w-]+)', needed):
            self.assertRegex(pinned, rf"(?m)^{name}==")

    def test_environment_variables_match_kubernetes(self):
        known = set()
        for objects in (m.kustomize(m.CPU), m.kustomize(m.GPU)):
            for config in m.of_kind(objects, "ConfigMap"):
                known |= set(config["data"])
        for path in DOCKERFILES:
            for word, rest in instructions(path.read_text()):
                if word == "ENV":
                    for name in re.findall(r"(HEARTH_[A-Z_]+)=", rest):
                        self.assertIn(name, known, path.name)


class ScriptsTest(unittest.TestCase):

    def test_image_scripts_parse(self):
        for path in DOCKER.glob("*.sh"):
            self.assertEqual(subprocess.run(["bash", "-n", str(path)]).returncode, 0, path.name)
            self.assertTrue(path.stat().st_mode & 0o100, f"{path.name} is not executable")

    def test_health_check_needs_every_port(self):
        class Page(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(self.server.answers.get(self.path, 404))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        def page(**answers):
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
            server.answers = {"/" + path: status for path, status in answers.items()}
            threading.Thread(target=server.serve_forever).start()
            self.addCleanup(server.server_close)
            self.addCleanup(server.shutdown)
            return server

        def status(*pages):
            ports = [str(server.server_address[1]) for server in pages]
            return subprocess.run(["bash", DOCKER / "healthcheck.sh", *ports], timeout=240,
                                  capture_output=True).returncode

        metrics, api = page(metrics=200), page(health=200)
        grpc = socketserver.TCPServer(("127.0.0.1", 0), None)  # listens but accepts no connection
        self.addCleanup(grpc.server_close)
        self.assertEqual(status(grpc, metrics), 0)
        self.assertEqual(status(grpc, metrics, api), 0)
        api.answers["/health"] = 503
        self.assertNotEqual(status(grpc, metrics, api), 0)
        self.assertNotEqual(status(grpc, api), 0)

    def test_apt_install_removes_package_lists(self):
        lines = (DOCKER / "apt-install.sh").read_text().splitlines()
        installed = next(i for i, line in enumerate(lines) if line.startswith("apt-get install"))
        self.assertIn("apt-get clean", lines[installed:])
        self.assertIn("rm -rf /var/lib/apt/lists/*", lines[installed:])

    def test_model_files_are_world_readable(self):
        # Runs the code that fetches and converts the model; the download itself is left out.
        run = ("import hashlib, os, pathlib, sys\n"
               f"sys.path.insert(0, {str(m.ROOT / 'scripts')!r})\n"
               "import convert_model, fetch_model\n"
               "os.umask(0o077)\n"
               "folder = pathlib.Path(sys.argv[1])\n"
               "fetch_model.download = lambda _: []\n"
               "fetch_model.GGUF_SHA256 = hashlib.sha256().hexdigest()\n"
               "fetch_model.fetch(folder / 'model.gguf')\n"
               "(folder / 'made').mkdir()\n"
               "(folder / 'made' / 'model.safetensors').touch()\n"
               "convert_model.make_readable(folder / 'made')")
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-c", run, folder], check=True, capture_output=True)
            for name, mode in (("model.gguf", 0o644), ("made", 0o755),
                               ("made/model.safetensors", 0o644)):
                self.assertEqual((pathlib.Path(folder) / name).stat().st_mode & 0o777, mode, name)

    def test_build_script_functions_exist(self):
        text = (DOCKER / "build.sh").read_text()
        called = re.findall(r"^\s+(setup_\w+|fetch_cuda)|<\((cuda_options)", text, re.M)
        self.assertEqual({a or b for a, b in called},
                         {"setup_venv", "setup_python", "fetch_cuda", "cuda_options"})
        sources = "".join(f"source scripts/{name}.sh; " for name in ("lib", "setup", "cuda"))
        for names in called:
            name = "".join(names)
            defined = subprocess.run(["bash", "-c", f"{sources} declare -F {name}"],
                                     cwd=m.ROOT, capture_output=True, text=True)
            self.assertEqual(defined.returncode, 0, f"scripts/ has no {name}")

    def test_only_cuda_image_compiles_kernels(self):
        for path in DOCKERFILES:
            self.assertEqual("RUN DEVICE=cuda deploy/docker/build.sh" in path.read_text(),
                             path.name == "worker-cuda.Dockerfile", path.name)
        options = subprocess.run(["bash", "-c", "source scripts/cuda.sh; cuda_options /made"],
                                 cwd=m.ROOT, capture_output=True, text=True, check=True).stdout
        self.assertIn("-DHEARTH_DEVICE=cuda\n", options)
        known = set(re.findall(r"set\((HEARTH_\w+)", (m.ROOT / "CMakeLists.txt").read_text()))
        for name in re.findall(r"-D(HEARTH_\w+)=", options):
            self.assertIn(name, known)


class BrokenDockerfileTest(unittest.TestCase):

    def setUp(self):
        self.good = (DOCKER / "store.Dockerfile").read_text()

    def test_hadolint_reports_broken_dockerfiles(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "Dockerfile"
            for good, bad, rule in (("debian:12.12-slim", "debian:latest", "DL3007"),
                                    ('ENTRYPOINT ["/usr/local/bin/hearth-store"]',
                                     "ENTRYPOINT /usr/local/bin/hearth-store", "DL3025")):
                self.assertIn(good, self.good)
                path.write_text(self.good.replace(good, bad))
                code, said = hadolint(path)
                self.assertNotEqual(code, 0)
                self.assertIn(rule, said)

    def test_rules_report_broken_dockerfiles(self):
        for good, bad, words in (
                ("USER 10001:10001", "USER root", "other than root"),
                ("USER 10001:10001", "", "other than root"),
                ("HEALTHCHECK", "LABEL x=y #", "nothing about health"),
                ("debian:12.12-slim", "debian:12", "no pinned Debian"),
                ("COPY LICENSE", "COPY models/gemma /models/\nCOPY LICENSE", "copies a model"),
                ("image.revision", "image.commit", "no label revision"),
                ("-g root -m 0770", "-g hearth -m 0700", "only one user"),
                ("EXPOSE 7080", "EXPOSE 8000", "listens at ['7080', '9080'] and exposes"),
                ("EXPOSE", "ENV HF_TOKEN=abc\nEXPOSE", "a secret")):
            problems = rule_problems(self.good.replace(good, bad))
            self.assertTrue(any(words in p for p in problems), words)
        self.assertIn("not multi-stage", rule_problems("FROM debian:12.12-slim\nUSER 1:1\n"))


if __name__ == "__main__":
    unittest.main()
