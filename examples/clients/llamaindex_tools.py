"""A tool, its result, and an answer that obeys a schema, with LlamaIndex."""

import json
from typing import Literal
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Weather of a city."""
    return f"18 C in {city}"

class Weather(BaseModel):
    """Weather of a city."""
    city: Literal["Paris", "Rome"]

model = OpenAILike(api_base="http://127.0.0.1:8000/v1", api_key="none", model="gemma-3-270m",
                   is_chat_model=True, is_function_calling_model=True, context_window=32768,
                   temperature=0, max_tokens=64)
tools = [FunctionTool.from_defaults(get_weather)]
messages = [ChatMessage(role="user", content="Weather in Paris?")]
answer = list(model.stream_chat_with_tools(tools, chat_history=messages, tool_required=True))[-1]
call = model.get_tool_calls_from_response(answer)[0]
result = get_weather(**call.tool_kwargs)
messages += [answer.message, ChatMessage(role="tool", content=result,
                                         additional_kwargs={"tool_call_id": call.tool_id})]
said = model.chat(messages)
parsed = model.as_structured_llm(Weather).complete("Weather in Paris?").raw
print(json.dumps({"finish": answer.raw.choices[0].finish_reason, "tool": call.tool_name,
                  "city": call.tool_kwargs["city"], "said": said.message.content,
                  "parsed": parsed.city}))
