"""A tool, its result, and an answer that obeys a schema, with litellm."""

import json
from typing import Literal
import litellm
from pydantic import BaseModel

class Weather(BaseModel):
    city: Literal["Paris", "Rome"]

tools = [{"type": "function",
          "function": {"name": "get_weather", "description": "Weather of a city",
                       "parameters": Weather.model_json_schema()}}]
messages = [{"role": "user", "content": "Weather in Paris?"}]
asked = {"model": "openai/gemma-3-270m", "api_base": "http://127.0.0.1:8000/v1", "api_key": "none",
         "temperature": 0}
chunks = list(litellm.completion(**asked, messages=messages, tools=tools, tool_choice="required",
                                 parallel_tool_calls=False, stream=True))
answer = litellm.stream_chunk_builder(chunks, messages=messages).choices[0]
call = answer.message.tool_calls[0]
messages += [answer.message.model_dump(), {"role": "tool", "tool_call_id": call.id,
                                           "content": "18 C"}]
said = litellm.completion(**asked, messages=messages, tools=tools, tool_choice="none",
                          max_tokens=12)
parsed = litellm.completion(**asked, messages=messages, response_format=Weather)
print(json.dumps({"finish": answer.finish_reason, "tool": call.function.name,
                  "city": json.loads(call.function.arguments)["city"],
                  "said": said.choices[0].message.content,
                  "parsed": json.loads(parsed.choices[0].message.content)["city"]}))
