"""The Responses API with LlamaIndex: a tool in a stream, its result, and an output schema."""

import json
from typing import Literal
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILikeResponses
from pydantic import BaseModel

def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Weather of a city."""
    return f"18 C in {city}"

class Weather(BaseModel):
    """Weather of a city."""
    city: Literal["Paris", "Rome"]

model = OpenAILikeResponses(api_base="http://127.0.0.1:8000/v1", api_key="none",
                            model="gemma-3-270m", is_function_calling_model=True,
                            context_window=32768, temperature=0, max_output_tokens=64,
                            max_retries=0)
messages = [ChatMessage(role="user", content="Weather in Paris?")]
tools = [FunctionTool.from_defaults(get_weather)]
answer = list(model.stream_chat_with_tools(tools, chat_history=messages, tool_required=True))[-1]
call = model.get_tool_calls_from_response(answer)[0]
messages += [answer.message, ChatMessage(role="tool", content=get_weather(**call.tool_kwargs),
                                         additional_kwargs={"tool_call_id": call.tool_id})]
said = model.chat(messages)
parsed = model.as_structured_llm(Weather).complete("Weather in Paris?").raw
try:
    model.complete("lamp " * 40000)
    failed = ""
except Exception as error:
    failed = type(error).__name__
print(json.dumps({"tool": call.tool_name, "city": call.tool_kwargs["city"],
                  "said": said.message.content, "parsed": parsed.city, "failed": failed}))
