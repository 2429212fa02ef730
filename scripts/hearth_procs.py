"""Starts and ends Hearth's processes on loopback, for the demo, benchmarks and system tests.

    with Cluster(bin_dir, work_dir) as cluster:
        store = cluster.store(data_dir)
        worker = cluster.worker(model_dir, store.address)
        result = cluster.generate(worker.address, ids, max_new_tokens=4)

Each process listens on a free port that the system picks. The end of the block ends the processes.
"""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

START_TIMEOUT_S = 180  # long enough for a cold page cache and a first digest of the weights
STOP_TIMEOUT_S = 180


class ProcessFailed(RuntimeError):
    """A process ended or did not become ready; the text ends with the tail of its log."""


def make_certificate(folder, name):
    """Makes a self-signed certificate for 127.0.0.1; returns the files [certificate, key]."""
    files = [pathlib.Path(folder) / f"{name}.pem", pathlib.Path(folder) / f"{name}.key"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-out", files[0], "-keyout",
                    files[1]], check=True, capture_output=True)
    return files


class Process:
    """A running server. `address`: its gRPC address. `under`: a command that executes the server,
    such as nsenter with its arguments. `pages`: HTTP listeners to open, "metrics" or "http", or
    {name: HOST:PORT}."""

    def __init__(self, argv, name, work_dir, listen="127.0.0.1:0", under=(), pages=()):
        self.name = name
        self.argv = [str(a) for a in (*under, *argv)]
        self.address_file = pathlib.Path(work_dir) / f"{name}.address"
        self.log_path = pathlib.Path(work_dir) / f"{name}.log"
        self._page_files = {page: pathlib.Path(work_dir) / f"{name}.{page}" for page in pages}
        self.address_file.unlink(missing_ok=True)
        for page, file in self._page_files.items():
            address = pages[page] if isinstance(pages, dict) else "127.0.0.1:0"
            self.argv += [f"--{page}-listen", address, f"--{page}-address-file", str(file)]
        self.argv += self._address_flags(listen)
        with open(self.log_path, "ab") as log:
            self.popen = subprocess.Popen(self.argv, stdout=log, stderr=log,
                                          stdin=subprocess.DEVNULL)
        try:
            self.address = self._wait_ready()
        # Also on Ctrl-C: the process is not yet in a Cluster, which would end it.
        except BaseException:
            self.kill()
            raise

    def _address_flags(self, listen):
        return ["--listen", listen, "--address-file", str(self.address_file)]

    def url(self, page):
        """Returns the URL of an HTTP listener, without a slash at the end."""
        return "http://" + self._page_files[page].read_text().strip()

    def status_field(self, name):
        """Returns a number from /proc/PID/status; memory is in KiB. VmRSS: resident now; VmHWM: its
        peak."""
        status = pathlib.Path(f"/proc/{self.popen.pid}/status").read_text()
        return int(re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE).group(1))

    def log_tail(self, lines=12):
        text = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join("    " + line for line in text[-lines:])

    def _ready_address(self):
        """Returns the address once the server is ready, else None."""
        return self.address_file.read_text().strip() if self.address_file.exists() else None

    def _wait_ready(self):
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if address := self._ready_address():
                return address
            if self.popen.poll() is not None:
                raise ProcessFailed(
                    f"{self.name} ended with {self.popen.returncode} before it was ready:\n"
                    f"{self.log_tail()}")
            time.sleep(0.005)
        self.kill()
        raise ProcessFailed(f"{self.name} was not ready in {START_TIMEOUT_S} s:\n{self.log_tail()}")

    def stop(self):
        """Sends SIGTERM and waits for the drain. Returns the exit code."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            try:
                self.popen.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.popen.returncode

    def kill(self):
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()


class Cluster:
    """Starts stores and workers, runs hearthctl, and ends the processes at the end of its block."""

    def __init__(self, bin_dir, work_dir):
        self.bin_dir = pathlib.Path(bin_dir)
        self.work_dir = pathlib.Path(work_dir)
        self.work_dir.mkdir(parents=True, exist_ok=True)
        self.processes = []
        self._counts = {}

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for process in reversed(self.processes):
            process.stop()

    def _start(self, kind, argv, **options):
        self._counts[kind] = self._counts.get(kind, 0) + 1
        process = Process([self.bin_dir / f"hearth-{kind}"] + argv, f"{kind}{self._counts[kind]}",
                          self.work_dir, **options)
        self.processes.append(process)
        return process

    def store(self, data_dir, *flags, **options):
        """Starts a store. `options`: arguments of Process. To replace a store at its address, pass
        `listen=` with the address of the earlier store."""
        return self._start("store", ["--data-dir", data_dir, *flags], **options)

    def worker(self, model_dir, store_address, *flags, **options):
        return self._start("worker", ["--model", model_dir, "--store", store_address, *flags],
                           **options)

    def ctl(self, *args, check=True):
        """Runs hearthctl with --json; returns the last JSON object it printed."""
        done = subprocess.run([str(self.bin_dir / "hearthctl"), *map(str, args), "--json"],
                              capture_output=True, text=True, env=os.environ, check=False)
        if done.returncode != 0 and check:
            raise ProcessFailed(f"hearthctl {args[0]} ended with {done.returncode}: "
                                f"{done.stderr.strip() or done.stdout.strip()}")
        objects = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return objects[-1] if objects else {}

    def generate(self, address, token_ids, *flags, max_new_tokens=1):
        # --wait retries: on a busy machine, the first connect can fail.
        return self.ctl("generate", "--worker", address, "--wait", "120", "--token-ids",
                        ",".join(map(str, token_ids)), "--max-new-tokens", max_new_tokens,
                        "--ignore-eos", *flags)
