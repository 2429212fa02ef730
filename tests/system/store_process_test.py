"""A store process without workers: backups, recovery, signals, its folder in use, a missing GPU,
and a unix socket.

Run as: python store_process_test.py BIN_DIR STORE_CLIENT [unittest arguments].
"""

import json
import os
import signal
import subprocess

import system_support
from http2_peer import connect
from log_waits import complete_lines, wait_for_log
from system_support import LONG_S, ROOT, ProcessFailed, SystemTest

SNAPSHOT = ROOT / "tests" / "proto" / "golden" / "tiny.snapshot"


class StoreTest(SystemTest):

    def setUp(self):
        super().setUp()
        self.data, self.backups = self.folder / "data", self.folder / "backups"

    def store(self, data, *flags):
        return self.cluster.store(data, "--host-bytes", "1MiB", "--disk-bytes", "10MiB",
                                  "--log-format", "json", *flags)

    def filled_store(self, *flags):
        store = self.store(self.data, *flags)
        self.cluster.ctl("import", SNAPSHOT, "--store", store.address)
        return store

    def events(self, store, name):
        lines = [json.loads(line) for line in complete_lines(store.log_path.read_text())]
        return [line for line in lines if line["event"] == name]

    def wait_for(self, store, name, count=1):
        """Waits until the store has logged `count` events of this name; returns the last one."""
        wait_for_log(store, lambda unused: len(self.events(store, name)) >= count)
        return self.events(store, name)[-1]

    def assert_serves_the_snapshot(self, data):
        store = self.store(data)
        fetched = subprocess.run([system_support.STORE_CLIENT, store.address, "fetch"], text=True,
                                 capture_output=True, check=True)
        self.assertEqual(fetched.stdout.strip(), "20")
        point = self.cluster.ctl("ls", "--store", store.address)["id"]
        out = self.folder / "exported"
        self.cluster.ctl("export", point, "--out", out, "--store", store.address)
        self.assertEqual(out.read_bytes(), SNAPSHOT.read_bytes())

    def refused(self, *args):
        with self.assertRaises(ProcessFailed) as failed:
            self.cluster.ctl(*args)
        return str(failed.exception)


class Backup(StoreTest):

    def test_stopped_store_backup_can_be_restored(self):
        self.assertEqual(self.filled_store().stop(), 0)
        first = self.cluster.ctl("backup", "--data-dir", self.data, "--to", self.backups)
        self.assertEqual((first["id"], first["has_secret"]), (1, True))
        second = self.cluster.ctl("backup", "--data-dir", self.data, "--to", self.backups)
        self.assertEqual(second["id"], 2)
        restored = self.folder / "restored"
        report = self.cluster.ctl("restore", "--from", self.backups, "--data-dir", restored)
        self.assertEqual((report["id"], report["restore_points"], report["problem_count"]),
                         (2, 1, 0))
        self.assert_serves_the_snapshot(restored)
        self.assertIn("is not empty",
                      self.refused("restore", "--from", self.backups, "--data-dir", restored))

    def test_sigusr1_backs_up_running_store(self):
        store = self.filled_store("--backup-dir", self.backups)
        store.popen.send_signal(signal.SIGUSR1)
        self.assertEqual(self.wait_for(store, "backed up")["id"], 1)
        self.cluster.ctl("drop", "--all", "--store", store.address)
        store.popen.send_signal(signal.SIGUSR1)
        self.assertEqual(self.wait_for(store, "backed up", 2)["id"], 2)
        empty, restored = self.folder / "empty", self.folder / "restored"
        report = self.cluster.ctl("restore", "--from", self.backups, "--data-dir", empty)
        self.assertEqual(report["restore_points"], 0)
        self.cluster.ctl("restore", "--from", self.backups, "--data-dir", restored, "--id", 1)
        self.assert_serves_the_snapshot(restored)

    def test_sigusr1_without_folder_is_logged(self):
        store = self.filled_store()
        store.popen.send_signal(signal.SIGUSR1)
        self.assertIn("--backup-dir", self.wait_for(store, "no backup")["reason"])
        self.assertEqual(store.stop(), 0)

    def test_damaged_backup_is_not_restored(self):
        self.assertEqual(self.filled_store().stop(), 0)
        self.cluster.ctl("backup", "--data-dir", self.data, "--to", self.backups)
        files = [path for path in (self.backups / "private").rglob("*") if path.is_file()]
        largest = max(files, key=lambda path: path.stat().st_size)
        damaged = bytearray(largest.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        largest.write_bytes(damaged)
        restored = self.folder / "restored"
        self.assertIn("is damaged",
                      self.refused("restore", "--from", self.backups, "--data-dir", restored))
        self.assertFalse(restored.exists())


class Damaged(StoreTest):

    def test_store_without_manifest_reports_loss(self):
        store = self.filled_store()
        store.popen.kill()
        store.popen.wait(LONG_S)
        for manifest in (self.data / "db").glob("MANIFEST-*"):
            manifest.unlink()
        again = self.store(self.data)
        counters = self.cluster.ctl("stats", "--store", again.address)["counters"]
        self.assertEqual(counters["recovery_lost_restore_points"], 1)
        self.assertTrue((self.data / "db.damaged").is_dir())


class Signals(StoreTest):

    def test_signals_reload_or_drain(self):
        identities = self.folder / "identities.json"
        identities.write_text('{"identities": []}')
        store = self.store(self.data, "--identities-file", identities)
        store.popen.send_signal(signal.SIGUSR2)
        store.popen.send_signal(signal.SIGHUP)
        self.wait_for(store, "identities reloaded")
        identities.write_text("nonsense")
        self.wait_for(store, "reloading the identities failed; keeping the previous ones")
        store.popen.send_signal(signal.SIGHUP)
        self.wait_for(store, "reloading the identities failed; keeping the previous ones", 2)
        store.popen.send_signal(signal.SIGQUIT)
        self.assertEqual(store.popen.wait(LONG_S), 0)
        self.assertEqual(self.events(store, "draining")[0]["signal"], "SIGQUIT")


class FolderInUse(StoreTest):

    def test_verify_names_process_using_folder(self):
        store = self.filled_store()
        pid = str(store.popen.pid)
        verified = self.cluster.ctl("verify", self.data)
        self.assertEqual((verified["ok"], verified["open_in_process"]), (True, store.popen.pid))
        backup = self.refused("backup", "--data-dir", self.data, "--to", self.backups)
        self.assertIn(pid, backup)
        self.assertIn("kill -USR1", backup)
        self.assertEqual(self.cluster.ctl("stats", "--store", store.address)["restore_points"], 1)
        self.assertEqual(store.stop(), 0)
        self.assertNotIn("open_in_process", self.cluster.ctl("verify", self.data))


class GpuTier(StoreTest):

    def test_missing_device_stops_start(self):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self.addCleanup(os.environ.pop, "CUDA_VISIBLE_DEVICES")
        said = self.fails_to_start("hearth-store", "--listen", "127.0.0.1:0", "--data-dir", "",
                                   "--gpu-bytes", "1GiB")
        self.assertRegex(said, "gpu-bytes: .*, or start without --gpu-bytes")


class LocalSocket(StoreTest):

    def test_unix_socket_evicts_silent_connections(self):
        path = self.folder / "socket"
        store = self.cluster.store("", "--host-bytes", "1MiB", "--max-connections", 20,
                                   listen=f"unix:{path}")
        for _ in range(60):
            self.addCleanup(connect(store.address).close)
        self.cluster.ctl("stats", "--store", store.address)
        wait_for_log(store, lambda text: "connection refused" in text)
        self.assertEqual(store.stop(), 0, store.log_tail())
        self.assertFalse(path.exists())


if __name__ == "__main__":
    system_support.main("STORE_CLIENT")
