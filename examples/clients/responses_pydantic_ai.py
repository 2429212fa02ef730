"""The Responses API with pydantic-ai: an output type as a tool and as a schema."""

import json
from typing import Literal
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

class Weather(BaseModel):
    """Weather of a city."""
    city: Literal["Paris", "Rome"]

provider = OpenAIProvider(base_url="http://127.0.0.1:8000/v1", api_key="none")
model = OpenAIResponsesModel("gemma-3-270m", provider=provider)
settings = {"temperature": 0, "parallel_tool_calls": False, "max_tokens": 60}
called = Agent(model, output_type=Weather, model_settings=settings).run_sync("Weather in Paris?")
parsed = Agent(model, output_type=NativeOutput(Weather),
               model_settings=settings).run_sync("Weather in Paris?")
try:
    Agent(model).run_sync("lamp " * 40000)
    failed = ""
except Exception as error:
    failed = type(error).__name__
print(json.dumps({"city": called.output.city, "parsed": parsed.output.city, "failed": failed}))
