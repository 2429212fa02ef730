"""A worker's OpenAI API, called by common clients, unmodified from PyPI.

Run as: python clients_test.py BIN_DIR [unittest arguments]. scripts/clients.sh installs the clients
into .clients; without them, the exit code is 77, which ctest shows as skipped. Each test runs an
example of docs/clients.md or examples/clients, and some more calls of the same client.
"""

import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import system_support  # noqa: E402  (path set above)
from system_support import ROOT, SystemTest  # noqa: E402

CLIENTS = pathlib.Path(os.environ.get("HEARTH_CLIENTS", ROOT / ".clients"))
MODEL = ROOT / "models" / "gemma-3-270m"
PAGE = ROOT / "docs" / "clients.md"
SKIPPED = 77
TOLERANCE = 1e-4


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
# A call, its result, the same answer as a stream, and an answer with a schema.
LANGCHAIN_ANTHROPIC = """
import json
from typing import Literal
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    'Weather of a city.'
    return f"18 C in {city}"

class Weather(BaseModel):
    'Weather of a city.'
    city: Literal["Paris", "Rome"]

model = ChatAnthropic(base_url=URL.removesuffix("/v1"), api_key="none", model=MODEL, temperature=0,
                      max_tokens=64)
messages = [HumanMessage("Weather in Paris?")]
answer = None
for chunk in model.bind_tools([get_weather], tool_choice="any",
                              parallel_tool_calls=False).stream(messages):
    answer = chunk if answer is None else answer + chunk
call = answer.tool_calls[0]
messages += [answer, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
last = model.bind_tools([get_weather], tool_choice={"type": "none"}).bind(max_tokens=12)
said = last.invoke(messages)
streamed = None
for chunk in last.stream(messages):
    streamed = chunk if streamed is None else streamed + chunk
def count(usage):
    return {name: usage[name] for name in ("input_tokens", "output_tokens")}
print(json.dumps({"tool": call["name"], "said": said.text, "streamed": streamed.text,
                  "usage": count(said.usage_metadata),
                  "streamed_usage": count(streamed.usage_metadata),
                  "parsed": model.with_structured_output(Weather).invoke(messages).city}))
"""
# A streamed call, its result and a streamed answer, with both of OpenAI's APIs. The first step must
# call the tool; the second step may not.
PYDANTIC_AI = """
import json
from typing import Literal
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

def ask(kind):
    cities = []
    def settings(context):
        return {"temperature": 0, "max_tokens": 64, "parallel_tool_calls": False,
                "tool_choice": "none" if cities else "required"}
    agent = Agent(kind(MODEL, provider=OpenAIProvider(base_url=URL, api_key="none")),
                  model_settings=settings)
    @agent.tool_plain
    def get_weather(city: Literal["Paris", "Rome"]) -> str:
        'Weather of a city.'
        cities.append(city)
        return "18 C"
    said = "".join(agent.run_stream_sync("Weather in Paris?").stream_text(delta=True))
    return {"cities": cities, "said": said}
print(json.dumps([ask(OpenAIChatModel), ask(OpenAIResponsesModel)]))
"""
INSTRUCTOR = """
import json
from typing import Literal
import instructor
from openai import OpenAI
from pydantic import BaseModel

class Weather(BaseModel):
    city: Literal["Paris", "Rome"]

client = instructor.from_openai(OpenAI(base_url=URL, api_key="none"))
parts = list(client.create_partial(
    model=MODEL, temperature=0, response_model=Weather,
    messages=[{"role": "user", "content": "Weather in Paris?"}]))
print(json.dumps([len(parts), parts[-1].city]))
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
    --synthesis-max-isl 2100 --synthesis-max-osl 8 --random-seed 1 \\
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

    def example(self, name, is_tools=False, folder=None):
        """Runs the example of a client's section, or its example with tools: the second block, or
        the file that the section names. `folder`: of another environment than the section's.
        Returns the last line, parsed as JSON."""
        section = self.section(name)
        program = self.folder / "example.py"
        blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        if file := re.search(r"`(examples/clients/\w+\.py)`", section):
            blocks.append((ROOT / file.group(1)).read_text())
        program.write_text(blocks[is_tools].replace("http://127.0.0.1:8000",
                                                    self.url.removesuffix("/v1")))
        folder = folder or re.search(r"`\.clients/(\w+)`", section).group(1)
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
        more = self.answer("openai", OPENAI)
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

    def test_anthropic_example_works(self):
        said = self.example("anthropic")
        self.assertEqual((said["finish"], said["tool"]), ("tool_use", "get_weather"))
        self.assertIn(said["city"], ("Paris", "Rome"))
        self.assertIn(said["parsed"], ("Paris", "Rome"))
        self.assertTrue(said["said"])
        self.assertGreater(said["cached"], 0)

    def test_langchain_anthropic_gets_calls(self):
        said = self.answer("langchain_anthropic", LANGCHAIN_ANTHROPIC)
        self.assertEqual(said["tool"], "get_weather")
        self.assertIn(said["parsed"], ("Paris", "Rome"))
        self.assertTrue(said["said"])
        self.assertEqual(said["streamed"], said["said"])
        self.assertGreater(said["usage"]["input_tokens"], 100)
        self.assertEqual(said["usage"], said["streamed_usage"])

    def test_clients_get_calls_and_json(self):
        """Checks a call (streamed if the client can), its result, and an answer with a schema."""
        for name, folder in (("openai", None), ("openai", "openai2"), ("LangChain", None),
                             ("LlamaIndex", None), ("litellm", None)):
            with self.subTest(name, folder=folder):
                said = self.example(name, is_tools=True, folder=folder)
                self.assertEqual((said["finish"], said["tool"]), ("tool_calls", "get_weather"))
                self.assertIn(said["city"], ("Paris", "Rome"))
                self.assertIn(said["parsed"], ("Paris", "Rome"))
                self.assertTrue(said["said"])
        for name in ("pydantic-ai", "instructor"):
            with self.subTest(name):
                said = self.example(name)
                self.assertEqual(len(said), 2)
                self.assertLessEqual(set(said.values()), {"Paris", "Rome"})

    def answer(self, client, program):
        """Runs a program with URL and MODEL in a client's environment. Returns its last line,
        parsed as JSON."""
        text = f"URL, MODEL = {self.url!r}, {MODEL.name!r}\n{program}"
        return json.loads(self.run_here(CLIENTS / client / "bin" / "python", "-c",
                                        text).splitlines()[-1])

    def test_pydantic_ai_streams_tool_round(self):
        for said in self.answer("pydantic_ai", PYDANTIC_AI):
            self.assertEqual(len(said["cities"]), 1)
            self.assertIn(said["cities"][0], ("Paris", "Rome"))
            self.assertTrue(said["said"])

    def test_instructor_streams_parts(self):
        parts, city = self.answer("instructor", INSTRUCTOR)
        self.assertGreater(parts, 1)
        self.assertIn(city, ("Paris", "Rome"))

    def responses_example(self, client):
        """Runs examples/clients/responses_CLIENT.py, without a version in the client's name.
        Returns the last line, parsed as JSON."""
        program = self.folder / "example.py"
        name = client.rstrip("2")
        text = (ROOT / "examples" / "clients" / f"responses_{name}.py").read_text()
        program.write_text(text.replace("http://127.0.0.1:8000", self.url.removesuffix("/v1")))
        return json.loads(self.run_here(CLIENTS / client / "bin" / "python",
                                        program).splitlines()[-1])

    def test_clients_use_responses(self):
        """Checks a call, its result, a schema, a stream and too long a prompt."""
        said = {client: self.responses_example(client)
                for client in ("openai", "openai2", "agents", "pydantic_ai", "litellm", "langchain",
                               "llamaindex", "instructor")}
        for client, result in said.items():
            with self.subTest(client):
                self.assertIn(result["city"], ("Paris", "Rome"))
                self.assertIn(result.get("parsed", "Rome"), ("Paris", "Rome"))
                self.assertTrue(result.get("said", "not asked"))
        for client in ("openai", "openai2"):
            self.assertEqual(said[client]["tool"], "get_weather")
            self.assertEqual(said[client]["failed"], ["context_length_exceeded", "input"])
            self.assertGreater(said[client]["cached"], 0)
        for client in ("langchain", "llamaindex"):
            self.assertEqual(said[client]["tool"], "get_weather")
        self.assertEqual(said["langchain"]["failed"], "OpenAIContextOverflowError")
        self.assertEqual(said["llamaindex"]["failed"], "BadRequestError")
        self.assertEqual(said["instructor"]["failed"],
                         ["InstructorRetryException", "BadRequestError"])
        self.assertEqual(said["pydantic_ai"]["failed"], "ModelContextWindowExceededError")
        self.assertIn("response.function_call_arguments.done", said["agents"]["kinds"])
        self.assertGreater(said["agents"]["input"], 0)
        self.assertEqual(said["litellm"]["stop"], "tool_use")
        self.assertEqual(said["litellm"]["failed"], "ContextWindowExceededError")
        self.assertGreater(said["litellm"]["events"], 2)

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
        # On a busy machine, the requests of the first replay overtake the prefixes that they share.
        for least in (1, 10):
            self.assertIn("Time to First Token", self.run_here("bash", "-ec", replay))
            file = next(self.folder.glob("artifacts/*fixed_schedule/profile_export_aiperf.json"))
            report = json.loads(file.read_text())
            self.assertEqual(report["request_count"]["avg"], 10)
            # All ten prompts begin with the same block of 512 tokens.
            self.assertGreaterEqual(report["total_usage_prompt_cache_read_tokens"]["avg"],
                                    least * 512)


# {client: function ask(model, API key, text)}.
ASKS = {
    "openai": """
from openai import OpenAI
def ask(model, key, text):
    OpenAI(base_url=URL, api_key=key, max_retries=0).chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], max_tokens=4)
""",
    "anthropic": """
from anthropic import Anthropic
def ask(model, key, text):
    Anthropic(base_url=URL.removesuffix("/v1"), api_key=key, max_retries=0).messages.create(
        model=model, messages=[{"role": "user", "content": text}], max_tokens=4)
""",
    "langchain_anthropic": """
from langchain_anthropic import ChatAnthropic
def ask(model, key, text):
    ChatAnthropic(base_url=URL.removesuffix("/v1"), api_key=key, model=model, max_retries=0,
                  max_tokens=4).invoke(text)
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
""",
    "llamaindex": """
from llama_index.llms.openai_like import OpenAILike
def ask(model, key, text):
    OpenAILike(api_base=URL, api_key=key, model=model, is_chat_model=True, max_retries=0,
               max_tokens=4).complete(text)
""",
    "instructor": """
import instructor
from openai import OpenAI
from pydantic import BaseModel
class Weather(BaseModel):
    city: str
def ask(model, key, text):
    instructor.from_openai(OpenAI(base_url=URL, api_key=key, max_retries=0)).create(
        model=model, response_model=Weather, messages=[{"role": "user", "content": text}],
        max_tokens=4, max_retries=0)
""",
    "agents": """
from agents import Agent, OpenAIResponsesModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI
set_tracing_disabled(True)
def ask(model, key, text):
    client = AsyncOpenAI(base_url=URL, api_key=key, max_retries=0)
    Runner.run_sync(Agent("clerk", model=OpenAIResponsesModel(model, client)), text)
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
                folder = client.lower().replace("-", "_").removesuffix(" sdk")
                with self.subTest(client):
                    program = f"URL, MODEL = {url!r}, {MODEL.name!r}{ASKS[folder]}{CASES}"
                    done = subprocess.run([CLIENTS / folder / "bin" / "python", "-c", program],
                                          capture_output=True, text=True, timeout=600,
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
    if not (CLIENTS / "openai" / "installed").is_file():
        print("skipped, the clients are not installed: scripts/clients.sh")
        sys.exit(SKIPPED)
    system_support.BIN_DIR = sys.argv.pop(1)
    unittest.main()
