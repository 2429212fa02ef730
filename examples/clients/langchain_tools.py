"""A tool, its result, and an answer that obeys a schema, with LangChain."""

import json
from typing import Literal
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Weather of a city."""
    return f"18 C in {city}"

class Weather(BaseModel):
    city: Literal["Paris", "Rome"]

model = ChatOpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none", model="gemma-3-270m",
                   temperature=0)
messages = [HumanMessage("Weather in Paris?")]
chunks = list(model.bind_tools([get_weather], tool_choice="any",
                               parallel_tool_calls=False).stream(messages))
answer = sum(chunks[1:], chunks[0])
call = answer.tool_calls[0]
messages += [answer, ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"])]
said = model.bind_tools([get_weather], tool_choice="none").bind(max_tokens=12).invoke(messages)
parsed = model.with_structured_output(Weather).invoke(messages)
print(json.dumps({"finish": answer.response_metadata["finish_reason"], "tool": call["name"],
                  "city": call["args"]["city"], "said": said.content, "parsed": parsed.city}))
