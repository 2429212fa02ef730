"""Oracle: transformers renders chats by models' own templates to the same text as Hearth, and
Hearth's tokens are the tokens of this text. Templates are in TESTS_DATA_DIR/own_templates and
other_templates.

Usage: own_template_oracle.py TEXT_PROBE TESTS_DATA_DIR
"""
import json
import pathlib
import shutil
import sys
import tempfile

from transformers.utils.chat_template_utils import render_jinja_template

from text_probe_client import Probe

VARIABLES = {"bos_token": "<bos>", "eos_token": "<eos>"}
TOOLS = [{"type": "function", "function": {
    "name": "tide", "description": "Says when the <sea> is \u00e9bb.",
    "parameters": {"type": "object", "properties": {"port": {"type": "string"},
                                                    "day": {"type": "integer"}}}}}]
CALL = {"type": "function", "id": "abcdefgh1",
        "function": {"name": "tide", "arguments": {"port": "Saint-Malo \"\u00e9\"", "day": 3}}}
USER = {"role": "user", "content": " the keeper\n"}
CHATS = [
    ([USER], None),
    ([{"role": "system", "content": " Be brief. "}, USER], None),
    ([{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": " a "},
      {"role": "user", "content": "the lamp"}], None),
    ([USER, {"role": "assistant", "content": "one"}, {"role": "user", "content": "two"},
      {"role": "assistant", "content": "three "}], None),
    ([USER], TOOLS),
    ([{"role": "system", "content": "s"}, USER,
      {"role": "assistant", "content": "", "tool_calls": [CALL]},
      {"role": "tool", "tool_call_id": "abcdefgh1", "name": "tide", "content": "{\"at\": 4}"},
      {"role": "assistant", "content": "at four"}, USER], TOOLS),
    ([USER, USER], None),
    ([USER, {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}], TOOLS),
]


def render(template, chat, tools, **options):
    """Returns the text, or None and the error's words."""
    try:
        return render_jinja_template([chat], tools=tools, chat_template=template, **VARIABLES,
                                     **options)[0][0], ""
    except Exception as error:  # templates may raise any error
        return None, str(error)


def with_text(call):
    """Returns the call with its arguments as JSON text, as in OpenAI's API."""
    function = call["function"]
    return dict(call, function=dict(function, arguments=json.dumps(function["arguments"])))


def check(probe, template, chat, tools, options):
    text, words = render(template, chat, tools, **options)
    sent = [dict(message, tool_calls=[with_text(call) for call in message.get("tool_calls", [])])
            for message in chat]
    got = probe.ask("render", messages=sent, tools=[json.dumps(tool) for tool in tools or []],
                    **options)
    where = f"{chat} {options}:\n here {got}\n transformers {text!r} {words}"
    if text is None:
        assert words[:100] in got.get("error", ""), where
        return 0
    bos = "" if text.startswith("<bos>") else "<bos>"
    assert got.get("text") == bos + text, where
    assert got["ids"] == probe.ask("encode", text=bos + text)["ids"], where
    return 1


def check_template(binary, data, folder, file):
    template = file.read_text(encoding="utf-8")
    shutil.copy(data / "tiny_tokenizer" / "tokenizer.model", folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": template, "bos_token": "<bos>",
                    "eos_token": {"content": "<eos>"}}), encoding="utf-8")
    probe = Probe(binary, folder)
    rendered = total = 0
    for chat, tools in CHATS:
        closed = chat[-1]["role"] == "assistant"
        all_options = [{"add_generation_prompt": True}]
        if closed:
            all_options += [{"add_generation_prompt": False}, {"continue_final_message": True}]
        for options in all_options:
            if "tool_calls" in chat[-1] and "continue_final_message" in options:
                continue  # transformers needs a text to continue
            if tools and "tools" not in template:
                continue  # refused: the tools would be lost
            rendered += check(probe, template, chat, tools, options)
            total += 1
    probe.close()
    assert rendered > 5, f"{file.name} refused nearly all chats"
    print(f"{file.name}: {rendered} renderings equal transformers', {total - rendered} errors do")


def main():
    binary, data = sys.argv[1], pathlib.Path(sys.argv[2])
    files = [file for name in ("own_templates", "other_templates")
             for file in sorted((data / name).glob("*.jinja"))]
    assert len(files) >= 6
    for file in files:
        with tempfile.TemporaryDirectory() as folder:
            check_template(binary, data, pathlib.Path(folder), file)


if __name__ == "__main__":
    main()
