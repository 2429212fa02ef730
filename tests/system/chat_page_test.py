"""A worker's chat page in a browser, and pages of other origins that call the worker.

Run as: python chat_page_test.py BIN_DIR WRITE_CHECKPOINT [unittest arguments]. Without a browser,
the exit code is 77, which ctest shows as skipped.
"""

import http.server
import json
import re
import threading

import system_support
from browser_page import Page, skip_without_browser
from http_worker import MODEL, HttpWorker

LIMIT = 24  # maximum tokens of an answer
FIELD = "document.getElementById('%s')"
# Records each text of the first answer while it is streamed (the button then says "Stop").
WATCH = """var seen = [];
new MutationObserver(() => {
  const text = document.getElementById("text1")?.textContent;
  if (text && document.getElementById("send").textContent === "Stop") seen.push(text);
}).observe(document, {subtree: true, childList: true, characterData: true});"""
# Replaces the page's fetch(), so that the test writes the server's answers.
SERVER = """var asked = [], answer_stream = null;
fetch = async (path, options) => {
  asked.push(JSON.parse(options.body).messages);
  return new Response(new ReadableStream({start(stream) {
    answer_stream = stream;
    options.signal.addEventListener(
        "abort", () => stream.error(new DOMException("", "AbortError")));
  }}));
};
function write(event) {
  answer_stream.enqueue(new TextEncoder().encode("data: " + JSON.stringify(event) + "\\n\\n"));
}
function finish() {
  write({choices: [], usage: {prompt_tokens: 5, completion_tokens: 9,
                              prompt_tokens_details: {cached_tokens: 4}}});
  answer_stream.close();
}"""
# Clicks "New chat" as soon as the first answer has some text.
LEAVE = """new MutationObserver((_, observer) => {
  if (!document.getElementById("text1")?.textContent) return;
  observer.disconnect();
  document.getElementById("fresh").click();
}).observe(document, {subtree: true, childList: true, characterData: true});"""
MARKDOWN = """# Title

Some **bold** and `code`, &lt;see&gt; [site](https://example.org/a?b=1&c=2):

- one
- [x] two

| a | b |
| --- | --: |
| 1 | 2 |

```python
if a < b:
    print("<b>")
```
"""
HOSTILE = """<img src=x onerror="window.hit = 1"> <script>window.hit = 1</script>

<iframe srcdoc="<script>parent.hit = 1</script>"></iframe>

[one](javascript:window.hit=1) [two](java&#10;script:window.hit=1) [three](data:text/html,x)
![four](http://example.org/seen.png) [five](/v1/models)

<a href="https://example.org/" onclick="window.hit = 1">six</a>

<pre><img src=x onerror="window.hit = 1" </pre>

```"><img/src=x/onerror=window.hit=1>
x
```
"""


class ChatPageInBrowser(HttpWorker):

    def say(self, page, text):
        page.value(f"{FIELD % 'temperature'}.value = 0; {FIELD % 'limit'}.value = {LIMIT}; "
                   f"{FIELD % 'ask'}.value = "
                   f"{json.dumps(text)}; {FIELD % 'form'}.requestSubmit()")

    def expect_turn(self, page, messages, number):
        """Checks that the page and the API give the same answer to `messages`. Returns (text,
        number of cached tokens)."""
        tokens = self.post("/tokenize", {"messages": messages})["count"]
        note = page.wait_for(f"note{number}", f"{tokens} tokens in, ")
        whole = self.post("/v1/chat/completions", {"messages": messages, "temperature": 0,
                                                   "max_tokens": LIMIT})
        answer = page.value(f"{FIELD % f'text{number}'}.textContent")
        self.assertEqual(answer, whole["choices"][0]["message"]["content"])
        return answer, int(re.search(r"in, (\d+) cached", note).group(1))

    def test_chat_streams_and_reuses_turns(self):
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

    def test_page_fits_every_window(self):
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

    def test_error_is_shown_and_recoverable(self):
        with Page(self.url + "/") as page:
            page.wait_for("model", MODEL)
            self.say(page, "lamp " * 400)
            page.wait_for("note1", "messages: This model's maximum context length is 256 tokens")
            again = [{"role": "user", "content": "lamp"}]
            self.say(page, again[0]["content"])
            self.expect_turn(page, again, 1)

    def test_non_ascii_access_token_is_explained(self):
        with Page(self.url + "/") as page:
            page.wait_for("model", MODEL)
            page.value(f"{FIELD % 'token'}.value = 'caf\u00e9'")
            self.say(page, "lamp")
            page.wait_for("note1", "The access token must be")

    def test_new_chat_during_stream_is_empty(self):
        with Page(self.url + "/") as page:
            page.wait_for("model", MODEL)
            page.value(LEAVE)
            self.say(page, "the keeper of the light")
            page.wait_for("chat", "Earlier turns are cached")
            again = [{"role": "user", "content": "lamp"}]
            self.say(page, again[0]["content"])
            self.expect_turn(page, again, 1)
            page.value("document.querySelectorAll('#chats .name')[1].click()")
            page.wait_for("text0", "the keeper of the light")

    def test_chats_survive_reload_until_deleted(self):
        with Page(self.url + "/") as page:
            page.wait_for("model", MODEL)
            first = [{"role": "user", "content": "the keeper"}]
            self.say(page, first[0]["content"])
            answer, _ = self.expect_turn(page, first, 1)
            page.value("document.getElementById('text1').remove(); location.reload()")
            self.assertEqual(page.wait_for("text1", answer), answer)
            page.wait_for("chats", "the keeper")
            self.say(page, "a lamp")
            self.expect_turn(page, first + [{"role": "assistant", "content": answer},
                                            {"role": "user", "content": "a lamp"}], 3)
            page.value("confirm = () => true; document.querySelector('#chats .drop').click()")
            page.wait_for("chat", "Earlier turns are cached")
            page.value("document.getElementById('chat').replaceChildren(); location.reload()")
            page.wait_for("chat", "Earlier turns are cached")
            self.assertEqual(page.value(f"{FIELD % 'chats'}.textContent"), "")

    def stubbed(self, page):
        page.wait_for("model", MODEL)
        page.value(SERVER)

    def write(self, page, text):
        page.value(f"write({{choices: [{{delta: {{content: {json.dumps(text)}}}}}]}})")

    def test_markdown_is_rendered(self):
        with Page(self.url + "/") as page:
            self.stubbed(page)
            self.say(page, "*one*\n<b>two</b>")
            for piece in re.findall("(?s).{1,7}", MARKDOWN):
                self.write(page, piece)
            page.value("finish()")
            page.wait_for("note1", "5 tokens in, 4 cached")
            self.assertEqual(page.value(f"{FIELD % 'text0'}.textContent"), "*one*\n<b>two</b>")
            shown = page.value("""["h1", "strong", "p>code", "a[href]", "li", "td[align=right]",
                ".code span", "pre>code"].map(
                    name => document.querySelector("#text1 " + name).textContent)""")
            self.assertEqual(shown, ["Title", "bold", "code", "site", "one", "2", "python",
                                     'if a < b:\n    print("<b>")'])
            self.assertEqual(page.value("document.querySelector('#text1 a').href"),
                             "https://example.org/a?b=1&c=2")
            text = page.value(f"{FIELD % 'text1'}.textContent")
            self.assertIn("code, <see> site:", text)
            self.assertIn("\u2611 two", text)
            page.value("""var copied = [];
                Object.defineProperty(navigator, "clipboard",
                                      {value: {writeText: text => copied.push(text)}});
                document.querySelector("#text1 .code button").click();
                document.querySelector("#text1 + .foot button").click()""")
            self.assertEqual(page.value("copied"), [shown[-1], MARKDOWN])

    def test_model_html_is_shown_as_text(self):
        with Page(self.url + "/") as page:
            self.stubbed(page)
            self.say(page, "lamp")
            self.write(page, HOSTILE)
            page.value("finish()")
            page.wait_for("note1", "5 tokens in")
            self.assertEqual(page.value("""document.querySelectorAll(
                "#chat :is(img, script, iframe, [onclick], [onerror], [srcdoc])").length"""), 0)
            links = page.value("[...document.querySelectorAll('#chat a')].map(a => a.href)")
            self.assertEqual(links[0], "http://example.org/seen.png")
            self.assertTrue(all(re.match("https?://example.org/", link) for link in links), links)
            text = page.value(f"{FIELD % 'text1'}.textContent")
            for written in ('<img src=x onerror="window.hit = 1">', "<script>", "<iframe",
                            'onclick="window.hit = 1">six</a>', "one", "two", "three", "five"):
                self.assertIn(written, text)
            self.assertFalse(page.value("'hit' in window"))

    def test_deeply_nested_markdown_stays_text(self):
        with Page(self.url + "/") as page:
            self.stubbed(page)
            for number, deep in ((1, "> " * 40 + "deep"), (3, ">" * 3000 + "deep"),
                                 (5, "- " * 3000 + "deep"), (7, "*a _a " * 300 + "deep"),
                                 (9, "- " * 500 + "deep")):
                self.say(page, "lamp")
                self.write(page, deep)
                page.value("finish()")
                page.wait_for(f"note{number}", "5 tokens in")
                self.assertIn("deep", page.value(f"{FIELD % f'text{number}'}.textContent"))
            self.assertLess(page.value("document.querySelectorAll('#text9 ul').length"), 40)

    def test_link_keeps_query_string(self):
        with Page(self.url + "/") as page:
            self.stubbed(page)
            self.say(page, "lamp")
            self.write(page, "[x](https://example.org/?a=1&region=us&copy=2)")
            page.value("finish()")
            page.wait_for("note1", "5 tokens in")
            self.assertEqual(page.value("document.querySelector('#text1 a').href"),
                             "https://example.org/?a=1&region=us&copy=2")

    def test_answer_stop_retry_and_edit(self):
        with Page(self.url + "/") as page:
            self.stubbed(page)
            first = {"role": "user", "content": "lamp"}
            self.say(page, first["content"])
            self.write(page, "half")
            page.wait_for("text1", "half")
            page.value("document.querySelector('#chats .name').click()")  # the open chat
            self.assertEqual(page.value(f"{FIELD % 'text1'}.textContent"), "half")
            page.value(f"{FIELD % 'send'}.click()")
            page.wait_for("note1", "stopped")
            page.value("document.querySelector('.assistant .change').click()")
            page.wait_for("send", "Stop")
            self.write(page, "whole")
            page.value("finish()")
            page.wait_for("note1", "5 tokens in")
            self.assertEqual(page.value(f"{FIELD % 'text1'}.textContent"), "whole")
            self.say(page, "more")
            self.write(page, "and more")
            page.value("finish()")
            page.wait_for("note3", "5 tokens in")
            page.value("""document.querySelector(".user .change").click();
                document.querySelector(".user textarea").value = "light";
                document.querySelector(".user .change:last-child").click()""")
            page.wait_for("text0", "light")
            self.write(page, "third")
            page.value("finish()")
            page.wait_for("note1", "5 tokens in")
            self.assertIsNone(page.value(f"{FIELD % 'text2'}"))
            self.assertEqual(page.value("asked"), [
                [first], [first],
                [first, {"role": "assistant", "content": "whole"},
                 {"role": "user", "content": "more"}],
                [{"role": "user", "content": "light"}]])

    def test_stream_keeps_reader_scroll_position(self):
        place = "[scroll.scrollTop, scroll.scrollHeight - scroll.clientHeight - scroll.scrollTop]"
        lines = "line\n\n" * 60
        with Page(self.url + "/") as page:
            self.stubbed(page)
            self.say(page, "lamp")
            self.write(page, lines + "first")
            page.wait_for("chat", "lamp")
            page.value("finish()")
            page.wait_for("note1", "5 tokens in")
            self.assertLess(page.value(place)[1], 4)
            self.say(page, "more")
            self.write(page, lines + "second")
            page.value("scroll.scrollTop = 100; scroll.dispatchEvent(new Event('scroll'))")
            self.write(page, lines + "third")
            page.value("finish()")
            page.wait_for("note3", "5 tokens in")
            self.assertEqual(page.value(place)[0], 100)
            self.assertFalse(page.value(f"{FIELD % 'down'}.hidden"))
            page.value(f"{FIELD % 'down'}.click()")
            self.assertLess(page.value(place)[1], 4)

    def test_base_model_is_labelled(self):
        with Page(self.url + "/") as page:
            page.wait_for("model", MODEL)
            self.assertTrue(page.value(f"{FIELD % 'kind'}.hidden"))
            page.value("""fetch = async () => Response.json(
                            {data: [{id: "base", hearth_note: "base is a base model"}]});
                          loadModel()""")
            page.wait_for("kind", "base is a base model.")
            self.assertFalse(page.value(f"{FIELD % 'kind'}.hidden"))


# A page that sends the requests of OpenAI's JavaScript client in Chromium, with its headers.
OTHER_SITE = """<!DOCTYPE html><p id="said"></p><script>
async function ask(model) {
  const answer = await fetch("%s/v1/chat/completions", {
    method: "POST",
    headers: {"Accept": "application/json", "Content-Type": "application/json",
              "Authorization": "Bearer none", "X-Stainless-Retry-Count": "0",
              "X-Stainless-Timeout": "600", "X-Stainless-Lang": "js",
              "X-Stainless-Package-Version": "6.9.1", "X-Stainless-OS": "Unknown",
              "X-Stainless-Arch": "unknown", "X-Stainless-Runtime": "browser:chrome",
              "X-Stainless-Runtime-Version": "156.0.0"},
    body: JSON.stringify({model, stream: true, temperature: 0, max_tokens: 24,
                          messages: [{role: "user", content: "the keeper"}]})});
  if (!answer.ok) return (await answer.json()).error.code;
  let rest = "", text = answer.headers.get("x-request-id") ? "" : "no request id";
  for await (const bytes of answer.body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + bytes).split("\\n");
    rest = lines.pop();
    for (const line of lines.filter(line => line.startsWith("data: {"))) {
      text += JSON.parse(line.slice(6)).choices[0].delta.content ?? "";
    }
  }
  return text;
}
async function run() {
  return JSON.stringify([await ask("lighthouse"), await ask("other")]);
}
run().catch(error => error.name).then(said => {
  document.getElementById("said").textContent = "said " + said;
});
</script>"""


class CrossOriginPage(HttpWorker):

    def site(self):
        """Serves OTHER_SITE; returns its origin."""
        test = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write((OTHER_SITE % test.url).encode())

            def log_message(self, *unused):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}"

    def flags(self):
        self.listed = self.site()
        return ("--http-origins", self.listed)

    def said(self, site):
        with Page(site + "/") as page:
            return page.wait_for("said", "said ").removeprefix("said ")

    def test_listed_origin_reads_answers(self):
        whole = self.post("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "the keeper"}], "temperature": 0,
            "max_tokens": 24})
        self.assertEqual(json.loads(self.said(self.listed)),
                         [whole["choices"][0]["message"]["content"], "model_not_found"])

    def test_unlisted_origin_reads_nothing(self):
        self.assertEqual(self.said(self.site()), "TypeError")


if __name__ == "__main__":
    skip_without_browser()
    system_support.main()
