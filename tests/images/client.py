"""client.py chat|stream BASE_URL MAX_TOKENS: sends one chat with the package openai.

The message comes from standard input. Prints one JSON object: the answer's text, its finish reason,
and the tokens of the prompt and from the cache. `stream` prints a line `begun` at the first text.
"""

import json
import sys

import openai

mode, base_url, max_tokens = sys.argv[1], sys.argv[2], int(sys.argv[3])
client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
request = {"model": client.models.list().data[0].id, "max_tokens": max_tokens, "temperature": 0,
           "messages": [{"role": "user", "content": sys.stdin.read()}]}
if mode == "chat":
    answer = client.chat.completions.create(**request)
    text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
    usage = answer.usage
else:
    text, reason, usage = "", None, None
    for chunk in client.chat.completions.create(
            **request, stream=True, stream_options={"include_usage": True},
            extra_body={"ignore_eos": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if not text and choice.delta.content:
                print("begun", flush=True)
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
print(json.dumps({"text": text, "finish_reason": reason, "prompt_tokens": usage.prompt_tokens,
                  "completion_tokens": usage.completion_tokens,
                  "cached_tokens": usage.prompt_tokens_details.cached_tokens}))
