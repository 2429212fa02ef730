"""Codex CLI and Claude Code, from PyPI's packages, each with one call of a tool.

Run as: python coding_agents_test.py BIN_DIR [unittest arguments]. scripts/clients.sh installs both
into .clients; without them, the exit code is 77, which ctest shows as skipped. The base model calls
tools at random, so a proxy in front of the worker forces a call with a fixed command, then a fixed
answer. The proxy changes nothing else, and the clients reach no other address.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import system_support  # noqa: E402  (path set above)
from clients_test import CLIENTS, PAGE, SKIPPED  # noqa: E402
from forcing_proxy import CLIENT_S, SAID, ForcingProxyTest  # noqa: E402

COMMAND = "echo hearth"
ENDS = {"const": SAID}


def constant(name):
    return {"type": "object", "properties": {name: {"const": COMMAND}}, "required": [name],
            "additionalProperties": False}


def force_response(body):
    """Changes a request of the Responses API. Returns the results of calls in it."""
    results = [item["output"] for item in body["input"] if item["type"] == "function_call_output"]
    for tool in body["tools"]:
        if tool["name"] == "exec_command":
            tool["parameters"] = constant("cmd")
    if results:
        body["tool_choice"] = "none"
        body["text"] = {"format": {"type": "json_schema", "name": "said", "schema": ENDS}}
    else:
        body["tool_choice"] = {"type": "function", "name": "exec_command"}
    return results


def force_message(body):
    """Changes a request of the Messages API. Returns the results of calls in it."""
    blocks = [block for message in body["messages"] if isinstance(message["content"], list)
              for block in message["content"]]
    results = [block["content"] for block in blocks
               if block["type"] == "tool_result" and not block.get("is_error")]
    for tool in body.get("tools", []):
        if tool["name"] == "Bash":
            tool["input_schema"] = constant("command")
    if results or not body.get("tools"):
        body["output_config"] = {"format": {"type": "json_schema", "schema": ENDS}}
        body.pop("tool_choice", None)
        if body.get("tools"):
            body["tool_choice"] = {"type": "none"}
    else:
        body["tool_choice"] = {"type": "tool", "name": "Bash", "disable_parallel_tool_use": True}
    return results


class CodingAgents(ForcingProxyTest):

    def block(self, name, url):
        """Returns the first block of a section of docs/clients.md, with the proxy's address."""
        section = PAGE.read_text().split(f"## {name}\n")[1].split("\n## ")[0]
        block = re.search(r"```\w+\n(.*?)```", section, re.DOTALL).group(1)
        return block.removeprefix("$ ").strip().replace("http://127.0.0.1:8000", url)

    def run_agent(self, command, program):
        """Runs a shell command that calls `program`, which links to a file. Returns its stdout."""
        (self.folder / "bin").mkdir()
        (self.folder / "bin" / program[0]).symlink_to(program[1])
        nowhere = "http://127.0.0.1:9"  # the discard port: refuses connections
        done = subprocess.run(
            ["bash", "-ec", command], cwd=self.folder, capture_output=True, text=True,
            timeout=CLIENT_S, check=False, stdin=subprocess.DEVNULL,
            env={"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "HOME": str(self.folder),
                 "HTTPS_PROXY": nowhere, "HTTP_PROXY": nowhere, "NO_PROXY": "127.0.0.1",
                 "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                 "API_TIMEOUT_MS": str(CLIENT_S * 1000)})
        self.assertEqual(done.returncode, 0, done.stdout[-4000:] + done.stderr[-4000:])
        return done.stdout

    def check_round(self, handler, path):
        self.assertEqual({status for _, status in handler.seen}, {200}, handler.seen)
        self.assertGreaterEqual([seen.split("?")[0] for seen, _ in handler.seen].count(path), 2)
        self.assertIn("hearth", json.dumps(handler.results))

    def test_codex_runs_command(self):
        packages = "lib/python3*/site-packages"
        program = next((CLIENTS / "codex").glob(packages + "/codex_cli_bin/bin/codex"))
        with self.proxy(force_response) as (handler, url):
            (self.folder / ".codex").mkdir()
            (self.folder / ".codex" / "config.toml").write_text(self.block("Codex CLI", url))
            said = self.run_agent(
                "codex exec --json --skip-git-repo-check "
                "--dangerously-bypass-approvals-and-sandbox 'Say hearth.'", ("codex", program))
        self.check_round(handler, "/v1/responses")
        events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        kinds = [event["type"] for event in events]
        self.assertNotIn("error", kinds, said)
        self.assertEqual(kinds[-1], "turn.completed", said)
        items = {event["item"]["type"]: event["item"] for event in events
                 if event["type"] == "item.completed"}
        self.assertIn("hearth", items["command_execution"]["aggregated_output"])
        self.assertIn(SAID, items["agent_message"]["text"])
        usage = events[-1]["usage"]
        self.assertGreater(usage["input_tokens"], usage["cached_input_tokens"])
        self.assertGreater(usage["cached_input_tokens"], usage["input_tokens"] * 0.4)

    def test_claude_code_runs_command(self):
        program = next((CLIENTS / "claude_code").glob(
            "lib/python3*/site-packages/claude_agent_sdk/_bundled/claude"))
        with self.proxy(force_message) as (handler, url):
            said = self.run_agent(
                self.block("Claude Code", url) + " -p --output-format json "
                "--allowedTools 'Bash(echo:*)' -- 'Say hearth.'", ("claude", program))
        self.check_round(handler, "/v1/messages")
        result = json.loads(said)
        self.assertFalse(result["is_error"], said)
        self.assertIn(SAID, result["result"])
        self.assertEqual(result["num_turns"], 2, said)
        usage = result["usage"]
        self.assertGreater(usage["output_tokens"], 10)
        self.assertGreater(usage["cache_read_input_tokens"], 5000)


if __name__ == "__main__":
    if not (CLIENTS / "codex").is_dir() or not (CLIENTS / "claude_code").is_dir():
        print("skipped, the clients are not installed: scripts/clients.sh codex claude_code")
        sys.exit(SKIPPED)
    system_support.BIN_DIR = sys.argv.pop(1)
    unittest.main()
