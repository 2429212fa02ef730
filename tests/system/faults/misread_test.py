"""A real store whose disk reads return wrong bytes or fail for some seconds, while the bytes on
disk are right.

No acknowledged restore point is lost, during use or at a start, and the store soon publishes again.
Permanent damage is quarantined and logged. tests/support/faulty_reads.cc makes the faults.

Run as: python misread_test.py BIN_DIR KIT_CLIENT FAULTY_READS [unittest arguments].
"""

import mmap
import pathlib
import random
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import system_support  # noqa: E402  (path set above)
from log_waits import wait_for_log  # noqa: E402
from system_support import ProcessFailed, SystemTest  # noqa: E402

FAULTY_READS = None
# Time limits; only a store that never recovers reaches them. After a failed read, the store hides
# the object for at most 16 s. An object is quarantined after five equal wrong reads, which take
# 15 s.
PUBLISH_AGAIN_S_MAX = 120.0
SERVED_AGAIN_S_MAX = 180.0
QUARANTINED_S_MAX = 180.0
PAUSE_S = 0.02
SEED = 52


class Faults:
    """Selects the reads and allocations that faulty_reads.cc makes fail, through a file that the
    process maps. `under`: the command that starts the process."""

    def __init__(self, path, library):
        path.write_bytes(bytes(16))
        self.under = ("env", f"LD_PRELOAD={library}", f"HEARTH_FAULTY_READS={path}")
        with open(path, "r+b") as file:
            self._numbers = mmap.mmap(file.fileno(), 16)

    def set(self, flipped_per_mille=0, failed_per_mille=0):
        self._numbers[:8] = struct.pack("=II", flipped_per_mille, failed_per_mille)

    @property
    def struck(self):
        return struct.unpack("=I", self._numbers[8:12])[0]

    def refuse_allocations(self, of_bytes):
        self._numbers[12:] = struct.pack("=I", of_bytes)


class Client:
    """A kit_client process (kit_client_main.cc): one answer for each command."""

    def __init__(self, address):
        self._popen = subprocess.Popen([system_support.STORE_CLIENT, address], text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, what, number):
        self._popen.stdin.write(f"{what} {number}\n")
        self._popen.stdin.flush()
        answer = self._popen.stdout.readline().strip()
        assert answer, f"the client ended at {what} {number}"
        return answer

    def close(self):
        self._popen.stdin.close()
        self._popen.stdout.close()
        self._popen.wait()


class Misread(SystemTest):

    def setUp(self):
        super().setUp()
        self.data = self.folder / "data"
        self.faults = Faults(self.folder / "faults", FAULTY_READS)
        self.random = random.Random(SEED)
        self.acknowledged = []
        self.next = 1

    def start(self):
        self.store = self.cluster.store(
            self.data, "--host-bytes", "0", "--disk-bytes", "1GiB", "--scrub-rate", "64MiB",
            "--scrub-period", "2s", under=self.faults.under)
        self.client = Client(self.store.address)
        self.addCleanup(self.client.close)

    def publish(self):
        """Publishes a new restore point; returns whether it was acknowledged."""
        number, self.next = self.next, self.next + 1
        answer = self.client.ask("publish", number)
        if answer == "durable":
            self.acknowledged.append(number)
        return answer == "durable"

    def fetch(self, number):
        answer = self.client.ask("fetch", number)
        self.assertNotEqual(answer, "wrong", number)
        return answer

    def use_for(self, seconds):
        """Publishes, and fetches acknowledged points; returns the kinds of answers."""
        end = time.monotonic() + seconds
        answers = set()
        while time.monotonic() < end:
            self.publish()
            for number in self.random.choices(self.acknowledged, k=10):
                answers.add(self.fetch(number).split(":")[0])
            threading.Event().wait(PAUSE_S)  # this pause allows about 100 publishes in total
        return answers

    def publish_again(self):
        """Publishes until a publish is acknowledged; fails after PUBLISH_AGAIN_S_MAX."""
        begin = time.monotonic()
        while not self.publish():
            self.assertLess(time.monotonic() - begin, PUBLISH_AGAIN_S_MAX, self.store.log_tail())
        print(f"publishes again after {time.monotonic() - begin:.1f} s, "
              f"{self.faults.struck} reads were struck so far")

    def all_are_served(self, numbers, also=None):
        """Fetches until each restore point was served. `also`: a damaged restore point, which must
        not be served."""
        end = time.monotonic() + SERVED_AGAIN_S_MAX
        left = list(numbers)
        while left:
            answers = {number: self.fetch(number) for number in left}
            left = [number for number in left if answers[number] != "right"]
            if also is not None:
                self.assertNotEqual(self.fetch(also), "right")
            self.assertLess(time.monotonic(), end, {n: answers[n] for n in left})
            threading.Event().wait(PAUSE_S)

    def counter(self, name):
        return self.cluster.ctl("stats", "--store", self.store.address)["counters"][name]

    def rot(self, number):
        """Flips a bit on disk in a slice that only this restore point has."""
        own = bytes.fromhex(self.client.ask("slice", number))
        places = 0
        for path in [*(self.data / "db").glob("*.sst"), *(self.data / "db").glob("*.log")]:
            at = path.read_bytes().find(own)
            if at < 0:
                continue
            with open(path, "r+b") as file:
                file.seek(at + 8)
                file.write(bytes([own[8] ^ 0x10]))
            places += 1
        self.assertEqual(places, 1)

    def test_read_errors_lose_nothing(self):
        self.start()
        for _ in range(20):
            self.assertTrue(self.publish())
        for seconds, faults in ((8, {"flipped_per_mille": 20}), (2, {"flipped_per_mille": 1000}),
                                (8, {"failed_per_mille": 50})):
            before = self.faults.struck
            self.faults.set(**faults)
            answers = self.use_for(seconds)
            self.faults.set()
            self.assertGreater(self.faults.struck, before)
            self.assertNotIn("error NOT_FOUND", answers)
            self.publish_again()
        damaged = 2  # an old restore point, whose slices are in a table file of RocksDB
        self.rot(damaged)
        self.all_are_served([n for n in self.acknowledged if n != damaged], also=damaged)
        end = time.monotonic() + QUARANTINED_S_MAX
        while self.fetch(damaged) != "miss" or self.counter("quarantined_objects") == 0:
            self.assertLess(time.monotonic(), end, self.store.log_tail())
            threading.Event().wait(PAUSE_S)
        self.assertEqual(self.counter("quarantined_objects"), 1)
        wait_for_log(self.store,
                     lambda text: "is quarantined with all restore points that need it" in text)
        self.assertEqual(self.fetch(damaged), "miss")
        self.assertEqual(self.client.ask("publish", damaged), "durable")
        self.all_are_served(self.acknowledged)
        print(f"{len(self.acknowledged)} restore points were acknowledged, and are served")
        self.assertEqual(self.store.stop(), 0)
        self.assertEqual(self.cluster.ctl("verify", self.data)["problem_count"], 0)

    def test_start_with_read_errors_loses_nothing(self):
        self.start()
        for _ in range(20):
            self.assertTrue(self.publish())
        for faults in ({"flipped_per_mille": 20}, {"flipped_per_mille": 1000},
                       {"failed_per_mille": 50}):
            self.client.close()
            self.store.kill()
            self.faults.set(**faults)
            well = threading.Timer(2.0, self.faults.set)
            well.start()
            self.addCleanup(well.cancel)
            end = time.monotonic() + SERVED_AGAIN_S_MAX
            while True:
                try:
                    self.start()
                    break
                except ProcessFailed as failed:  # start the store again, as a supervisor would
                    self.assertRegex(str(failed), "reads differently|Input/output error")
                    self.assertLess(time.monotonic(), end, failed)
            well.join()
            for name in ("recovery_lost_restore_points", "recovery_dropped_manifests"):
                self.assertEqual(self.counter(name), 0)
            # Unread manifests are read again at the next start.
            if self.counter("recovery_unread_manifests") > 0:
                self.client.close()
                self.assertEqual(self.store.stop(), 0)
                self.start()
            self.all_are_served(self.acknowledged)
            self.publish_again()
        self.assertGreater(self.faults.struck, 0)
        self.assertFalse((self.data / "db.damaged").exists())


if __name__ == "__main__":
    FAULTY_READS = pathlib.Path(sys.argv.pop(3)).resolve()
    system_support.main("STORE_CLIENT")
