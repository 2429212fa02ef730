"""Runs the commands of docs/deploy.md and docs/observability.md.

Each command on these pages is run here, or listed in ELSEWHERE with the file that runs it. Run as:
python operator_pages_test.py BIN_DIR. The model is models/gemma-3-270m.gguf.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
DEPLOY, OBSERVABILITY = (ROOT / "docs" / name for name in ("deploy.md", "observability.md"))
BIN_DIR = None
LONG_S = 300  # time limit of a command; only a hang reaches it

sys.path.insert(0, str(ROOT / "tests" / "system"))

from log_waits import wait_for_log  # noqa: E402  (path set above)

BLOCK = re.compile(r"^ *```(.*)\n((?:.*\n)*?) *```$", re.M)
PROGRAMS = r"(?:\./hearth|(?:[\w./]*/)?hearth(?:ctl|-store|-worker)|scripts/\S+\.sh)"
COMMAND = re.compile(rf"(?:{PROGRAMS}|docker|kubectl|promtool|kill|apt|source) ")

IMAGES, PACKAGES = "tests/images/images_test.py", "tests/packages/bare_debian_test.sh"
KUBERNETES, BUILT = "tests/deploy/kubernetes_test.py", "this test needs what the command makes"
# {page: {command that this test does not run: (file, text in this file that runs it), or a reason}}
ELSEWHERE = {
    DEPLOY: {
        "./hearth build": BUILT,
        "./hearth setup": BUILT,
        "docker compose up --build": (IMAGES, '"up", "--no-build"'),
        "docker compose exec -T worker-1 hearthctl generate --prompt-file - --max-new-tokens 16 "
        "--wait-published < LICENSE": (IMAGES, "test_commands_of_the_page"),
        "docker compose exec -T worker-2 hearthctl generate --prompt-file - --max-new-tokens 16 "
        "< LICENSE": (IMAGES, "test_commands_of_the_page"),
        "docker compose --profile": (IMAGES, '"--profile", "redis"'),
        "scripts/images.sh test": ("scripts/images.sh", "tests/images/images_test.py"),
        "scripts/images.sh build": ("scripts/images.sh", "scripts/sbom.py"),
        "scripts/release.sh build/release": (PACKAGES, "scripts/release.sh"),
        "apt install ./hearth*.deb": (PACKAGES, "apt install -q -y ./hearth*.deb"),
        "kubectl apply -k OVERLAY -l 'app.kubernetes.io/component!=warm'":
            (KUBERNETES, "test_commands_of_the_pages"),
        "kubectl -n hearth rollout status deployment/hearth-worker --timeout 15m":
            (KUBERNETES, "test_commands_of_the_pages"),
        "kubectl apply -k OVERLAY -l app.kubernetes.io/component=warm":
            (KUBERNETES, "test_commands_of_the_pages"),
        "kubectl -n hearth wait job -l app.kubernetes.io/component=warm --for=condition=Complete "
        "--timeout 30m": (KUBERNETES, "test_commands_of_the_pages"),
    },
    OBSERVABILITY: {
        "kubectl -n hearth port-forward hearth-store-0 9080":
            (KUBERNETES, "test_commands_of_the_pages"),
        "promtool test rules tests/deploy/alerts_test.yml":
            ("tests/deploy/monitoring_test.py", '["test", "rules", RULE_TESTS]'),
    },
}


class Page:
    """The commands of a page, and which of them were run."""

    def __init__(self, path):
        self._text = path.read_text()
        self._left = set(self._commands())

    def _commands(self):
        for _, block in BLOCK.findall(self._text):
            for line in block.splitlines():
                yield re.sub(r"\s+#.*", "", line).strip()
        yield from re.findall(r"`([^`\n]+)`", BLOCK.sub("", self._text))
        table = self._text.partition("\n## hearthctl\n")[2]  # its first column has no program
        for cell in re.findall(r"^\| (`.*?) \|", table, re.M):
            yield from ("hearthctl " + words for words in re.findall(r"`([^`]+)`", cell))

    def left(self):
        return sorted(command for command in self._left if COMMAND.match(command))

    def command(self, beginning):
        """Returns the one command with this beginning."""
        found = [command for command in self._left if command.startswith(beginning)]
        assert len(found) == 1, f"{beginning}: {found}"
        self._left -= set(found)
        return found[0]

    def block(self, kind):
        return next(text for name, text in BLOCK.findall(self._text) if name == kind)

    def check_elsewhere(self, listed):
        """Returns errors in the list of commands that run elsewhere; they count as run."""
        errors = [f"not on the page: {command}" for command in listed if command not in self._left]
        errors += [f"{place[0]} does not run {command}" for command, place in listed.items()
                   if isinstance(place, tuple) and place[1] not in (ROOT / place[0]).read_text()]
        self._left -= set(listed)
        return errors


class OperatorPages(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="hearth-pages-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.here = {  # {text on the pages: replacement}
            "/var/lib/hearth": f"{folder.name}/data",
            "/backup/hearth": f"{folder.name}/backup",
            "127.0.0.1:7080": f"unix:{folder.name}/store",
            "127.0.0.1:7070": f"unix:{folder.name}/worker",
            "127.0.0.1:7071": f"unix:{folder.name}/worker-2"}
        self.tree = self.folder / "tree"
        (self.tree / "build").mkdir(parents=True)
        (self.tree / "build" / "bin").symlink_to(BIN_DIR)
        for name in ("models", "LICENSE"):
            (self.tree / name).symlink_to(ROOT / name)
        store, worker = self.here["127.0.0.1:7080"], self.here["127.0.0.1:7070"]
        self.environment = {
            **os.environ, "PATH": f"{BIN_DIR}:{os.environ['PATH']}",
            "HEARTH_STORE_LISTEN": store, "HEARTH_WORKER_STORE": store, "HEARTHCTL_STORE": store,
            "HEARTH_WORKER_LISTEN": worker, "HEARTHCTL_WORKER": worker}

    def replaced(self, command):
        for said, here in self.here.items():
            command = command.replace(said, here)
        return command

    def run_command(self, command):
        """Runs a command line; returns what it printed on both streams."""
        done = subprocess.run(["bash", "-eo", "pipefail", "-c", self.replaced(command) + " 2>&1"],
                              cwd=self.tree, env=self.environment, stdout=subprocess.PIPE,
                              stdin=subprocess.DEVNULL, text=True, timeout=LONG_S, check=False)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}")
        return done.stdout

    def start(self, command, *flags):
        """Starts a server; returns it as log_waits takes processes."""
        log = self.folder / f"log{len(list(self.folder.iterdir()))}"
        with open(log, "wb") as out:
            popen = subprocess.Popen([*shlex.split(self.replaced(command)), *flags],
                                     cwd=self.tree, env=self.environment, stdout=out, stderr=out)
        self.addCleanup(popen.wait)
        self.addCleanup(popen.kill)
        return types.SimpleNamespace(popen=popen, log_path=log, log_tail=log.read_text)

    def stop(self, server):
        server.popen.send_signal(signal.SIGTERM)
        self.assertEqual(server.popen.wait(LONG_S), 0, server.log_tail()[-2000:])

    def wait_until_ready(self, *workers):
        for worker in workers:
            self.run_command(f"hearthctl generate --worker {worker} --wait 4m --prompt a "
                             "--max-new-tokens 1 --wait-published")

    def restore_points(self):
        return [json.loads(line)["id"] for line in
                self.run_command("hearthctl ls --json").splitlines() if '"id"' in line]

    def check_all_run(self, page, path):
        self.assertEqual(page.check_elsewhere(ELSEWHERE[path]), [])
        self.assertEqual(page.left(), [], "run by no test")

    def test_commands_of_deploy_page(self):
        page = Page(DEPLOY)
        store_command = page.command("build/bin/hearth-store ")
        store = self.start(store_command)
        self.worker = self.start(page.command("build/bin/hearth-worker "))
        said = self.run_command(page.command("build/bin/hearthctl generate ") + " --wait 2m")
        self.assertIn("computed all 4 prompt tokens", said)
        self.check_texts(page)
        self.check_points(page)
        self.check_backup(page, store, store_command)
        self.stop(self.worker)
        self.check_all_run(page, DEPLOY)

    def check_texts(self, page):
        """Manual pages and completion."""
        for program in ("hearth-store --man", "hearthctl man"):
            command = page.command(program)
            self.assertIn("| man -l -", command)
            if not shutil.which("man"):
                command = command.replace("man -l -", "cat")
            self.assertIn("NAME", self.run_command(command))
        said = self.run_command(page.command("source <(") + "; complete -p hearthctl")
        self.assertIn("hearthctl", said)

    def check_points(self, page):
        """Commands about single restore points."""
        self.run_command("hearthctl generate --prompt-file LICENSE --max-new-tokens 1 "
                         "--wait-published")
        (point, *_) = self.restore_points()
        self.assertEqual(page.command("hearthctl pin ID"), "hearthctl pin ID")
        self.run_command(f"hearthctl pin {point}")
        export = page.command("hearthctl export ID --out FILE").replace("ID", point)
        for name in ("one", "two"):
            self.run_command(export.replace("FILE", name))
        self.run_command(f"hearthctl unpin {point}")
        self.run_command(page.command("hearthctl drop --all"))
        self.assertEqual(self.restore_points(), [])
        self.run_command(page.command("hearthctl import FILE").replace("FILE", "one"))
        self.assertEqual(self.restore_points(), [point])
        self.run_command(page.command("hearthctl diff FILE FILE").replace("FILE FILE", "one two"))

    def check_backup(self, page, store, store_command):
        self.stop(store)
        data, backup = (self.here[name] for name in ("/var/lib/hearth", "/backup/hearth"))
        self.run_command(page.command("hearthctl backup "))
        store = self.start(store_command, "--backup-dir", backup)
        self.run_command("hearthctl stats --wait 1m")
        self.run_command(page.command("kill -USR1 PID").replace("PID", str(store.popen.pid)))
        wait_for_log(store, lambda text: "backed up" in text)
        self.stop(store)
        shutil.rmtree(data)
        self.run_command(page.command("hearthctl restore "))
        self.run_command(page.command("hearthctl verify "))
        store = self.start(store_command)
        self.run_command("hearthctl stats --wait 1m")
        # If the worker has noticed the restarts, it must reach the store again.
        wait_for_log(self.worker, lambda text: text.rfind("store reachable") >= text.rfind(
            "store unreachable"))
        (self.tree / "prompts.yaml").write_text(page.block("yaml"))
        (self.tree / "handbook.txt").write_text((ROOT / "LICENSE").read_text()[:5000])
        warm = page.command("hearthctl warm ")
        self.run_command(warm)
        self.assertIn(", computed 0 tokens", self.run_command(warm))
        self.stop(store)

    def test_commands_of_observability_page(self):
        page = Page(OBSERVABILITY)
        self.start("hearth-store --data-dir /var/lib/hearth")
        self.run_command("hearthctl stats --wait 1m")  # the workers reach the store at once
        worker = self.start("hearth-worker --model models/gemma-3-270m.gguf")
        self.start("hearth-worker --model models/gemma-3-270m.gguf --listen 127.0.0.1:7071")
        self.wait_until_ready("127.0.0.1:7070", "127.0.0.1:7071")
        shown = re.search(r"(?ms)^hearthctl doctor .*?\n(.*?)```", OBSERVABILITY.read_text())[1]
        said = self.run_command(page.command("hearthctl doctor --store 127"))
        self.assertTrue(shown.startswith("ok "))
        for line in shown.splitlines():
            self.assertRegex(said, rf"(?m)^ok +{line.split()[1]} ")
        (self.tree / "F").write_text("The first prompt of this test. " * 40)
        self.run_command("hearthctl generate --prompt-file F --max-new-tokens 1 --wait-published")
        for words in ("explain", "stats", "ls", "model"):
            self.run_command(page.command("hearthctl " + words))
        self.run_command(page.command("hearthctl verify DIR").replace("DIR", "/var/lib/hearth"))
        self.run_command("hearthctl ls --tenant '*'")
        self.check_watch(page)
        trace = "0af7651916cd43dd8448eb211c80319c"
        said = self.run_command(f"TRACEPARENT=00-{trace}-53995c3f42cd8ad8-01 " +
                                page.command("hearthctl generate --json") +
                                " --prompt a --max-new-tokens 1")
        self.assertEqual(page.command("hearthctl generate"), "hearthctl generate")  # the same
        self.assertIn('"request_id"', said)
        wait_for_log(worker, lambda text: f"trace_id={trace}" in text)
        self.assertEqual(page.command("hearthctl doctor --store A"),
                         "hearthctl doctor --store A --worker B,C")  # run above
        self.check_all_run(page, OBSERVABILITY)

    def check_watch(self, page):
        """A watch that continues after a break prints the changes since."""
        watch = page.command("hearthctl watch") + " --once "
        last = json.loads(self.run_command(watch + "--json").splitlines()[-1])
        self.run_command("hearthctl generate --prompt-file LICENSE --max-new-tokens 1 "
                         "--wait-published")
        flags = re.search(r"`(--json --since N --incarnation I)`", OBSERVABILITY.read_text())[1]
        flags = flags.replace("N", str(last["sequence"])).replace("I", str(last["incarnation"]))
        events = [json.loads(line) for line in self.run_command(watch + flags).splitlines()]
        self.assertTrue(events[0]["resumed"], events[0])
        self.assertIn(last["sequence"] + 1, [event["sequence"] for event in events])


if __name__ == "__main__":
    BIN_DIR = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
