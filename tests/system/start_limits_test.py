"""Starts servers with a limit of address space (ulimit -v): a server that cannot get its memory
ends with exit code 1 and an error line; it never aborts.

Run as: python start_limits_test.py BIN_DIR WRITE_CHECKPOINT [unittest arguments].
HEARTH_LIMIT_STEPS: number of limits to try, from 100 MiB to 4 GiB.
"""

import os
import pathlib
import resource
import signal
import subprocess

import system_support
from system_support import SystemTest

MIB = 1 << 20
LEAST, MOST = 100 * MIB, 4096 * MIB
STEPS = int(os.environ.get("HEARTH_LIMIT_STEPS", "6"))
NO_LIBRARIES = 127  # exit code if the dynamic linker cannot map a library


def limits():
    """Returns STEPS memory limits from LEAST to MOST, each larger than the last by a constant
    factor."""
    return [round(LEAST * (MOST / LEAST) ** (step / (STEPS - 1))) for step in range(STEPS)]


class StartLimits(SystemTest):
    def start(self, limit, program, *flags):
        """Starts a server with this limit of address space, and stops it when it is ready. Returns
        (exit code, log)."""
        def set_limit():
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

        command = [str(pathlib.Path(system_support.BIN_DIR) / program), "--listen", "127.0.0.1:0",
                   *map(str, flags)]
        said = []
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                              preexec_fn=set_limit) as server:
            self.addCleanup(server.kill)
            for line in server.stderr:
                said.append(line)
                if " info ready " in line:
                    server.send_signal(signal.SIGTERM)
        return server.returncode, "".join(said)

    def expect_line_or_start(self, limit, program, *flags):
        code, said = self.start(limit, program, *flags)
        where = f"{program} with {limit // MIB} MiB: {code}, {said}"
        if code == NO_LIBRARIES:
            self.assertIn("error while loading shared libraries", said, where)
        elif " info ready " not in said:
            self.assertEqual(code, 1, where)
            self.assertIn(f"\n{program}: ", "\n" + said, where)
        return code

    def test_memory_error_names_host_bytes(self):
        code, said = self.start(1024 * MIB, "hearth-store", "--data-dir", "", "--host-bytes",
                                "8GiB")
        self.assertEqual(code, 1, said)
        for part in ("--host-bytes", str(9 << 30), str(1024 * MIB), "raise ulimit -v"):
            self.assertIn(part, said)

    def test_store_starts_or_reports_limit(self):
        for step, limit in enumerate(limits()):
            for host_bytes in ("4GiB", "16MiB"):
                self.expect_line_or_start(
                    limit, "hearth-store", "--data-dir", self.folder / f"data-{step}-{host_bytes}",
                    "--host-bytes", host_bytes)

    def test_worker_starts_or_reports_limit(self):
        model = self.model()
        for step, limit in enumerate(limits()):
            for store in ("none", f"embedded:{self.folder / f'data-{step}'}"):
                self.expect_line_or_start(limit, "hearth-worker", "--model", model, "--store",
                                          store, "--digest-cache", "")


if __name__ == "__main__":
    system_support.main()
