"""The child process that renders chats can reach nothing, even if a template escapes from Jinja's
sandbox.

Usage: render_chats_test.py FOLDER_OF_RENDER_CHATS
"""
import subprocess
import sys

PYTHON = "/usr/bin/python3"  # the worker runs the same program
# Runs with the rights of the child process. Output is written to the open pipe.
ATTEMPTS = """
import os, socket, sys
sys.path.insert(0, sys.argv[1])
import render_chats
parent = os.getppid()
attempts = {
    "open": lambda: os.open("/etc/passwd", os.O_RDONLY),
    "stat": lambda: os.stat("/"),
    "socket": lambda: socket.socket(),
    "kill": lambda: os.kill(parent, 0),
    "fork": os.fork,
    "exec": lambda: os.execv("/bin/true", ["true"]),
    "limit": lambda: render_chats.resource.setrlimit(render_chats.resource.RLIMIT_NOFILE, (9, 9)),
    "memory": lambda: bytearray(1 << 30),
}
if sys.argv[2] == "limited":
    render_chats.give_up_rights(512 << 20)
for name in sys.argv[3:]:
    try:
        attempts[name]()
        os.write(1, (name + "\\n").encode())
    except (OSError, ValueError, MemoryError):
        pass
"""


def succeeded(folder, rights, names):
    done = subprocess.run([PYTHON, "-B", "-c", ATTEMPTS, folder, rights, *names],
                          stdout=subprocess.PIPE, check=True, text=True)
    return done.stdout.split()


def main():
    folder = sys.argv[1]
    harmless = ["open", "stat", "socket", "kill", "memory"]
    assert succeeded(folder, "all", harmless) == harmless, "without limits, all work"
    got = succeeded(folder, "limited", [*harmless, "fork", "limit", "exec"])
    assert got == [], f"allowed: {got}"
    print("no file, socket, signal, process, limit or memory")


if __name__ == "__main__":
    main()
