"""The Responses API with instructor: a response model, whole and as a stream."""

import json
from typing import Literal
import instructor
from openai import OpenAI
from pydantic import BaseModel

class Weather(BaseModel):
    """Weather of a city."""
    city: Literal["Paris", "Rome"]

client = instructor.from_openai(
    OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none", max_retries=0),
    mode=instructor.Mode.RESPONSES_TOOLS)
asked = {"model": "gemma-3-270m", "temperature": 0, "response_model": Weather,
         "max_output_tokens": 64}
messages = [{"role": "user", "content": "Weather in Paris?"}]
parsed = client.create(**asked, messages=messages)
streamed = list(client.create_partial(**asked, messages=messages))[-1]
try:
    client.create(**asked, messages=[{"role": "user", "content": "lamp " * 40000}], max_retries=0)
    failed = []
except Exception as error:
    failed = [type(error).__name__, type(error.__cause__).__name__]
print(json.dumps({"city": streamed.city, "parsed": parsed.city, "failed": failed}))
