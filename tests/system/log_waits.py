"""Waits for what a process writes to its log: until the file changes, or the process ends."""

import ctypes
import os
import select
import time

LONG_S = 120  # only a hang takes it
MODIFIED = 0x2  # IN_MODIFY


class Changes:
    """Of one file, from here on."""

    def __init__(self, path):
        libc = ctypes.CDLL(None, use_errno=True)
        self._notices = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._notices < 0 or libc.inotify_add_watch(
                self._notices, os.fsencode(path), MODIFIED) < 0:
            raise OSError(ctypes.get_errno(), f"cannot watch {path}")

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        os.close(self._notices)

    def wait(self, popen, timeout_s):
        """Until it changed, or its process ended."""
        try:
            process = os.pidfd_open(popen.pid)
        except ProcessLookupError:  # it ended, and somebody asked
            return
        try:
            if self._notices in select.select([self._notices, process], [], [], timeout_s)[0]:
                os.read(self._notices, 1 << 16)
        finally:
            os.close(process)


def wait_for_log(process, found, timeout_s=LONG_S):
    """The result of `found` for the log's text, once there is one."""
    end = time.monotonic() + timeout_s
    with Changes(process.log_path) as changes:
        while True:
            has_ended = process.popen.poll() is not None  # then all of it is there
            result = found(process.log_path.read_text())
            if result:
                return result
            if has_ended or time.monotonic() > end:
                why = "it ended" if has_ended else f"{timeout_s} s went by"
                raise AssertionError(f"it was to log something, and {why}:\n{process.log_tail()}")
            changes.wait(process.popen, max(0.0, end - time.monotonic()))
