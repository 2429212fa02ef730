"""The child process that renders chats can reach nothing, even if a template escapes from Jinja's
sandbox. It answers chats with more control tokens than the worker reads, and templates that use
filters which import modules.

Usage: render_chats_test.py FOLDER_OF_RENDER_CHATS
"""
import json
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


def answers(folder, requests):
    """Returns the answers of a new process to the requests."""
    texts = [json.dumps(request).encode() for request in requests]
    sent = b"".join(len(text).to_bytes(4, "big") + text for text in texts)
    left = subprocess.run([PYTHON, "-I", "-B", f"{folder}/render_chats.py"], input=sent,
                          stdout=subprocess.PIPE, check=True).stdout
    got = []
    while left:
        end = 4 + int.from_bytes(left[:4], "big")
        got.append(json.loads(left[4:end]))
        left = left[end:]
    return got


def check_chats(folder):
    setup = {"template": "{{ messages[0].content }}{{ 'a b' | wordwrap(1) }}{{ lipsum(0) }}",
             "variables": {}, "special": ["<bos>"], "memory_bytes": 512 << 20, "cpu_s": 60}
    chats = [{"messages": [{"role": "user", "parts": ["<bos>" * names]}], "tools": [],
              "strict": True, "cuts": [], "ending": "closed"} for names in (2, (1 << 18) + 1)]
    first, short, long = answers(folder, [setup, *chats])
    assert first == {"reads_tools": False, "call": None}, first
    assert short == {"text": "<bos><bos>a\nb", "cuts": [], "plain": [0, 5]}, short
    assert "262145 names of special tokens" in long["error"], long


def main():
    folder = sys.argv[1]
    check_chats(folder)
    harmless = ["open", "stat", "socket", "kill", "memory"]
    assert succeeded(folder, "all", harmless) == harmless, "without limits, all work"
    got = succeeded(folder, "limited", [*harmless, "fork", "limit", "exec"])
    assert got == [], f"allowed: {got}"
    print("no file, socket, signal, process, limit or memory")


if __name__ == "__main__":
    main()
