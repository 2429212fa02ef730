"""Saves an inference in one worker and continues it in another, with the same tokens as without the
save."""

import system_support
from system_support import ProcessFailed, SystemTest, prompt

PROMPT_TOKENS = 150
HALF = 8
SAMPLED = ("--temperature", "1.3", "--top-p", "0.95", "--seed", "41")
# Sampling options that depend on earlier tokens.
RULED = (*SAMPLED, "--min-p", "0.01", "--repetition-penalty", "1.4", "--presence-penalty", "0.5",
         "--frequency-penalty", "0.6", "--logit-bias", "3=2.5", "--logit-bias", "9=3",
         "--bad-token-id", "11", "--min-tokens", str(HALF + 2))


class States(SystemTest):

    def setUp(self):
        super().setUp()
        self.made = self.model("irregular")
        self.path = self.folder / "half.state"

    def start(self, store="none", *flags, model=None):
        return self.worker(model or self.made, store, *flags, pool_bytes="64MiB")

    def save(self, worker, *flags, check=True):
        return self.cluster.ctl(
            "state", "save", "--worker", worker.address, "--wait", "120", self.path, "--token-ids",
            ",".join(map(str, prompt(PROMPT_TOKENS, 1))), "--max-new-tokens", HALF,
            "--ignore-eos", *flags, check=check)

    def load(self, worker):
        return self.cluster.ctl("state", "load", "--worker", worker.address, "--wait", "120",
                                self.path, "--max-new-tokens", HALF, "--ignore-eos")

    def in_one_go(self, worker, *flags):
        return self.cluster.generate(worker.address, prompt(PROMPT_TOKENS, 1), "--cache", "off",
                                     *flags, max_new_tokens=2 * HALF)

    def expect_to_go_on(self, first, second, third):
        wholes = []
        for flags in ((), SAMPLED, RULED):
            begun = self.save(first, *flags, "--force")
            rest = self.load(second)
            self.assertEqual(rest["cached_tokens"], PROMPT_TOKENS + HALF - 1)
            wholes.append(self.in_one_go(third, *flags)["token_ids"])
            self.assertEqual(begun["token_ids"] + rest["token_ids"], wholes[-1])
        self.assertEqual(len(set(map(tuple, wholes))), 3, "the flags decide nothing")

    def test_saved_state_continues_without_store(self):
        first, second = self.start(), self.start()
        self.expect_to_go_on(first, second, second)

    def test_loaded_state_is_published_to_store(self):
        store = self.cluster.store(self.folder / "data")
        first, second = self.start(), self.start(store.address)
        self.expect_to_go_on(first, second, first)
        tokens = prompt(PROMPT_TOKENS, 1) + self.save(first, "--force")["token_ids"]
        self.load(second)
        kept = self.cluster.generate(second.address, tokens, "--wait-published")
        self.assertGreaterEqual(kept["published_tokens"], len(tokens) - 1)
        third = self.cluster.generate(self.start(store.address).address, tokens)
        self.assertEqual(third["cached_tokens"], len(tokens) - 1)

    def test_existing_file_needs_force(self):
        worker = self.start()
        self.path.write_text("mine")
        with self.assertRaises(ProcessFailed) as refused:
            self.save(worker)
        self.assertIn("--force", str(refused.exception))
        self.assertEqual(self.path.read_text(), "mine")
        self.assertEqual([file.name for file in self.folder.glob("half*")], ["half.state"])

    def test_other_model_refuses_state(self):
        self.save(self.start())
        with self.assertRaises(ProcessFailed) as refused:
            self.load(self.start(model=self.model("irregular", seed=2)))
        self.assertIn("cannot restore: model config field weights_sha256 differs",
                      str(refused.exception))
        self.path.write_bytes(self.path.read_bytes()[:-1])
        with self.assertRaises(ProcessFailed) as torn:
            self.load(self.start())
        self.assertIn("state ends after", str(torn.exception))


if __name__ == "__main__":
    system_support.main()
