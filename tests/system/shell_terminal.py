"""A bash in a pseudo-terminal: types input and reads what is shown."""

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

WAIT_S = 240  # time limit; only a hang or a very busy machine reaches it
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[=>])|\a")
ERASING = re.compile(r"\r\x1b\[(?:2K|0?[JK])")  # erases the line


def rendered(text):
    """Returns the lines of `text` as a terminal shows them."""
    lines = []
    for line in ERASING.sub("\r\f", text).replace("\r\n", "\n").split("\n"):
        line = ESCAPES.sub("", line[line.rfind("\f") + 1:])
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part):]
        lines.append(shown.rstrip())
    return lines


class ShellTerminal:
    """A shell in a terminal. The end of its block ends the shell and all processes that it
    started."""

    def __init__(self, folder, variables):
        self._mark = secrets.token_hex(8)
        self._unread = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        environment = {**os.environ, **variables, "TERM": "xterm", "LC_ALL": "C.UTF-8",
                       "HISTFILE": "", "PS1": self._mark + r":$?> ", "PS2": self._mark + ":more> "}
        self._pid, self._file = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            # Restores SIGINT's default: a background process of a shell ignores SIGINT, and its
            # children inherit this.
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
        """Waits for `pattern`; returns (text before the match, match)."""
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
        """Waits for the next prompt; returns (text before it, exit status in the prompt)."""
        before, found = self.wait_for(self._mark + r":(\w+)> ")
        return before, found.group(1)
