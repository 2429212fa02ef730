"""Open WebUI, unmodified from PyPI, started with the command of docs/clients.md.

Run as: python open_webui_test.py BIN_DIR [unittest arguments]. `scripts/clients.sh open_webui`
installs it into .clients; without it, the exit code is 77, which ctest shows as skipped. One test
sends what the web page sends with default settings: a chat that Open WebUI saves, with its own
tools, a title, tags and follow-up questions. The other test uses Open WebUI's API.
"""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import time
import unittest
import urllib.request
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import system_support  # noqa: E402  (path set above)
from clients_test import CLIENTS, MODEL, PAGE, SKIPPED  # noqa: E402
from forcing_proxy import CLIENT_S, SAID, ForcingProxyTest  # noqa: E402

START_S = 600  # seconds; Open WebUI imports 1 GB of modules and makes its database
TOOL = "get_current_timestamp"  # one of Open WebUI's own tools
TASKS = {"title": "Tides", "tags": ["sea"], "follow_ups": ["And when is the next low tide?"]}
CHATS = "/v1/chat/completions"
CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"], "additionalProperties": False}


def force_nothing(_):
    return []


def force_chat(body):
    """Changes a request of Open WebUI: its first turn gets a call and an answer, its tasks get
    TASKS, and later turns choose themselves. Returns the results of calls in the request."""
    roles = [message["role"] for message in body["messages"]]
    results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    if "tools" not in body:
        answer_with(body, TASKS)
    elif roles.count("user") > 1:
        body.update(temperature=0, max_tokens=16)
    elif results:
        body["tool_choice"] = "none"
        answer_with(body, SAID)
    else:
        body.update(tool_choice={"type": "function", "function": {"name": TOOL}},
                    parallel_tool_calls=False)
    return results


def answer_with(body, value):
    schema = {"const": value}
    if isinstance(value, dict):
        schema = {"type": "object", "additionalProperties": False, "required": list(value),
                  "properties": {name: {"const": item} for name, item in value.items()}}
    body["response_format"] = {"type": "json_schema", "json_schema": {
        "name": "answer", "strict": True, "schema": schema}}


class OpenWebUi:
    """Starts Open WebUI with the page's command, on a free port, for one user without password.

    `url`: of the server that it calls.
    """

    def __init__(self, url, folder):
        section = PAGE.read_text().split("## Open WebUI\n")[1].split("\n## ")[0]
        command = re.search(r"```console\n\$ (.*?)```", section, re.DOTALL).group(1)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        command = re.sub(r"(\S+ serve .*) 3000", rf"exec \1 {port}", command)
        (folder / ".clients").symlink_to(CLIENTS)
        self._url = f"http://127.0.0.1:{port}"
        self._log = folder / "open_webui.log"
        self._token = None
        with open(self._log, "wb") as log:
            self._popen = subprocess.Popen(
                ["bash", "-c", command.replace("http://127.0.0.1:8000", url)],
                cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env={"PATH": os.environ["PATH"], "HOME": str(folder),
                     "DATA_DIR": str(folder / "open_webui"), "WEBUI_SECRET_KEY": "none",
                     "WEBUI_AUTH": "False", "OFFLINE_MODE": "True",
                     # Open WebUI's own embedding engine would download a model.
                     "RAG_EMBEDDING_ENGINE": "openai"})

    def __enter__(self):
        try:
            self.wait_for(self._is_ready, START_S)
            self._token = json.loads(self.ask("v1/auths/signin",
                                              {"email": "", "password": ""}))["token"]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused):
        self._popen.terminate()
        self._popen.wait(60)

    def _is_ready(self):
        try:
            with urllib.request.urlopen(self._url + "/health", timeout=20):
                return True
        except OSError:
            return False

    def wait_for(self, check, seconds):
        """Calls `check` until it returns something true; returns that."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := check():
                return found
            try:
                self._popen.wait(0.2)
                break
            except subprocess.TimeoutExpired:
                pass
        raise AssertionError("Open WebUI ended, or is too slow:\n"
                             + self._log.read_text(errors="replace")[-4000:])

    def ask(self, path, body=None):
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(f"{self._url}/api/{path}", headers=headers,
                                         data=None if body is None else json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=CLIENT_S) as answer:
            return answer.read().decode()

    def take_turn(self, text, chat=None, parent=None):
        """Sends a message as the web page does with default settings, and waits until Open WebUI
        has saved an error, or the answer and the follow-up questions. Returns (the chat, the
        answer's message). `chat`, `parent`: ids of the chat and of its last message; None: a new
        chat."""
        asked, said = str(uuid.uuid4()), str(uuid.uuid4())
        sent = {"stream": True, "model": MODEL.name, "params": {"model_controls": {}},
                "tool_ids": [], "tool_servers": [], "variables": {}, "chat_variables": {},
                "features": {"voice": False, "image_generation": False, "code_interpreter": False,
                             "web_search": False},
                "session_id": "page", "id": said, "parent_id": parent,
                "user_message": {"id": asked, "parentId": parent, "childrenIds": [],
                                 "role": "user", "content": text, "models": [MODEL.name],
                                 "timestamp": int(time.time())},
                "background_tasks": {"follow_up_generation": True}}
        if chat is None:
            sent["background_tasks"].update(title_generation=True, tags_generation=True)
        else:
            sent["chat_id"] = chat
        chat = json.loads(self.ask("chat/completions", sent))["chat_id"]

        def saved():
            found = json.loads(self.ask(f"v1/chats/{chat}"))
            message = found["chat"]["history"]["messages"][said]
            is_whole = message.get("followUps") and (
                "tags_generation" not in sent["background_tasks"] or found["meta"].get("tags"))
            return ("error" in message or is_whole) and (found, message)
        return self.wait_for(saved, CLIENT_S)


class OpenWebUiTest(ForcingProxyTest):

    def test_default_chat_uses_tools_and_tasks(self):
        with self.proxy(force_chat) as (handler, url), OpenWebUi(url, self.folder) as web:
            chat, first = web.take_turn("When is high tide?")
            self.assertNotIn("error", first)
            calls = [item for item in first["output"] if item["type"] == "function_call"]
            self.assertEqual([call["name"] for call in calls], [TOOL])
            self.assertIn("current_timestamp", json.dumps(handler.results))
            self.assertIn(SAID, first["content"])
            self.assertEqual(chat["title"], TASKS["title"])
            self.assertEqual(chat["meta"]["tags"], TASKS["tags"])
            self.assertEqual(first["followUps"], TASKS["follow_ups"])
            # The model itself chooses between text and any of Open WebUI's tools.
            _, second = web.take_turn("And the next one?", chat["id"], first["id"])
            self.assertNotIn("error", second)
            self.assertTrue(second["done"])
            self.assertEqual(second["followUps"], TASKS["follow_ups"])
            self.assertEqual({status for _, status in handler.seen}, {200}, handler.seen)
            # Two turns, the rest of the first turn, a title, tags, twice follow-up questions.
            self.assertGreaterEqual([path for path, _ in handler.seen].count(CHATS), 7)
            _, third = web.take_turn("lamp " * 40000, chat["id"], second["id"])
            self.assertIn("maximum context length is 32768 tokens", third["error"]["content"])
            self.assertEqual(handler.seen[-1], (CHATS, 400))

    def test_api_chats_and_caches(self):
        with self.proxy(force_nothing) as (_, url), OpenWebUi(url, self.folder) as web:
            self.assertEqual([model["id"] for model in json.loads(web.ask("models"))["data"]],
                             [MODEL.name])
            chat = {"model": MODEL.name, "max_tokens": 12, "temperature": 0,
                    "messages": [{"role": "system", "content": "You keep a lighthouse. " * 40},
                                 {"role": "user", "content": "Who climbs the stairs?"}]}
            whole = json.loads(web.ask("chat/completions", chat))
            events = web.ask("chat/completions", {**chat, "stream": True, "stream_options":
                                                  {"include_usage": True}}).splitlines()
            title = json.loads(web.ask("v1/tasks/title/completions", chat))
            asked = {"model": MODEL.name, "temperature": 0, "messages": [
                {"role": "user", "content": "What is the weather in Paris?"}]}
            call = json.loads(web.ask("chat/completions", {
                **asked, "tools": [{"type": "function", "function": {
                    "name": "get_weather", "parameters": CITY}}], "tool_choice": "required"}))
            made = json.loads(web.ask("chat/completions", {
                **asked, "response_format": {"type": "json_schema", "json_schema": {
                    "name": "city", "strict": True, "schema": CITY}}}))
        said = [json.loads(line[6:]) for line in events if line.startswith("data: {")]
        self.assertEqual("".join(choice["delta"].get("content") or "" for event in said
                                 for choice in event["choices"]),
                         whole["choices"][0]["message"]["content"])
        self.assertGreater(said[-1]["usage"]["prompt_tokens_details"]["cached_tokens"], 128)
        self.assertNotEqual(title["choices"][0]["message"]["content"], "")
        self.assertEqual(call["choices"][0]["finish_reason"], "tool_calls")
        function = call["choices"][0]["message"]["tool_calls"][0]["function"]
        self.assertEqual(function["name"], "get_weather")
        self.assertIn(json.loads(function["arguments"])["city"], CITY["properties"]["city"]["enum"])
        self.assertIn(json.loads(made["choices"][0]["message"]["content"])["city"],
                      CITY["properties"]["city"]["enum"])


if __name__ == "__main__":
    if not (CLIENTS / "open_webui").is_dir():
        print("skipped, Open WebUI is not installed: scripts/clients.sh open_webui")
        sys.exit(SKIPPED)
    system_support.BIN_DIR = sys.argv.pop(1)
    unittest.main()
