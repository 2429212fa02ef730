"""The Responses API: a tool in a stream, its result, and an answer that obeys a schema."""

import json
from typing import Literal
from openai import BadRequestError, OpenAI
from pydantic import BaseModel, ConfigDict

class Weather(BaseModel):
    """Weather of a city."""
    model_config = ConfigDict(extra="forbid")
    city: Literal["Paris", "Rome"]

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none", max_retries=0)
asked = {"model": "gemma-3-270m", "temperature": 0, "instructions": "Be brief.",
         "tools": [{"type": "function", "name": "get_weather", "description": "Weather of a city.",
                    "strict": True, "parameters": Weather.model_json_schema()}]}
items = [{"role": "user", "content": "Weather in Paris?"}]
with client.responses.stream(**asked, input=items, tool_choice="required",
                             parallel_tool_calls=False) as stream:
    kinds = {event.type for event in stream}
    call = stream.get_final_response().output[0]
items += [call.model_dump(exclude={"parsed_arguments"}, exclude_none=True),
          {"type": "function_call_output", "call_id": call.call_id, "output": "18 C"}]
said = client.responses.create(**asked, input=items, tool_choice="none", max_output_tokens=12)
parsed = client.responses.parse(model="gemma-3-270m", temperature=0, input="Weather in Paris?",
                                text_format=Weather)
try:
    client.responses.create(model="gemma-3-270m", input="lamp " * 40000)
    failed = None
except BadRequestError as error:
    failed = [error.code, error.param]
print(json.dumps({"kinds": sorted(kinds), "tool": call.name,
                  "city": json.loads(call.arguments)["city"], "said": said.output_text,
                  "status": said.status, "cached": said.usage.input_tokens_details.cached_tokens,
                  "parsed": parsed.output_parsed.city, "failed": failed}))
