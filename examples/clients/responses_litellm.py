"""litellm's bridge from Anthropic's API to the Responses API: a tool, its result, and a stream."""

import asyncio
import json
import litellm

tool = {"name": "get_weather", "description": "Weather of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
                         "required": ["city"]}}
asked = {"model": "openai/gemma-3-270m", "api_base": "http://127.0.0.1:8000/v1", "api_key": "none",
         "max_tokens": 60, "temperature": 0, "tools": [tool]}

async def run():
    create = litellm.anthropic.messages.acreate
    messages = [{"role": "user", "content": "Weather in Paris?"}]
    answer = await create(**asked, messages=messages, tool_choice={"type": "any"})
    call = next(block for block in answer["content"] if block["type"] == "tool_use")
    messages += [{"role": "assistant", "content": answer["content"]},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"],
                                               "content": "18 C"}]}]
    said = await create(**asked, messages=messages, tool_choice={"type": "none"})
    events = [event async for event in await create(**asked, messages=messages, stream=True)]
    try:
        await create(**asked, messages=[{"role": "user", "content": "lamp " * 40000}])
        failed = ""
    except Exception as error:
        failed = type(error).__name__
    return {"city": call["input"]["city"], "stop": answer["stop_reason"],
            "said": said["content"][0]["text"], "input": said["usage"]["input_tokens"],
            "events": len(events), "failed": failed}

litellm.suppress_debug_info = True
print(json.dumps(asyncio.run(run())))
