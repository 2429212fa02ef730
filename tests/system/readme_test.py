"""Runs the commands of README and quickstart in a terminal, in order, and compares the output with
the pages.

Run as: python readme_test.py BIN_DIR. The model is models/gemma-3-270m.gguf.
"""

import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

import readme_page
from shell_terminal import ShellTerminal, rendered

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BIN_DIR = None
# The programs that `./hearth demo` builds. All commands of the pages must work with these.
PROGRAMS = re.search(r"^command_demo\(\) .*?plan_release ([^\n]+)", (ROOT / "hearth").read_text(),
                     re.M | re.S).group(1).split()
MODEL = "models/gemma-3-270m.gguf"

SETS_UP = "sets the machine up and builds; its verdict and table have tests"
FETCHES = "fetches a model of 722 MB"
# {page: {command that the test does not run: reason}}. Each command must be on its page.
NOT_RUN = {
    "README.md": {
        "git clone <this repository> hearth && cd hearth": "the tree under test is that clone",
        "./hearth demo": SETS_UP,
        "./hearth test": "runs this test",
        "./hearth model gemma-3-1b-it": FETCHES,
    },
    "docs/quickstart.md": {
        "./hearth demo": SETS_UP,
        "./hearth build": SETS_UP,
        "./hearth model gemma-3-1b-it": FETCHES,
        "export MODEL=models/gemma-3-1b-it.gguf": FETCHES,
        "hearthctl doctor": "a sentence names it; the block below runs it",
        "hearthctl watch": "ends by a signal only; hearthctl's own tests run it",
    },
}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Run:
    """Runs a page's commands in a terminal, in a tree as `./hearth demo` makes it. Replaces
    addresses and folders of the page by free ones."""

    def __init__(self, folder):
        self._here = {  # {text on the pages: replacement}
            "/tmp/hearth-data": f"{folder}/hearth-data",
            "127.0.0.1:7080": f"unix:{folder}/store",
            "127.0.0.1:7070": f"unix:{folder}/worker",
            "127.0.0.1:7071": f"unix:{folder}/worker-2",
            "127.0.0.1:8000": f"127.0.0.1:{free_port()}",
        }
        tree = pathlib.Path(folder) / "tree"
        files = {name: ROOT / name for name in (MODEL, "LICENSE")}
        files.update({f"build/bin/{name}": BIN_DIR / name for name in PROGRAMS})
        for name, file in files.items():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).symlink_to(file)
        store, worker = self._here["127.0.0.1:7080"], self._here["127.0.0.1:7070"]
        self.terminal = ShellTerminal(tree, {
            # Servers log only errors: a log line inside a command's echo would hide the echo.
            "HEARTH_STORE_LOG_LEVEL": "error", "HEARTH_WORKER_LOG_LEVEL": "error",
            "HEARTH_STORE_LISTEN": store, "HEARTH_WORKER_STORE": store, "HEARTHCTL_STORE": store,
            "HEARTH_WORKER_LISTEN": worker, "HEARTHCTL_WORKER": worker})

    def command(self, text):
        for said, here in self._here.items():
            text = text.replace(said, here)
        return text

    def output(self, text):
        for said, here in reversed(self._here.items()):  # "worker-2" before "worker"
            text = text.replace(here, said)
        return text

    def findings(self, step):
        """Runs one command; returns its differences from the page."""
        command = self.command(step.command)
        self.terminal.type(command + "\n")
        self.terminal.wait_for(re.escape(command) + "\r\n")  # the echo
        seen = ""
        for before, prompt, typed in step.keys():
            # In the terminal, shown lines have escapes and spaces around them. Waits for the line's
            # end, which may be written separately: earlier input would be echoed inside the line.
            for pattern in filter(None, (before and readme_page.line_pattern(
                    self.command(before)) + r"[^\n]*\n", prompt)):
                text, found = self.terminal.wait_for(pattern)
                seen += text + found[0]
            self.terminal.type(typed)
        text, status = self.terminal.finish()
        lines = rendered(self.output(seen + text))
        found = []
        if status != "0" and not step.is_interrupted():
            found.append(f"exit status {status}")
        if step.shown and not readme_page.is_as_shown(step.shown, lines):
            found.append("not as shown")
        said = "\n".join(lines)
        return [f"line {step.line}: {step.command}: {what}:\n{said}" for what in found]


def findings(page, not_run):
    """Runs the page's commands in one terminal, up to the first difference; returns it."""
    with tempfile.TemporaryDirectory(prefix="hearth-readme-") as folder:
        run = Run(folder)
        with run.terminal:
            for step in readme_page.steps_of(page):
                if step.command in not_run:
                    continue
                found = run.findings(step)
                if found:
                    return found
    return []


def unlisted(page, not_run):
    """Returns commands in sentences that are not in `not_run`, and commands of `not_run` that are
    not on the page."""
    in_sentences = readme_page.commands_in_sentences(page)
    commands = [step.command for step in readme_page.steps_of(page)] + in_sentences
    return ([f"neither run nor listed: {command}" for command in in_sentences
             if command not in not_run] +
            [f"the page does not say: {command}" for command in not_run if command not in commands])


class Pages(unittest.TestCase):

    def test_commands_print_documented_output(self):
        for name, not_run in NOT_RUN.items():
            page = (ROOT / name).read_text()
            self.assertGreater(len(readme_page.steps_of(page)), len(not_run), name)
            self.assertEqual("\n".join(findings(page, not_run)), "", name)

    def test_unexecuted_commands_have_reasons(self):
        usage = subprocess.run([ROOT / "hearth", "help"], capture_output=True, text=True,
                               check=True).stdout
        for name, not_run in NOT_RUN.items():
            self.assertEqual(unlisted((ROOT / name).read_text(), not_run), [], name)
            for command in not_run:
                if command.startswith("./hearth "):
                    for word in command.split()[1:]:
                        self.assertIn(word, usage, command)


def block(kind, *lines):
    return "".join(line + "\n" for line in (f"```{kind}", *lines, "```"))


# Runs only one process: a shell that is interrupted while it starts a second process would wait for
# it.
UNTIL_INTERRUPTED = block("console", "$ echo a >a", "$ cat a -", "a", "^C")


class WrongPages(unittest.TestCase):
    """Tests the checker: it must report wrong pages and accept correct ones."""

    def test_output_mismatch_is_found(self):
        for shown in (["a 12 ms b"], ["..."], ["a ...", "..."], ["...", "a 3.5 s   b"]):
            self.assertEqual(findings(block("console", "$ echo a 7 ms b", *shown), {}), [], shown)
        for shown in (["a 7 MB b"], ["a 7 ms"], ["a 7 ms b", "c"], ["c", "..."], ["a 7 ms ... c"]):
            self.assertIn("not as shown",
                          findings(block("console", "$ echo a 7 ms b", *shown), {})[0], shown)

    def test_missing_output_line_is_found(self):
        page = block("console", "$ printf '1\\n2\\n3\\n'", "1", "3")
        self.assertIn("not as shown", findings(page, {})[0])
        self.assertEqual(findings(page.replace("1\n3", "1\n...\n3"), {}), [])

    def test_failed_commands_are_found(self):
        self.assertEqual(findings(block("sh", "test -d build/bin   # a folder"), {}), [])
        self.assertIn("exit status 1", findings(block("sh", "false"), {})[0])
        self.assertIn("exit status 127", findings(block("console", "$ hearthcat", "..."), {})[0])
        self.assertIn("exit status more", findings(block("sh", "echo 'a"), {})[0])
        self.assertEqual(findings(UNTIL_INTERRUPTED, {}), [])

    def test_interrupt_works_despite_ignored_sigint(self):
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        self.assertEqual(findings(UNTIL_INTERRUPTED, {}), [])

    def test_unlisted_commands_are_found(self):
        page = "Say `./hearth all\nday`.\n" + block("sh", "./hearth run")
        self.assertEqual(unlisted(page, {"./hearth gone": ""}), [
            "neither run nor listed: ./hearth all day", "the page does not say: ./hearth gone"])
        self.assertEqual(unlisted(page, {"./hearth all day": "", "./hearth run": ""}), [])

    def test_invalid_blocks_are_refused(self):
        for page in (block("", "ls"), block("bash", "ls"), block("console", "a", "$ ls"),
                     block("console", "$ cat", "^C"),
                     block("text", "a", "build/bin/hearthctl ls")):
            with self.assertRaises(ValueError, msg=page):
                readme_page.steps_of(page)


if __name__ == "__main__":
    BIN_DIR = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
