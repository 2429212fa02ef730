"""The OpenAI Agents SDK: a tool in a stream, and an output type."""

import asyncio
import json
from typing import Literal
from agents import (Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool,
                    set_tracing_disabled)
from openai import AsyncOpenAI
from pydantic import BaseModel

class Weather(BaseModel):
    city: Literal["Paris", "Rome"]

cities = []

@function_tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Weather of a city."""
    cities.append(city)
    return "18 C"

async def run():
    client = AsyncOpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
    model = OpenAIResponsesModel("gemma-3-270m", client)
    settings = ModelSettings(temperature=0, max_tokens=40, tool_choice="required",
                             parallel_tool_calls=False, extra_body={"stop": "\n"})
    agent = Agent("clerk", instructions="Be brief.", model=model, tools=[get_weather],
                  model_settings=settings)
    streamed = Runner.run_streamed(agent, "Weather in Paris?")
    kinds = {event.data.type async for event in streamed.stream_events()
             if event.type == "raw_response_event"}
    typed = Agent("clerk", instructions="Be brief.", model=model, output_type=Weather,
                  model_settings=ModelSettings(temperature=0, max_tokens=40))
    parsed = await Runner.run(typed, "Weather in Paris?")
    return {"kinds": sorted(kinds), "city": cities[0], "said": streamed.final_output,
            "parsed": parsed.final_output.city,
            "input": streamed.context_wrapper.usage.input_tokens}

set_tracing_disabled(True)
print(json.dumps(asyncio.run(run())))
