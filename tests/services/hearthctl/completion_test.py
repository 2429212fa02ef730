"""hearthctl's completion in a real bash, and the manual pages in a real troff."""

import pathlib
import shutil
import subprocess
import sys
import unittest

HEARTHCTL = None
SERVERS = []

COMPLETE = """
source <("$0" completion bash)
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_hearthctl
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(*words):
    """What bash offers for the last word."""
    run = subprocess.run(["bash", "-c", COMPLETE, HEARTHCTL, "hearthctl", *words],
                         capture_output=True, text=True, check=True)
    assert run.stderr == "", run.stderr
    return run.stdout.split()


class Completion(unittest.TestCase):

    def test_commands_come_first(self):
        self.assertEqual(completed("ex"), ["explain", "export"])
        self.assertIn("generate", completed(""))
        self.assertIn("--version", completed("--v"))

    def test_flags_of_the_command_follow(self):
        self.assertEqual(completed("ls", "--so"), ["--sort"])
        self.assertIn("--worker", completed("generate", "--prompt", "a", "--w"))
        self.assertNotIn("--sort", completed("generate", "--s"))

    def test_words_of_a_choice_follow_its_flag(self):
        self.assertEqual(sorted(completed("generate", "--cache", "")),
                         ["default", "off", "read", "write"])
        self.assertEqual(completed("generate", "--prompt", ""), [], "files, by bash's default")

    def test_commands_of_two_words(self):
        self.assertEqual(completed("state", ""), ["save", "load"])
        self.assertIn("--force", completed("state", "save", "--f"))

    def test_an_unknown_shell_is_refused_and_zsh_is_known(self):
        refused = subprocess.run([HEARTHCTL, "completion", "fish"], capture_output=True, text=True)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("bash, zsh", refused.stderr)
        zsh = subprocess.run([HEARTHCTL, "completion", "zsh"], capture_output=True, text=True,
                             check=True).stdout
        self.assertTrue(zsh.startswith("#compdef hearthctl\n"))
        if shutil.which("zsh"):
            subprocess.run(["zsh", "-n"], input=zsh, text=True, check=True)


class ManPages(unittest.TestCase):

    def pages(self):
        yield "1", subprocess.run([HEARTHCTL, "man"], capture_output=True, text=True,
                                  check=True).stdout
        for server in SERVERS:
            yield "8", subprocess.run([server, "--man"], capture_output=True, text=True,
                                      check=True).stdout

    def test_each_has_a_name_and_every_flag_and_no_mistake(self):
        for section, page in self.pages():
            self.assertRegex(page, rf"^\.TH HEARTH\S* {section} ")
            self.assertIn(".SH NAME\nhearth", page)
            self.assertIn("\\-\\-version", page)
            if shutil.which("groff"):
                run = subprocess.run(["groff", "-man", "-ww", "-z"], input=page,
                                     capture_output=True, text=True, check=True)
                self.assertEqual(run.stderr, "")

    def test_the_commands_and_their_examples_are_on_hearthctls(self):
        page = next(self.pages())[1]
        self.assertIn('.SS "hearthctl generate"', page)
        self.assertIn('.SS "hearthctl state save"', page)
        self.assertIn("\\-\\-max\\-new\\-tokens", page)
        self.assertIn("[HEARTHCTL_STORE]", page)


if __name__ == "__main__":
    HEARTHCTL, *SERVERS = [str(pathlib.Path(path).resolve()) for path in sys.argv[1:]]
    unittest.main(argv=sys.argv[:1])
