"""Every flag and variable in deploy/ exists in the built binaries."""
import pathlib
import re
import subprocess
import tempfile
import unittest

import yaml

import manifests as m


def unknown_variables(variables):
    """Returns the environment variables that match no flag of their program."""
    unknown = []
    for name in sorted(variables):
        answer = m.flag_of(name)
        if answer is None or answer[1] not in m.flags_in(m.help_text(answer[0])):
            unknown.append(name)
    return unknown


class FlagsTest(unittest.TestCase):

    def test_kubernetes_flags_exist(self):
        for folder in m.OVERLAYS:
            for config in m.of_kind(m.kustomize(folder), "ConfigMap"):
                names = [n for n in config["data"] if n.startswith("HEARTH_")]
                self.assertEqual(unknown_variables(names), [])

    def test_compose_flags_exist(self):
        compose = yaml.safe_load((m.ROOT / "docker-compose.yml").read_text())
        for service in compose["services"].values():
            names = [n for n in service.get("environment", {}) if n.startswith("HEARTH_")]
            self.assertEqual(unknown_variables(names), [])

    def test_dockerfile_flags_exist(self):
        for path in (m.ROOT / "deploy/docker").glob("*.Dockerfile"):
            names = set(re.findall(r"\b(HEARTH_[A-Z_]+)=", path.read_text()))
            self.assertEqual(unknown_variables(names), [], path.name)

    def test_warm_up_job_flags_exist(self):
        known = m.flags_in(m.help_text("hearthctl", "warm"))
        for name in ("Job", "CronJob"):
            (owner,) = m.of_kind(m.kustomize(m.CPU), name)
            args = m.pod_template(owner)["spec"]["containers"][0]["args"]
            self.assertEqual(args[0], "warm")
            for arg in args:
                if arg.startswith("--"):
                    self.assertIn(arg[2:], known)

    def warm(self, path):
        """Runs `hearthctl warm` with a list of prompts, without a worker; returns its error."""
        run = subprocess.run([str(m.BIN / "hearthctl"), "warm", "--file", str(path), "--worker",
                              "unix:" + str(pathlib.Path(path).parent / "nobody")],
                             capture_output=True, text=True, timeout=240)
        self.assertNotEqual(run.returncode, 0)
        return run.stderr

    def test_shipped_prompts_are_valid(self):
        self.assertIn("no worker at", self.warm(m.BASE / "prompts.yaml"))
        with tempfile.TemporaryDirectory() as folder:
            broken = pathlib.Path(folder) / "prompts.yaml"
            broken.write_text((m.BASE / "prompts.yaml").read_text().replace("messages", "message"))
            self.assertIn("unknown key", self.warm(broken))

    def test_invented_flag_is_reported(self):
        self.assertEqual(unknown_variables(["HEARTH_STORE_LISTEN", "HEARTH_STORE_LISTENS",
                                            "HEARTH_WORKER_HOST_BYTES", "HEARTH_OTHER"]),
                         ["HEARTH_OTHER", "HEARTH_STORE_LISTENS", "HEARTH_WORKER_HOST_BYTES"])


if __name__ == "__main__":
    unittest.main()
