"""Waits for text in a process's log, with inotify on the file and a pidfd of the process."""

import ctypes
import os
import select
import time

LONG_S = 120  # time limit of a wait; only a hanging process reaches it
MODIFIED = 0x2  # IN_MODIFY


class Changes:
    """Notices changes of one file from now on (inotify)."""

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
        """Waits until the file has changed or the process has ended."""
        try:
            process = os.pidfd_open(popen.pid)
        except ProcessLookupError:  # the process has ended and was reaped
            return
        try:
            if self._notices in select.select([self._notices, process], [], [], timeout_s)[0]:
                os.read(self._notices, 1 << 16)
        finally:
            os.close(process)


def complete_lines(text):
    """Returns the lines of a log without the line that is being written."""
    return text[:text.rfind("\n") + 1].splitlines()


def wait_for_log(process, found, timeout_s=LONG_S):
    """Waits until `found(text of the log)` is true; returns its result. Fails if the process ends
    or the time is over."""
    end = time.monotonic() + timeout_s
    with Changes(process.log_path) as changes:
        while True:
            # If the process has ended, the log is complete.
            has_ended = process.popen.poll() is not None
            result = found(process.log_path.read_text())
            if result:
                return result
            if has_ended or time.monotonic() > end:
                why = "it ended" if has_ended else f"{timeout_s} s went by"
                raise AssertionError(f"it was to log something, and {why}:\n{process.log_tail()}")
            changes.wait(process.popen, max(0.0, end - time.monotonic()))
