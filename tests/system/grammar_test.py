"""Answers of the base model with JSON schemas, checked by the validator of the package jsonschema.

Usage: grammar_test.py BIN_DIR MODEL [unittest arguments]. HEARTH_GRAMMAR_SEEDS: number of greedy
answers and number of sampled answers for each schema (default 2).
"""

import collections
import concurrent.futures
import datetime
import decimal
import json
import os
import pathlib
import sys
import tempfile
import unittest

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from hearth_procs import Cluster  # noqa: E402  (path set above)

SEEDS = int(os.environ.get("HEARTH_GRAMMAR_SEEDS", "2"))
MAX_TOKENS = 512
FORMATS = jsonschema.FormatChecker()


@FORMATS.checks("date-time", raises=ValueError)
def is_date_time(value):
    if isinstance(value, str):
        datetime.datetime.fromisoformat(value)
        return value[10] in "Tt" and value[-1] in "Zz0123456789" and len(value) > 19
    return True


def exact(text):
    """Returns the JSON value with exact decimals: in binary, 224.89 is no multiple of 0.01."""
    return json.loads(text, parse_float=decimal.Decimal)


def closed(properties, required=None, **more):
    return {"type": "object", "properties": properties,
            "required": list(properties) if required is None else required,
            "additionalProperties": False, **more}


TEXT = {"type": "string", "maxLength": 60}
LINE = closed({"item": TEXT, "count": {"type": "integer", "minimum": 1, "maximum": 99},
               "price": {"type": "number", "minimum": 0, "maximum": 1000, "multipleOf": 0.01}})
SCHEMAS = {
    "weather": closed({"location": TEXT, "unit": {"enum": ["celsius", "fahrenheit"]}}),
    "invoice": closed({"number": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
                       "date": {"type": "string", "format": "date"},
                       "lines": {"type": "array", "items": {"$ref": "#/$defs/line"},
                                 "minItems": 1, "maxItems": 3}}, **{"$defs": {"line": LINE}}),
    "ui": {"$ref": "#/$defs/node", "$defs": {"node": closed({
        "type": {"enum": ["div", "button", "field"]}, "label": TEXT,
        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}})}},
    "event": {"anyOf": [
        closed({"kind": {"const": "login"}, "id": {"type": "string", "format": "uuid"}}),
        closed({"kind": {"const": "visit"}, "at": {"type": "string", "format": "date-time"}})]},
    "issue": closed({"title": TEXT, "body": TEXT, "labels": {
        "type": "array", "items": {"enum": ["bug", "docs", "question"]}, "maxItems": 3},
        "milestone": {"type": ["integer", "null"]}}, required=["title"]),
    "number": {"type": "number", "exclusiveMinimum": -5, "maximum": 99.5, "multipleOf": 0.25},
    "list": {"type": "array", "prefixItems": [{"type": "boolean"}, TEXT], "minItems": 2,
             "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 6},
    "map": {"type": "object", "patternProperties": {"^[a-z]{1,8}$": {"type": "boolean"}},
            "additionalProperties": False, "minProperties": 1, "maxProperties": 4},
    "all": {"allOf": [{"type": "object", "properties": {"a": TEXT}, "required": ["a"]},
                      {"properties": {"b": {"type": "integer"}}, "required": ["b"]}]},
    "mail": closed({"to": {"type": "string", "format": "email", "maxLength": 40},
                    "from": {"type": "string", "format": "ipv4"},
                    "text": {"type": "string", "minLength": 5, "maxLength": 120}}),
}
TOPICS = ("a lighthouse", "Paris in May", "a broken pump", "tea", "the last train", "a red kite",
          "an old map", "rain in the hills", "a quiet library", "two brothers")


class GrammarTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory(prefix="hearth-grammar-")
        folder = pathlib.Path(cls.scratch.name)
        cls.files = {}
        for name, schema in SCHEMAS.items():
            cls.files[name] = folder / f"{name}.json"
            cls.files[name].write_text(json.dumps(schema), encoding="utf-8")
        cls.cluster = Cluster(BIN_DIR, folder / "processes")
        cls.workers = [cls.cluster.worker(MODEL, "none", "--digest-cache", folder / "digests")
                       for _ in range(2)]

    @classmethod
    def tearDownClass(cls):
        cls.cluster.__exit__()
        cls.scratch.cleanup()

    def ask(self, name, seed, *flags, worker=0):
        """Returns an answer: sampled for an even seed, greedy for an odd seed."""
        text = (f"Write JSON about {TOPICS[seed // 2 % len(TOPICS)]}, number {seed // 2}. "
                f"The schema is {json.dumps(SCHEMAS[name])}.\nJSON: ")
        drawn = () if seed % 2 else ("--temperature", 1, "--seed", seed)
        return self.cluster.ctl(
            "generate", "--worker", self.workers[worker].address, "--prompt", text,
            "--json-schema", self.files[name], "--max-new-tokens", MAX_TOKENS, *drawn, *flags)

    def check(self, name, answer):
        """Returns whether the answer ended. An answer that ended must be valid."""
        text = answer["text"]
        if answer["finish_reason"] != "eos":
            self.assertEqual(answer["finish_reason"], "length", text)
            return False
        jsonschema.Draft202012Validator(exact(json.dumps(SCHEMAS[name])),
                                        format_checker=FORMATS).validate(exact(text))
        if name == "map":  # a key that `properties` does not list may repeat
            pairs = json.loads(text, object_pairs_hook=list)
            rewritten = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in pairs)
            self.assertEqual("{" + rewritten + "}", text)
        elif "number" not in json.dumps(SCHEMAS[name]):  # 1.50 is written as 1.5
            self.assertEqual(json.dumps(json.loads(text), ensure_ascii=False), text)
        return True

    def test_ended_answers_are_valid(self):
        asked = [(name, seed) for name in SCHEMAS for seed in range(2 * SEEDS)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda one: self.ask(*one), asked))
        totals = collections.defaultdict(collections.Counter)
        for (name, seed), answer in zip(asked, answers):
            with self.subTest(schema=name, seed=seed):
                total = totals[name]
                total["answers"] += 1
                total["ended"] += self.check(name, answer)
                total["tokens"] += len(answer["token_ids"])
        for name, total in totals.items():
            print(f"{name}: {total['ended']} of {total['answers']} ended, {total['tokens']} tokens")
        self.assertGreater(sum(total["ended"] for total in totals.values()), len(asked) // 2)

    def test_forced_tokens_save_steps(self):
        tokens = steps = 0
        for name in ("weather", "invoice", "ui", "event", "issue"):
            answer = self.ask(name, 1)
            tokens += len(answer["token_ids"])
            steps += answer["decode_steps"] + 1
            print(f"{name}: {len(answer['token_ids'])} tokens, {answer['decode_steps'] + 1} steps, "
                  f"{answer['finish_reason']}")
        self.assertGreater(tokens / steps, 1.4)

    def test_tokens_are_independent_of_computation(self):
        restored_tokens = 0
        for name in ("weather", "invoice", "event"):
            for seed in range(2):
                want = self.ask(name, seed, "--speculate", 0, "--cache", "off")
                ways = [("--speculate", 15), ("--n", 4), ()]
                with concurrent.futures.ThreadPoolExecutor(len(ways)) as pool:
                    beside = list(pool.map(lambda flags: self.ask(name, seed, *flags), ways))
                other = self.ask(name, seed, worker=1)
                restored = self.ask(name, seed)
                restored_tokens += restored["cached_tokens"]
                for answer in (*beside, other, restored):
                    self.assertEqual(answer["token_ids"], want["token_ids"], name)
        self.assertGreater(restored_tokens, 0)

    def test_saved_state_continues_on_another_worker(self):
        whole = self.ask("invoice", 2)
        path = pathlib.Path(self.scratch.name) / "half.state"
        text = (f"Write JSON about {TOPICS[1]}, number 1. "
                f"The schema is {json.dumps(SCHEMAS['invoice'])}.\nJSON: ")
        half = self.cluster.ctl(
            "state", "save", path, "--worker", self.workers[0].address, "--prompt", text,
            "--json-schema", self.files["invoice"], "--max-new-tokens", 20, "--temperature", 1,
            "--seed", 2)
        self.assertEqual(half["token_ids"], whole["token_ids"][:20])
        rest = self.cluster.ctl("state", "load", path, "--worker", self.workers[1].address,
                                "--max-new-tokens", MAX_TOKENS - 20)
        self.assertEqual(half["token_ids"] + rest["token_ids"], whole["token_ids"])


if __name__ == "__main__":
    BIN_DIR, MODEL = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
