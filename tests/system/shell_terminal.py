"""A bash in a terminal of its own: what is typed there, and what it shows."""

import codecs
import os
import pty
import re
import secrets
import select
import signal
import termios
import time

import psutil

WAIT_S = 240  # only a hang, or a machine with much else to do, takes it
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[=>])|\a")
ERASING = re.compile(r"\r\x1b\[(?:2K|0?[JK])")  # whatever the line held is gone


def rendered(text):
    """The lines that a reader would see of `text`."""
    lines = []
    for line in ERASING.sub("\r\f", text).replace("\r\n", "\n").split("\n"):
        line = ESCAPES.sub("", line[line.rfind("\f") + 1:])
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part):]
        lines.append(shown.rstrip())
    return lines


class ShellTerminal:
    """Ends the shell and all that it started when its block ends."""

    def __init__(self, folder, variables):
        self._mark = secrets.token_hex(8)
        self._unread = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        environment = {**os.environ, **variables, "TERM": "xterm", "LC_ALL": "C.UTF-8",
                       "HISTFILE": "", "PS1": self._mark + r":$?> ", "PS2": self._mark + ":more> "}
        self._pid, self._file = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            # What a shell starts in the background ignores it, and hands that down.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], environment)
        termios.tcsetwinsize(self._file, (40, 120))
        self.finish()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        shell = psutil.Process(self._pid)
        started = shell.children(recursive=True)
        for process in (*started, shell):
            process.kill()
        os.close(self._file)
        os.waitpid(self._pid, 0)
        psutil.wait_procs(started)

    def type(self, text):
        os.write(self._file, text.encode())

    def wait_for(self, pattern):
        """The text up to the next match of `pattern`, and the match."""
        end = time.monotonic() + WAIT_S
        while True:
            found = re.search(pattern, self._unread)
            if found:
                before, self._unread = self._unread[:found.start()], self._unread[found.end():]
                return before, found
            left_s = end - time.monotonic()
            if left_s <= 0 or not select.select([self._file], [], [], left_s)[0]:
                raise AssertionError(f"no {pattern!r} in {WAIT_S} s; there is:\n{self._unread}")
            self._unread += self._decoder.decode(os.read(self._file, 1 << 16))

    def finish(self):
        """What was shown up to the next prompt, and the exit status that it tells."""
        before, found = self.wait_for(self._mark + r":(\w+)> ")
        return before, found.group(1)
