"""Checks hearthctl's completion in real bash and zsh, and the manual pages with a real troff."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HEARTHCTL = None
SERVERS = []

BASH = """
source <("$0" completion bash)
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_hearthctl
printf '%s\\n' "${COMPREPLY[@]}"
"""

# Starts zsh's line editor with the words, completes as if Tab were pressed after them, and exits.
# Writes the offered words to $OFFERED, except for calls of compadd that only fill arrays (-O, -A,
# -D).
ZSH = """
autoload -Uz compinit && compinit -u -D
source <("$HEARTHCTL" completion zsh)
compadd() {
  if [[ " ${@[1,(i)(-|--)]} " != *" -"[a-zA-Z]#[OAD]" "* ]]; then
    local -a words
    builtin compadd -A words "$@"
    (( $#words )) && print -rl -- $words >> $OFFERED
  fi
  builtin compadd "$@"
}
zle-line-init() {
  BUFFER=$TYPED CURSOR=$#TYPED
  zle complete-word
  exit 0
}
zle -N zle-line-init
setopt extended_glob
"""


class Offers:
    """Expected offers of each shell for the last word; completed(WORD...) returns them."""

    def test_first_word_offers_commands(self):
        self.assertEqual(self.completed("ex"), ["explain", "export"])
        self.assertIn("generate", self.completed(""))
        self.assertIn("--version", self.completed("--v"))

    def test_command_offers_its_flags(self):
        self.assertEqual(self.completed("ls", "--ten"), ["--tenant"])
        self.assertIn("--worker", self.completed("generate", "--prompt", "a", "--w"))
        self.assertNotIn("--tenant", self.completed("generate", "--t"))

    def test_choice_flag_offers_its_values(self):
        self.assertEqual(sorted(self.completed("generate", "--cache", "")),
                         ["default", "off", "read", "write"])

    def test_positional_choice_offers_values(self):
        self.assertEqual(self.completed("completion", "z"), ["zsh"])

    def test_repeatable_flag_offered_again(self):
        self.assertEqual(self.completed("generate", "--stop", "a", "--sto"),
                         ["--stop", "--stop-token-id"])

    def test_two_word_command_completes(self):
        self.assertEqual(sorted(self.completed("state", "")), ["load", "save"])
        self.assertIn("--force", self.completed("state", "save", "--f"))


class Bash(Offers, unittest.TestCase):

    def completed(self, *words):
        run = subprocess.run(["bash", "-c", BASH, HEARTHCTL, "hearthctl", *words],
                             capture_output=True, text=True, check=True)
        self.assertEqual(run.stderr, "")
        return run.stdout.split()

    def test_plain_flag_offers_files(self):
        self.assertEqual(self.completed("generate", "--prompt", ""), [], "files, by bash's default")


@unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
class Zsh(Offers, unittest.TestCase):

    def completed(self, *words):
        with tempfile.TemporaryDirectory() as folder:
            home, offered = pathlib.Path(folder), pathlib.Path(folder, "offered")
            (home / ".zshrc").write_text(ZSH)
            (home / "file_of_home").touch()
            offered.touch()
            master, terminal = os.openpty()
            self.addCleanup(os.close, master)
            environment = dict(os.environ, ZDOTDIR=folder, HEARTHCTL=HEARTHCTL, TERM="dumb",
                               OFFERED=str(offered), TYPED=" ".join(["hearthctl", *words]))
            try:
                subprocess.run(["zsh", "-d", "-i"], stdin=terminal, stdout=terminal,
                               stderr=terminal, env=environment, cwd=folder, check=True,
                               start_new_session=True, timeout=500)
            finally:
                os.close(terminal)
            return offered.read_text().split()

    def test_plain_flag_offers_files(self):
        self.assertEqual(self.completed("generate", "--prompt", "file_"), ["file_of_home"])


class Shells(unittest.TestCase):

    def test_unknown_shell_is_refused(self):
        refused = subprocess.run([HEARTHCTL, "completion", "fish"], capture_output=True, text=True)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("bash, zsh", refused.stderr)
        zsh = subprocess.run([HEARTHCTL, "completion", "zsh"], capture_output=True, text=True,
                             check=True).stdout
        self.assertIn("bashcompinit", zsh)
        if shutil.which("zsh"):
            subprocess.run(["zsh", "-n"], input=zsh, text=True, check=True)


class ManPages(unittest.TestCase):

    def pages(self):
        yield "1", subprocess.run([HEARTHCTL, "man"], capture_output=True, text=True,
                                  check=True).stdout
        for server in SERVERS:
            yield "8", subprocess.run([server, "--man"], capture_output=True, text=True,
                                      check=True).stdout

    def test_man_page_is_valid(self):
        for section, page in self.pages():
            self.assertRegex(page, rf"^\.TH HEARTH\S* {section} ")
            self.assertIn(".SH NAME\nhearth", page)
            self.assertIn("\\-\\-version", page)
            if shutil.which("groff"):
                run = subprocess.run(["groff", "-man", "-ww", "-z"], input=page,
                                     capture_output=True, text=True, check=True)
                self.assertEqual(run.stderr, "")

    def test_man_page_lists_commands(self):
        page = next(self.pages())[1]
        self.assertIn('.SS "hearthctl generate"', page)
        self.assertIn('.SS "hearthctl state save"', page)
        self.assertIn("\\-\\-max\\-new\\-tokens", page)
        self.assertIn("[HEARTHCTL_STORE]", page)


if __name__ == "__main__":
    HEARTHCTL, *SERVERS = [str(pathlib.Path(path).resolve()) for path in sys.argv[1:]]
    unittest.main(argv=sys.argv[:1])
