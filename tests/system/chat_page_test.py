"""The chat page of a worker, as a browser shows it.

Run as: python chat_page_test.py BIN_DIR WRITE_CHECKPOINT [unittest arguments]. Without a browser it
ends with 77, which ctest shows as skipped.
"""

import json
import re

import system_support
from browser_page import Page, skip_without_browser
from http_worker import MODEL, HttpWorker

LIMIT = 24  # tokens of an answer
FIELD = "document.getElementById('%s')"
# From now on each state of the first answer while it is under way: "Stop" is on the button then.
WATCH = """var seen = [];
new MutationObserver(() => {
  const text = document.getElementById("text1")?.textContent;
  if (text && document.getElementById("send").textContent === "Stop") seen.push(text);
}).observe(document, {subtree: true, childList: true, characterData: true});"""


class ChatPageInBrowser(HttpWorker):

    def say(self, page, text):
        page.value(f"{FIELD % 'temperature'}.value = 0; {FIELD % 'limit'}.value = {LIMIT}; "
                   f"{FIELD % 'ask'}.value = "
                   f"{json.dumps(text)}; {FIELD % 'form'}.requestSubmit()")

    def expect_turn(self, page, messages, number):
        """The answer to `messages` is shown as the API gives it. Returns its text and the tokens
        that were cached."""
        tokens = self.post("/tokenize", {"messages": messages})["count"]
        note = page.wait_for(f"note{number}", f"{tokens} tokens in, ")
        whole = self.post("/v1/chat/completions", {"messages": messages, "temperature": 0,
                                                   "max_tokens": LIMIT})
        answer = page.value(f"{FIELD % f'text{number}'}.textContent")
        self.assertEqual(answer, whole["choices"][0]["message"]["content"])
        return answer, int(re.search(r"in, (\d+) cached", note).group(1))

    def test_a_chat_streams_and_a_later_turn_finds_the_earlier_ones(self):
        with Page(self.url + "/") as page:
            page.wait_for("model", MODEL)
            page.value(WATCH)
            first = [{"role": "user", "content": "the keeper"}]
            self.say(page, first[0]["content"])
            answer, _ = self.expect_turn(page, first, 1)
            seen = page.value("seen")
            self.assertLess(len(seen[0]), len(answer))
            self.assertTrue(all(answer.startswith(text) for text in seen), seen)
            second = first + [{"role": "assistant", "content": answer},
                              {"role": "user", "content": "a lamp"}]
            self.say(page, "a lamp")
            _, cached = self.expect_turn(page, second, 3)
            self.assertGreater(cached, 0)

    def test_it_fits_small_and_large_windows_light_and_dark(self):
        with Page(self.url + "/") as page:
            page.wait_for("model", MODEL)
            self.say(page, "the keeper of the light " * 4 + "keeper" * 20)
            page.wait_for("send", "Send")
            grounds = set()
            for width, _ in page.sizes("chat"):
                beyond = page.value(f"{FIELD % 'scroll'}.scrollWidth - "
                                    f"{FIELD % 'scroll'}.clientWidth")
                self.assertEqual(beyond, 0, f"the turns, in a window of {width} px")
                grounds.add(page.value("getComputedStyle(document.body).backgroundColor"))
            self.assertEqual(len(grounds), 2)

    def test_an_error_is_shown_and_the_message_may_be_sent_again(self):
        with Page(self.url + "/") as page:
            page.wait_for("model", MODEL)
            self.say(page, "lamp " * 400)
            page.wait_for("note1", "prompt: has more than 256 tokens")
            again = [{"role": "user", "content": "lamp"}]
            self.say(page, again[0]["content"])
            self.expect_turn(page, again, 1)

    def test_a_token_with_an_accent_is_explained(self):
        with Page(self.url + "/") as page:
            page.wait_for("model", MODEL)
            page.value(f"{FIELD % 'token'}.value = 'caf\u00e9'")
            self.say(page, "lamp")
            page.wait_for("note1", "The token has a character")


if __name__ == "__main__":
    skip_without_browser()
    system_support.main()
