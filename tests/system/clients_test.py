"""A worker's OpenAI API, called by common clients, unmodified from PyPI.

Run as: python clients_test.py BIN_DIR [unittest arguments]. scripts/clients.sh installs the clients
into .clients; without them, the exit code is 77, which ctest shows as skipped. Each test runs an
example of docs/clients.md, and some more calls of the same client.
"""

import functools
import hashlib
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

import system_support
from system_support import ROOT, SystemTest

CLIENTS = pathlib.Path(os.environ.get("HEARTH_CLIENTS", ROOT / ".clients"))
MODEL = ROOT / "models" / "gemma-3-270m"
PAGE = ROOT / "docs" / "clients.md"
SKIPPED = 77
TOLERANCE = 1e-4
START_S = 240  # seconds; Open WebUI imports 1 GB of modules and makes its database


# The example's chat with the asynchronous client, and a completion with several answers.
OPENAI = """
import asyncio, json
from openai import AsyncOpenAI, OpenAI
async def ask():
    async with AsyncOpenAI(base_url=URL, api_key="none") as client:
        return await client.chat.completions.create(
            model=MODEL, max_tokens=12, temperature=0, extra_body={"min_p": 0.05},
            messages=[{"role": "system", "content": "You keep a lighthouse. " * 40},
                      {"role": "user", "content": "Who climbs the stairs?"}])
client = OpenAI(base_url=URL, api_key="none")
drawn = client.completions.create(model=client.models.list().data[0].id, prompt="Water boils at",
                                  max_tokens=4, n=2, seed=3, logprobs=1,
                                  extra_body={"repetition_penalty": 1.1})
print(json.dumps({"asynchronous": asyncio.run(ask()).choices[0].message.content,
                  "choices": [choice.text for choice in drawn.choices],
                  "logprobs": drawn.choices[0].logprobs.token_logprobs}))
"""
# Replays the first 15 seconds of a trace; limits keep prompts and answers small enough for two
# cores. With traces, AIPerf 0.13 finds a tokenizer only in Hugging Face's cache, so the model's
# folder is linked there.
REPLAY = """
xz -dc bench/traces/conversation_trace.jsonl.xz > conversation_trace.jsonl
hub=~/.cache/huggingface/hub/models--hearth--gemma-3-270m
mkdir -p $hub/refs $hub/snapshots && printf local > $hub/refs/main
ln -sfn "$PWD/models/gemma-3-270m" $hub/snapshots/local
HF_HUB_OFFLINE=1 .clients/aiperf/bin/aiperf profile --model gemma-3-270m \\
    --tokenizer hearth/gemma-3-270m --use-server-token-count \\
    --url URL --endpoint-type chat --streaming \\
    --input-file conversation_trace.jsonl --custom-dataset-type mooncake_trace \\
    --synthesis-max-isl 2100 --synthesis-max-osl 8 \\
    --fixed-schedule --fixed-schedule-end-offset 15000
"""


class Clients(SystemTest):

    def setUp(self):
        super().setUp()
        worker = self.cluster.worker(MODEL, f"embedded:{self.folder / 'data'}", pages=("http",))
        self.url = worker.url("http") + "/v1"
        # Links the folders that the page's commands name.
        for name, target in ((".clients", CLIENTS), ("models", ROOT / "models"),
                             ("bench", ROOT / "bench")):
            (self.folder / name).symlink_to(target)

    def run_here(self, *argv):
        """Runs a program with the test's folder as home; returns its stdout."""
        done = subprocess.run(argv, cwd=self.folder, capture_output=True, text=True, timeout=600,
                              check=False, env={"PATH": os.environ["PATH"],
                                                "HOME": str(self.folder),
                                                "OPENAI_API_KEY": "none"})
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-4000:])
        return done.stdout

    def section(self, name):
        """Returns the page's section about a client, with this worker's address."""
        text = PAGE.read_text().split(f"## {name}\n")[1].split("\n## ")[0]
        return text.replace("http://127.0.0.1:8000", self.url.removesuffix("/v1"))

    def example(self, name, number=0):
        """Runs an example of the client's page; returns its last line, parsed as JSON."""
        section = self.section(name)
        program = self.folder / "example.py"
        program.write_text(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[number])
        folder = re.search(r"`\.clients/(\w+)`", section).group(1)
        return json.loads(self.run_here(CLIENTS / folder / "bin" / "python",
                                        program).splitlines()[-1])

    def commands(self, name):
        """Runs the first command block of a client's section; returns the output."""
        block = re.search(r"```console\n(.*?)```", self.section(name), re.DOTALL).group(1)
        return self.run_here("bash", "-ec", re.sub(r"^\$ ", "", block, flags=re.MULTILINE))

    def tokens(self, text):
        request = urllib.request.Request(
            self.url.replace("/v1", "/tokenize"), headers={"Content-Type": "application/json"},
            data=json.dumps({"prompt": text, "add_special_tokens": False}).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())["tokens"]

    def test_openai_example_works(self):
        said = self.example("openai")
        self.assertEqual(said["streamed"], said["whole"])
        self.assertGreater(said["cached"], 0)
        more = json.loads(self.run_here(CLIENTS / "openai" / "bin" / "python", "-c",
                                        f"URL, MODEL = {self.url!r}, {MODEL.name!r}{OPENAI}"))
        self.assertEqual(more["asynchronous"], said["whole"])
        self.assertEqual(len(more["choices"]), 2)
        self.assertLessEqual(max(more["logprobs"]), 0)

    def test_langchain_example_works(self):
        said = self.example("LangChain")
        self.assertEqual(said["streamed"], said["whole"])
        self.assertGreater(said["cached"], 0)

    def test_llamaindex_example_works(self):
        said = self.example("LlamaIndex")
        self.assertEqual(said["streamed"], said["whole"])

    def test_litellm_example_works(self):
        said = self.example("litellm")
        self.assertEqual(said["streamed"], said["whole"])
        self.assertGreater(said["cached"], 0)

    def test_clients_get_calls_and_json(self):
        """Checks a call (streamed if the client can), its result, and an answer with a schema."""
        for name in ("openai", "LangChain", "LlamaIndex", "litellm"):
            with self.subTest(name):
                said = self.example(name, 1)
                self.assertEqual((said["finish"], said["tool"]), ("tool_calls", "get_weather"))
                self.assertIn(said["city"], ("Paris", "Rome"))
                self.assertIn(said["parsed"], ("Paris", "Rome"))
                self.assertTrue(said["said"])
        for name in ("pydantic-ai", "instructor"):
            with self.subTest(name):
                said = self.example(name)
                self.assertEqual(len(said), 2)
                self.assertLessEqual(set(said.values()), {"Paris", "Rome"})

    def test_lm_eval_likelihoods_equal_transformers(self):
        said = self.example("lm-eval")
        for (context, continuation), (logprob, greedy) in zip(said["texts"], said["likelihoods"],
                                                              strict=True):
            want, is_greedy = likelihood(self.tokens(context + continuation),
                                         len(self.tokens(context)))
            self.assertLess(abs(logprob - want), TOLERANCE * max(1, abs(want)),
                            (context, continuation))
            self.assertEqual(greedy, is_greedy)

    def test_aiperf_replays_trace(self):
        self.assertIn("Time to First Token", self.commands("AIPerf"))
        replay = REPLAY.replace("URL", self.url.removesuffix("/v1"))
        self.assertIn("Time to First Token", self.run_here("bash", "-ec", replay))
        report = next(self.folder.glob("artifacts/*fixed_schedule/profile_export_aiperf.json"))
        told = json.loads(report.read_text())
        self.assertEqual(told["request_count"]["avg"], 10)
        # The first two requests arrive at the same time; the other eight share a first block of 512
        # tokens with them.
        self.assertGreaterEqual(told["total_usage_prompt_cache_read_tokens"]["avg"], 8 * 512)

    @unittest.skipUnless((CLIENTS / "open_webui").is_dir(), "scripts/clients.sh open_webui")
    def test_open_webui_chats_and_caches(self):
        with OpenWebUi(self.section("Open WebUI"), self.folder) as web:
            self.assertEqual([model["id"] for model in json.loads(web.ask("models"))["data"]],
                             [MODEL.name])
            chat = {"model": MODEL.name, "max_tokens": 12, "temperature": 0, "session_id": "page",
                    "messages": [{"role": "system", "content": "You keep a lighthouse. " * 40},
                                 {"role": "user", "content": "Who climbs the stairs?"}]}
            whole = json.loads(web.ask("chat/completions", chat))
            events = web.ask("chat/completions", {**chat, "stream": True, "stream_options":
                                                  {"include_usage": True}}).splitlines()
            title = json.loads(web.ask("v1/tasks/title/completions", chat))
        said = [json.loads(line[6:]) for line in events if line.startswith("data: {")]
        self.assertEqual("".join(choice["delta"].get("content", "") for event in said
                                 for choice in event["choices"]),
                         whole["choices"][0]["message"]["content"])
        self.assertGreater(said[-1]["usage"]["prompt_tokens_details"]["cached_tokens"], 128)
        self.assertNotEqual(title["choices"][0]["message"]["content"], "")


class OpenWebUi:
    """Starts Open WebUI with the page's command, on a free port, for one user without password."""

    def __init__(self, section, folder):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        command = re.search(r"```console\n\$ (.*?)```", section, re.DOTALL).group(1)
        self._url = f"http://127.0.0.1:{port}"
        self._log = folder / "open_webui.log"
        with open(self._log, "wb") as log:
            self._popen = subprocess.Popen(
                ["bash", "-c", re.sub(r"(\S+ serve .*) 3000", rf"exec \1 {port}", command)],
                cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env={"PATH": os.environ["PATH"], "HOME": str(folder),
                     "DATA_DIR": str(folder / "open_webui"), "WEBUI_SECRET_KEY": "none",
                     "WEBUI_AUTH": "False", "OFFLINE_MODE": "True",
                     # Open WebUI's own embedding engine would download a model.
                     "RAG_EMBEDDING_ENGINE": "openai"})

    def __enter__(self):
        try:
            self._wait_ready()
            self._token = None
            self._token = json.loads(self.ask("v1/auths/signin",
                                              {"email": "", "password": ""}))["token"]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused):
        self._popen.terminate()
        self._popen.wait(60)

    def _wait_ready(self):
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            try:
                self._popen.wait(0.2)
                break
            except subprocess.TimeoutExpired:
                pass
            try:
                with urllib.request.urlopen(self._url + "/health", timeout=20):
                    return
            except OSError:
                pass
        raise AssertionError("Open WebUI did not start:\n" + self._log.read_text()[-4000:])

    def ask(self, path, body=None):
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(f"{self._url}/api/{path}", headers=headers,
                                         data=None if body is None else json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.read().decode()


# {client: function ask(model, API key, text)}.
ASKS = {
    "openai": """
from openai import OpenAI
def ask(model, key, text):
    OpenAI(base_url=URL, api_key=key, max_retries=0).chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], max_tokens=4)
""",
    "langchain": """
from langchain_openai import ChatOpenAI
def ask(model, key, text):
    ChatOpenAI(base_url=URL, api_key=key, model=model, max_retries=0, max_tokens=4).invoke(text)
""",
    "litellm": """
import litellm
litellm.suppress_debug_info = True
def ask(model, key, text):
    litellm.completion(model="openai/" + model, api_base=URL, api_key=key, max_retries=0,
                       messages=[{"role": "user", "content": text}], max_tokens=4)
""",
    "pydantic_ai": """
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
def ask(model, key, text):
    client = AsyncOpenAI(base_url=URL, api_key=key, max_retries=0)
    Agent(OpenAIChatModel(model, provider=OpenAIProvider(openai_client=client))).run_sync(text)
"""}
CASES = """
import sys
for case in ((MODEL, "right", "lamp " * 40000), ("other", "right", "lamp"),
             (MODEL, "wrong", "lamp"), (MODEL, "right", "lamp")):
    try:
        ask(*case)
    except Exception as error:
        print(type(error).__name__)
        print(error, file=sys.stderr)
"""


class ClientErrors(SystemTest):

    def test_clients_raise_documented_exceptions(self):
        """Each client makes four failing requests: too long a prompt, a wrong model, a wrong key, a
        full queue."""
        identities = self.folder / "identities.json"
        identities.write_text(json.dumps({"identities": [
            {"name": "caller", "role": "tenant",
             "token_sha256": hashlib.sha256(b"right").hexdigest()}]}))
        worker = self.cluster.worker(MODEL, f"embedded:{self.folder / 'data'}",
                                     "--identities-file", identities, "--max-running", 1,
                                     "--max-queue", 0, pages=("http",))
        url = worker.url("http") + "/v1"
        # Occupies the only place for a running request.
        request = urllib.request.Request(
            url + "/completions", headers={"Content-Type": "application/json",
                                           "X-Api-Key": "right"},
            data=json.dumps({"prompt": "lamp", "max_tokens": 30000, "ignore_eos": True,
                             "stream": True}).encode())
        with urllib.request.urlopen(request, timeout=60) as running:
            running.readline()
            rows = re.findall(r"\n\| (.*) \|", PAGE.read_text().split("## Errors\n")[1])
            self.assertEqual(len(rows), 2 + len(ASKS))  # two header rows
            for row in rows[2:]:
                client, *wanted = row.replace("`", "").split(" | ")
                folder = client.lower().replace("-", "_")
                with self.subTest(client):
                    program = f"URL, MODEL = {url!r}, {MODEL.name!r}{ASKS[folder]}{CASES}"
                    done = subprocess.run([CLIENTS / folder / "bin" / "python", "-c", program],
                                          capture_output=True, text=True, timeout=300,
                                          check=False, env={"PATH": os.environ["PATH"],
                                                            "LITELLM_LOCAL_MODEL_COST_MAP": "True"})
                    self.assertEqual(done.stdout.split(), wanted, done.stderr[-4000:])


@functools.cache
def transformers_model():
    import torch
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)


def likelihood(whole, begin):
    """Returns (log probability of the tokens from `begin` on, whether each is the likeliest token),
    as computed by transformers."""
    import torch
    with torch.no_grad():
        logits = transformers_model()(torch.tensor([whole])).logits[0]
        logprobs = torch.log_softmax(logits.double(), -1)
    own = [logprobs[i - 1, whole[i]].item() for i in range(begin, len(whole))]
    return sum(own), all(int(logprobs[i - 1].argmax()) == whole[i]
                         for i in range(begin, len(whole)))


if __name__ == "__main__":
    if not CLIENTS.is_dir():
        print("skipped, the clients are not installed: scripts/clients.sh")
        sys.exit(SKIPPED)
    system_support.BIN_DIR = sys.argv.pop(1)
    unittest.main()
