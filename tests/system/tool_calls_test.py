"""Tests tool calls of the real base model over HTTP; the package jsonschema validates them.

Usage: tool_calls_test.py BIN_DIR MODEL [unittest arguments]. HEARTH_GRAMMAR_SEEDS: number of
answers for each set of tools (default 4).
"""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import sys
import tempfile
import unittest
import urllib.request

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from hearth_procs import Cluster  # noqa: E402  (path set above)

SEEDS = int(os.environ.get("HEARTH_GRAMMAR_SEEDS", "4"))
ROUNDS = 10
MIN_RESTORED = 0.95


def tool(name, description, **properties):
    return {"type": "function", "function": {
        "name": name, "description": description, "parameters": {
            "type": "object", "properties": properties, "required": list(properties)[:2]}}}


TEXT = {"type": "string", "maxLength": 24}
COUNT = {"type": "integer", "minimum": 0, "maximum": 999}
TOOLS = [
    tool("get_weather", "Weather of a city", city=TEXT, unit={"enum": ["celsius", "fahrenheit"]}),
    tool("read_file", "Reads lines of a file", path=TEXT, first=COUNT, count=COUNT),
    tool("list_folder", "Lists a folder", path=TEXT),
    tool("write_file", "Writes a file", path=TEXT, text=TEXT),
    tool("search", "Searches files", pattern=TEXT, kind={"enum": ["text", "name"]}, most=COUNT),
    tool("run", "Runs a command", command=TEXT, timeout_s=COUNT),
    tool("fetch", "Fetches a page", url=TEXT, headers={
        "type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 2}),
    tool("plan", "Notes the next steps", steps={
        "type": "array", "maxItems": 3, "items": {
            "type": "object", "properties": {"step": TEXT, "done": {"type": "boolean"}},
            "required": ["step", "done"]}}),
    tool("ask_user", "Asks the user", question=TEXT),
    tool("convert", "Converts money", amount={"type": "number", "minimum": 0, "maximum": 1000},
         to={"enum": ["EUR", "USD", "JPY"]}),
    tool("timer", "Starts a timer", minutes=COUNT, label={"type": ["string", "null"],
                                                          "maxLength": 12}),
    tool("finish", "Ends the task"),
]
QUESTIONS = ("Weather in Paris?", "Which files are in src?", "Set a timer for tea.",
             "How many yen are 20 euros?", "Find the word lamp.")


def closed(schema):
    """Returns a copy of the schema whose objects allow no unlisted fields. The server adds the
    same rule."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    return {**made, "additionalProperties": False} if "properties" in made else made


SCHEMAS = {one["function"]["name"]: closed(one["function"]["parameters"]) for one in TOOLS}


@dataclasses.dataclass
class Step:
    """A call of an earlier turn and its result."""
    call_id: str
    name: str
    arguments: dict
    result: str

    def text(self):
        """Returns the arguments as JSON in another layout than the model's."""
        return json.dumps(self.arguments, separators=(",", ":"))


@dataclasses.dataclass
class Usage:
    """Tokens of one answer."""
    prompt: int
    restored: int
    generated: int


class ChatApi:
    path = "/v1/chat/completions"

    @staticmethod
    def body(system, question, steps):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        for step in steps:
            messages += [
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": step.call_id, "type": "function", "function": {
                        "name": step.name, "arguments": step.text()}}]},
                {"role": "tool", "tool_call_id": step.call_id, "content": step.result}]
        return {"messages": messages, "tools": TOOLS, "temperature": 0,
                "parallel_tool_calls": False}

    @staticmethod
    def read(answer):
        usage, choice = answer["usage"], answer["choices"][0]
        tokens = Usage(usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"],
                     usage["completion_tokens"])
        if choice["finish_reason"] != "tool_calls":
            return None, tokens
        call = choice["message"]["tool_calls"][0]
        function = call["function"]
        return (call["id"], function["name"], json.loads(function["arguments"])), tokens


class ResponsesApi:
    path = "/v1/responses"

    @staticmethod
    def body(system, question, steps):
        items = [{"role": "user", "content": question}]
        for step in steps:
            items += [{"type": "function_call", "call_id": step.call_id, "name": step.name,
                       "arguments": step.text()},
                      {"type": "function_call_output", "call_id": step.call_id,
                       "output": step.result}]
        return {"instructions": system, "input": items, "temperature": 0,
                "tools": [{"type": "function", **one["function"]} for one in TOOLS],
                "tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 256}

    @staticmethod
    def read(answer):
        usage = answer["usage"]
        tokens = Usage(usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"],
                     usage["output_tokens"])
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        if answer["status"] != "completed" or not calls:
            return None, tokens
        return (calls[0]["call_id"], calls[0]["name"], json.loads(calls[0]["arguments"])), tokens


class MessagesApi:
    path = "/v1/messages"

    @staticmethod
    def body(system, question, steps):
        messages = [{"role": "user", "content": question}]
        for step in steps:
            messages += [
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": step.call_id, "name": step.name,
                     "input": step.arguments}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": step.call_id, "content": step.result}]}]
        tools = [{"name": one["function"]["name"], "description": one["function"]["description"],
                  "input_schema": one["function"]["parameters"]} for one in TOOLS]
        return {"system": system, "messages": messages, "tools": tools, "temperature": 0,
                "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
                "max_tokens": 256}

    @staticmethod
    def read(answer):
        usage = answer["usage"]
        prompt = sum(usage[name] for name in ("input_tokens", "cache_read_input_tokens",
                                              "cache_creation_input_tokens"))
        tokens = Usage(prompt, usage["cache_read_input_tokens"], usage["output_tokens"])
        if answer["stop_reason"] != "tool_use":
            return None, tokens
        call = next(block for block in answer["content"] if block["type"] == "tool_use")
        return (call["id"], call["name"], call["input"]), tokens


APIS = (ChatApi, ResponsesApi, MessagesApi)


class ToolCalls(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory(prefix="hearth-tools-")
        folder = pathlib.Path(cls.scratch.name)
        cls.cluster = Cluster(BIN_DIR, folder / "processes")
        worker = cls.cluster.worker(MODEL, f"embedded:{folder / 'data'}", pages=("http",))
        cls.url = worker.url("http")

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__()
        cls.scratch.cleanup()

    def ask(self, path="/v1/chat/completions", **body):
        if path == ChatApi.path:
            body = {"max_tokens": 256, "tool_choice": "required", **body}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            if not body.get("stream"):
                return json.load(answer)
            return [json.loads(line[6:]) for line in answer if line.startswith(b"data: {")]

    def check(self, message):
        for call in message["tool_calls"]:
            self.assertEqual(call["type"], "function")
            jsonschema.Draft202012Validator(SCHEMAS[call["function"]["name"]]).validate(
                json.loads(call["function"]["arguments"]))

    def test_finished_calls_are_valid(self):
        asked = [(count, seed) for count in (3, len(TOOLS)) for seed in range(SEEDS)]

        def answer(one):
            count, seed = one
            return self.ask(
                tools=TOOLS[:count], seed=seed, temperature=seed % 2,
                messages=[{"role": "user", "content": QUESTIONS[seed % len(QUESTIONS)]}])

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(answer, asked))
        ended = 0
        for one, said in zip(asked, answers):
            with self.subTest(tools=one[0], seed=one[1]):
                choice = said["choices"][0]
                if choice["finish_reason"] == "length":
                    continue
                ended += 1
                self.assertEqual(choice["finish_reason"], "tool_calls")
                self.assertIsNone(choice["message"]["content"])
                self.check(choice["message"])
        print(f"{ended} of {len(asked)} answers ended")
        self.assertGreater(ended, len(asked) // 2)

    def test_stream_equals_whole_answer(self):
        for choice in ("required", "auto"):
            asked = {"tools": TOOLS, "tool_choice": choice, "seed": 5, "temperature": 0,
                     "messages": [{"role": "user", "content": "Weather in Paris?"}]}
            whole = self.ask(**asked)["choices"][0]
            content, calls = "", []
            for event in self.ask(**asked, stream=True):
                delta = event["choices"][0]["delta"]
                content += delta.get("content") or ""
                for call in delta.get("tool_calls", []):
                    if "id" in call:
                        calls.append(call["function"])
                    else:
                        calls[call["index"]]["arguments"] += call["function"]["arguments"]
            self.assertEqual(content, whole["message"]["content"] or "")
            self.assertEqual(calls, [call["function"]
                                     for call in whole["message"].get("tool_calls", [])])

    def turns(self, api, system, rounds):
        """Returns the usage of each turn of an agent. The client sends each call back with its
        arguments in another JSON layout."""
        steps, usages = [], []
        for turn in range(rounds):
            answer = self.ask(api.path, **api.body(system, "Which files are in src?", steps))
            call, usage = api.read(answer)
            self.assertIsNotNone(call, answer)
            usages.append(usage)
            steps.append(Step(*call, result=f"result {turn} " * 5))
        return usages

    def test_turn_restores_earlier_turns(self):
        for number, api in enumerate(APIS):
            # Each API has its own system text, so that it restores only its own turns.
            usages = self.turns(api, f"You are agent {number}. " * 20, ROUNDS)
            before = 0
            for turn, usage in enumerate(usages):
                print(f"{api.path}, turn {turn}: {usage.prompt} tokens, {usage.restored} restored, "
                      f"{before} tokens after the previous turn")
                with self.subTest(api=api.path, turn=turn):
                    self.assertGreaterEqual(usage.restored, MIN_RESTORED * before)
                before = usage.prompt + usage.generated

    def test_apis_share_prompts(self):
        """All APIs make the same prompt of one conversation, so that they restore what another has
        kept. Temperature 0 makes their answers equal."""
        first = self.turns(APIS[0], "You are an agent of three APIs. " * 20, 3)
        for api in APIS[1:]:
            with self.subTest(api=api.path):
                again = self.turns(api, "You are an agent of three APIs. " * 20, 3)
                for one, other in zip(first, again):
                    self.assertEqual((one.prompt, one.generated), (other.prompt, other.generated))
                    self.assertGreaterEqual(other.restored, MIN_RESTORED * one.prompt)


if __name__ == "__main__":
    BIN_DIR, MODEL = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
