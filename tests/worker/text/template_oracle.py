"""Oracle: transformers renders chats by templates that count as Gemma's to the same text as Hearth;
a randomly changed template that renders differently, or a template of another format, does not
count as Gemma's.

Usage: template_oracle.py TEXT_PROBE TESTS_DATA_DIR
"""
import json
import pathlib
import random
import shutil
import sys
import tempfile

from transformers.utils.chat_template_utils import render_jinja_template

from text_probe_client import Probe

CHATS = [
    [{"role": "user", "content": " the keeper\n"}],
    [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "the lamp"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "\tb "},
     {"role": "user", "content": "\n\nc d\n"}],
    [{"role": "system", "content": [{"type": "text", "text": "x "}]},
     {"role": "user", "content": [{"type": "text", "text": " y"}, {"type": "text", "text": "z "}]},
     {"role": "model", "content": [{"type": "text", "text": " w "}]}],
]
# Pairs: a chat that the template refuses, and an equivalent chat that the template accepts.
JOINED = [
    ([{"role": "user", "content": " a "}, {"role": "user", "content": "b"},
      {"role": "assistant", "content": "c"}, {"role": "model", "content": "d"}],
     [{"role": "user", "content": "a\n\nb"}, {"role": "assistant", "content": "c\n\nd"}]),
    ([{"role": "system", "content": " s "}, {"role": "developer", "content": "t"},
      {"role": "user", "content": "a"}, {"role": "system", "content": "u"}],
     [{"role": "system", "content": " s \n\nt"}, {"role": "user", "content": "a\n\nu"}]),
    ([{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}],
     [{"role": "system", "content": "s"}, {"role": "user", "content": ""},
      {"role": "assistant", "content": "a"}]),
    ([{"role": "system", "content": "s"}],
     [{"role": "system", "content": "s"}, {"role": "user", "content": ""}]),
]
LAYOUTS = [("{%- ", "{%-"), (" -%}", "-%}"), ("{%- ", "{%-\n\t"), ("'", '"'),
           (".role", "['role']"), (".content", '["content"]'), (" == ", "=="), (" | ", "|"),
           ("    ", "  "), ("\n", "\r\n"), ("{%- endif -%}", "{#- end -#}{%- endif -%}"),
           ("{%- for ", "\n\n{%- for "), ("{{ role }}", "{{role}}"),
           ("<end_of_turn>", "{{ '<end_of_turn>' }}"), ("{{ bos_token }}", "<bos>"),
           ("{{ bos_token }}", "{{ '<bos>' }}")]
EXTRA = ["-", "+", " ", "\n", "'", "{#- x #}", "\\n", "{{ ' ' }}", "(", ")", "{% if x %}",
         "\u00a0", "\x0b", "\x0c"]


def render(template, chat, generate):
    try:
        return render_jinja_template([chat], chat_template=template, bos_token="<bos>",
                                     add_generation_prompt=generate)[0][0]
    except Exception as error:  # a randomly changed template may raise any error
        return f"error: {type(error).__name__}"


def renderings(template):
    return [render(template, chat, generate) for chat in CHATS for generate in (True, False)]


def changed_layout(template, rng):
    for old, new in rng.sample(LAYOUTS, rng.randint(1, 4)):
        template = template.replace(old, new)
    return template


def changed(template, rng):
    """Deletes or doubles some characters, or inserts text that may change the output."""
    at, size, kind = rng.randrange(len(template)), rng.randint(1, 6), rng.randrange(5)
    if kind == 0:
        return template[:at] + template[at + size:]
    if kind == 1:
        return template[:at + size] + template[at:]
    if kind == 4:
        return rng.choice(EXTRA) + template
    if kind == 2:
        return template[:at] + rng.choice(EXTRA) + template[at:]
    tags = [i for i in range(len(template)) if template[i:i + 2] in ("-%", "%-", "{{", "}}", "%}")]
    at = rng.choice(tags)
    return template[:at] + rng.choice(EXTRA[:4]) + template[at + rng.randrange(2):]


def check_random(probe, template):
    rng = random.Random(5)
    want = renderings(template)
    for _ in range(150):
        other = changed_layout(template, rng)
        assert renderings(other) == want, f"the layout matters to transformers:\n{other}"
        assert probe.ask("template", text=other)["is_gemma"], f"unknown:\n{other}"
    known = 0
    for _ in range(1500):
        other = changed(template, rng)
        if probe.ask("template", text=other)["is_gemma"]:
            known += 1
            assert renderings(other) == want, f"renders otherwise, and counts as Gemma's:\n{other}"
    assert known > 20, "hardly a change was without effect"
    print(f"1500 templates changed at random: {known} count as Gemma's, and render as it does")


def check_texts(probe, template):
    for chat, same in [(chat, chat) for chat in CHATS] + JOINED:
        for generate in (True, False):
            text = render(template, same, generate)
            answer = probe.ask("chat", messages=chat, add_generation_prompt=generate)
            assert answer["text"] == text, f"{chat}:\n here {answer}\n transformers {text!r}"


def known_templates(data):
    """Returns gemma_chat.jinja and the published templates. gemma_templates.json lists
    replacements: "published" is applied to gemma_chat.jinja, the other lists to the result."""
    def made(template, changes):
        for old, new in changes:
            assert template.count(old) == 1, f"{template.count(old)} times:\n{old}"
            template = template.replace(old, new)
        return template

    lists = json.loads((data / "gemma_templates.json").read_text(encoding="utf-8"))
    gemma = (data / "gemma_chat.jinja").read_text(encoding="utf-8")
    published = made(gemma, lists.pop("published"))
    return {"gemma_chat": gemma, "published": published,
            **{name: made(published, changes) for name, changes in lists.items()}}


def check_known(probe, known):
    for name, template in known.items():
        assert probe.ask("template", text=template)["is_gemma"], f"unknown: {name}"
        check_texts(probe, template)
        line_first = "\n" + template
        assert renderings(line_first) != renderings(template)
        assert not probe.ask("template", text=line_first)["is_gemma"], f"{name} after a line end"
        print(f"{name}: known, and {len(CHATS)} chats render as transformers renders them")


def main():
    binary, data = sys.argv[1], pathlib.Path(sys.argv[2])
    known = known_templates(data)
    gemma = known["gemma_chat"]
    others = sorted((data / "other_templates").glob("*.jinja"))
    assert len(others) >= 3
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shutil.copy(data / "tiny_tokenizer" / "tokenizer.model", folder)
        for file in [data / "gemma_chat.jinja", *others]:
            template = file.read_text(encoding="utf-8")
            (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
            probe = Probe(binary, folder)
            why = probe.ask("why_no_chats")["why"]
            if template == gemma:
                assert why == "", why
                check_known(probe, known)
                check_random(probe, template)
                check_random(probe, known["published"])
            else:
                assert renderings(template) != renderings(gemma), f"{file.name} is Gemma's"
                assert not probe.ask("template", text=template)["is_gemma"], file.name
                assert why == "", why
                print(f"{file.name}: does not count as Gemma's")
            probe.close()


if __name__ == "__main__":
    main()
