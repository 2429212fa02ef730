#!/usr/bin/env python3
"""Asks a model 20 questions about five tools, and counts how often it calls the right tool.

  bench/tool_questions.py http://127.0.0.1:8000/v1 [--choice auto|required] [--key TOKEN] [--each]

The server must have OpenAI's chat completions API. A question counts as `tool` if the answer calls
the expected function (or no function, if none fits). It counts as `right` if the arguments are
right, too. Texts are compared without case and surrounding white space. `--choice required` leaves
out questions that fit no tool. The model must be instruction-tuned: a base model answers at random.
"""

import argparse
import json
import urllib.request


def tool(name, description, required, **properties):
    return {"type": "function", "function": {
        "name": name, "description": description, "parameters": {
            "type": "object", "properties": properties, "required": required,
            "additionalProperties": False}}}


TEXT, NUMBER, WHOLE = {"type": "string"}, {"type": "number"}, {"type": "integer"}
TOOLS = [
    tool("get_weather", "Current weather of a city", ["city"], city=TEXT,
         unit={"type": "string", "enum": ["celsius", "fahrenheit"]}),
    tool("convert_currency", "Converts an amount of money; currencies by their ISO code",
         ["amount", "source", "target"], amount=NUMBER, source=TEXT, target=TEXT),
    tool("set_timer", "Starts a timer", ["minutes"], minutes=WHOLE, label=TEXT),
    tool("send_message", "Sends a text message to a person", ["to", "text"], to=TEXT, text=TEXT),
    tool("find_flights", "Finds flights between two cities on a day (YYYY-MM-DD)",
         ["origin", "destination", "date"], origin=TEXT, destination=TEXT, date=TEXT,
         passengers=WHOLE),
]
# Columns: question, expected function (None: no call), expected arguments.
QUESTIONS = [
    ("What is the weather in Paris?", "get_weather", {"city": "Paris"}),
    ("How warm is it in Oslo right now, in celsius?", "get_weather",
     {"city": "Oslo", "unit": "celsius"}),
    ("Tell me the temperature in Chicago in fahrenheit.", "get_weather",
     {"city": "Chicago", "unit": "fahrenheit"}),
    ("Is it raining in Lima?", "get_weather", {"city": "Lima"}),
    ("How many JPY are 250 EUR?", "convert_currency",
     {"amount": 250, "source": "EUR", "target": "JPY"}),
    ("Convert 99.5 US dollars to Swiss francs.", "convert_currency",
     {"amount": 99.5, "source": "USD", "target": "CHF"}),
    ("I have 40 British pounds. What is that in euros?", "convert_currency",
     {"amount": 40, "source": "GBP", "target": "EUR"}),
    ("What are 1200 Indian rupees worth in US dollars?", "convert_currency",
     {"amount": 1200, "source": "INR", "target": "USD"}),
    ("Set a timer for 12 minutes.", "set_timer", {"minutes": 12}),
    ("Start a timer of 8 minutes labelled eggs.", "set_timer", {"minutes": 8, "label": "eggs"}),
    ("Remind me in one hour, with a timer.", "set_timer", {"minutes": 60}),
    ("Give me a timer for half an hour.", "set_timer", {"minutes": 30}),
    ('Send Maria the text "Running late".', "send_message",
     {"to": "Maria", "text": "Running late"}),
    ('Write to Tom: "Dinner at eight?"', "send_message", {"to": "Tom", "text": "Dinner at eight?"}),
    ('Message Dr. Chen "Thank you".', "send_message", {"to": "Dr. Chen", "text": "Thank you"}),
    ("Find flights from Berlin to Madrid on 2027-03-05.", "find_flights",
     {"origin": "Berlin", "destination": "Madrid", "date": "2027-03-05"}),
    ("Two people want to fly from Rome to Cairo on 1 July 2027. Which flights are there?",
     "find_flights", {"origin": "Rome", "destination": "Cairo", "date": "2027-07-01",
                      "passengers": 2}),
    ("What is the capital of Portugal?", None, {}),
    ("Write one sentence about the sea.", None, {}),
    ("Thank you, that is all.", None, {}),
]


def plain(value):
    return value.strip().lower() if isinstance(value, str) else value


def ask(options, question):
    """Returns the first call of the answer as (name, arguments), or (None, {})."""
    body = {"messages": [{"role": "user", "content": question}], "tools": TOOLS,
            "tool_choice": options.choice, "temperature": 0, "max_tokens": 256}
    if options.model:
        body["model"] = options.model
    request = urllib.request.Request(
        options.url.rstrip("/") + "/chat/completions", data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {options.key}"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        message = json.load(answer)["choices"][0]["message"]
    if not message.get("tool_calls"):
        return None, {}
    function = message["tool_calls"][0]["function"]
    try:
        return function["name"], json.loads(function["arguments"])
    except json.JSONDecodeError:
        return function["name"], {}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("url", help="base URL, such as http://127.0.0.1:8000/v1")
    parser.add_argument("--choice", choices=["auto", "required"], default="auto")
    parser.add_argument("--key", default="none", help="token of the caller")
    parser.add_argument("--model", default="", help="default: the server's")
    parser.add_argument("--each", action="store_true", help="print each question's result")
    options = parser.parse_args()
    asked = [one for one in QUESTIONS if options.choice == "auto" or one[1]]
    tools = right = 0
    for question, name, arguments in asked:
        got, given = ask(options, question)
        same = {key: plain(value) for key, value in given.items()} == {
            key: plain(value) for key, value in arguments.items()}
        tools += got == name
        right += got == name and same
        if options.each:
            print(json.dumps({"question": question, "expected": [name, arguments],
                              "got": [got, given], "right": got == name and same}))
    print(json.dumps({"choice": options.choice, "questions": len(asked), "tool": tools,
                      "right": right}))


if __name__ == "__main__":
    main()
