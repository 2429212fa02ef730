"""Renders chats by a model's chat template, with Jinja as transformers configures it.

template_process.cc holds this program and runs it in a child process. A message is 4 bytes (its
length, most significant byte first) and JSON. The first message sets the template; each later
message is a chat. The answer to a template or chat that fails is {"error": WORDS}. Untrusted people
may have written the template, so the process gives up its rights before it reads a message.
"""
import codecs
import ctypes
import datetime
import errno
import json
import os
import re
import resource
import signal
import struct
import sys

try:
    import jinja2
    import jinja2.debug
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox
except ImportError:
    jinja2 = None

MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]  # noncharacters, which no text should have
MAX_WORDS = 300
# More marks than the worker takes tokens of a prompt, and fewer than it reads values of an answer.
MAX_PLACES = 1 << 18
KEYS = "arguments|parameters"
PROBE = {"name": "probe_0", "arguments": {"key_0": "value_0"}}


def forbid_system_calls():
    """Allows only the system calls that computing needs, because this process has the user of the
    worker. All other calls fail, even if a template escapes from Jinja's sandbox."""
    if os.uname().machine != "x86_64":
        return
    # read, write, mmap, mprotect, munmap, brk, rt_sigaction, rt_sigprocmask, rt_sigreturn, mremap,
    # madvise, setitimer, exit, gettimeofday, time, futex, clock_gettime, exit_group, getrandom
    allowed = (0, 1, 9, 10, 11, 12, 13, 14, 15, 25, 28, 38, 60, 96, 201, 202, 228, 231, 318)
    load, equal, end = 0x20, 0x15, 0x06  # operations of a seccomp filter (seccomp(2))
    rules = [(load, 0, 0, 4), (equal, 1, 0, 0xC000003E), (end, 0, 0, 0x80000000), (load, 0, 0, 0)]
    rules += [(equal, len(allowed) - i, 0, number) for i, number in enumerate(allowed)]
    rules += [(end, 0, 0, 0x50000 | errno.EPERM), (end, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
    prctl = ctypes.CDLL(None).prctl
    zero = ctypes.c_ulong(0)
    prctl(38, ctypes.c_ulong(1), zero, zero, zero)  # PR_SET_NO_NEW_PRIVS
    if prctl(22, ctypes.c_ulong(2),  # PR_SET_SECCOMP
             struct.pack("@HP", len(rules), ctypes.addressof(code)), zero, zero) != 0:
        raise OSError("the kernel refuses the seccomp filter")


def give_up_rights(memory_bytes):
    """Allows no new file, socket or process. Loads what Jinja would load later."""
    for name in ("ascii", "unicode_escape"):
        codecs.lookup(name)
    make_environment().from_string(
        "{{ strftime_now('%Y') + ([1, 'a\n'] | pprint) + ('a' | wordwrap) + lipsum(1) }}").render()
    for what, most in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CORE, 0),
                       (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NPROC, 0),
                       (resource.RLIMIT_NOFILE, 0)):
        resource.setrlimit(what, (most, most))
    forbid_system_calls()


def raise_exception(message):
    raise jinja2.TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def make_environment():
    class Generation(jinja2.ext.Extension):
        """The tag {% generation %}, which marks answers for training."""
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("body"), [], [], body).set_lineno(line)

        def body(self, caller):
            return caller()

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return made


class SpecialTokens:
    """Marks the places of a request's texts where a special token may begin."""

    def __init__(self, names):
        self.names = set(names)
        self.heads = {name[:size] for name in names for size in range(1, len(name))}
        self.sizes = sorted({len(name) for name in names})
        firsts = re.escape("".join({name[0] for name in names}))
        self.first = re.compile(f"[{firsts}]") if names else None

    def begins(self, text, at):
        if any(text[at:at + size] in self.names for size in self.sizes):
            return True
        return len(text) - at < self.sizes[-1] and text[at:] in self.heads

    def marked(self, value, mark):
        if isinstance(value, str) and self.names:
            return self.first.sub(
                lambda found: (mark if self.begins(value, found.start()) else "") + found[0], value)
        if isinstance(value, list):
            return [self.marked(one, mark) for one in value]
        if isinstance(value, dict):
            return {self.marked(key, mark): self.marked(one, mark) for key, one in value.items()}
        return value


def arguments_of(text):
    """Returns the arguments of a call as an object; as text if the call was cut."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def common_size(one, other):
    """Returns the number of characters that the texts have in common at the beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class ChatTemplate:
    def __init__(self, setup):
        environment = make_environment()
        names = environment.parse(setup["template"]).find_all(jinja2.nodes.Name)
        self.reads_tools = any(node.name == "tools" for node in names)
        self.template = environment.from_string(setup["template"])
        self.variables = setup["variables"]
        self.special = SpecialTokens(setup["special"])
        self.reads_lists = False  # the content of a message must be a list of parts
        said = [{"role": "user", "parts": ["probe_0"]}]
        if "probe_0" not in self.try_render(self.messages(said)):
            self.reads_lists = True
            self.reads_lists = "probe_0" in self.try_render(self.messages(said))

    def render(self, messages, tools=None, generate=False):
        return self.template.render(messages=messages, tools=tools, documents=None,
                                    add_generation_prompt=generate, **self.variables)

    def try_render(self, *arguments):
        try:
            return self.render(*arguments)
        except Exception:
            return ""

    def messages(self, given):
        """Returns messages as transformers documents them."""
        made = []
        for message in given:
            texts = message["parts"]
            one = {"role": message["role"], "content": "".join(texts)}
            if self.reads_lists:
                one["content"] = [{"type": "text", "text": text} for text in texts]
            if message.get("tool_calls"):
                one["tool_calls"] = [
                    {"type": "function", "id": call["id"],
                     "function": {"name": call["name"],
                                  "arguments": arguments_of(call["arguments"])}}
                    for call in message["tool_calls"]]
            if message.get("tool_call_id"):
                one.update(tool_call_id=message["tool_call_id"], name=message["name"])
            made.append(one)
        return made

    def call_form(self):
        """Returns the text before a call, and the key of its arguments, if a call is
        {"name": NAME, KEY: ARGUMENTS} at the beginning of the answer or of a line."""
        user = {"role": "user", "parts": ["probe_1"]}
        call = dict(PROBE, id="abcdefgh0", arguments=json.dumps(PROBE["arguments"]))
        tools = [{"type": "function", "function": {
            "name": PROBE["name"], "description": "", "parameters": {"type": "object"}}}]
        asked = self.try_render(self.messages([user]), tools, True)
        answer = {"role": "assistant", "parts": [""], "tool_calls": [call]}
        called = self.try_render(self.messages([user, answer]), tools)
        arguments = re.escape(json.dumps(PROBE["arguments"]))
        found = re.match(rf'(|.*\n)\{{"name": "{PROBE["name"]}", "({KEYS})": {arguments}\}}',
                         called[len(asked):], re.DOTALL)
        if not asked or not called.startswith(asked) or not found:
            return None
        return {"prefix": found[1], "key": found[2]}

    def answer(self, request):
        """Renders a chat. `cuts`: beginnings of the chat. For each cut, the answer has the
        size in bytes of the beginning that its rendering shares with the chat's. The answer also
        has the places of marks."""
        given = request["messages"]
        tools = [json.loads(tool) for tool in request["tools"]]
        seen = json.dumps([self.messages(given), tools], ensure_ascii=False)
        unseen = [one for one in MARKS if one not in seen]
        if len(unseen) < 2:
            raise jinja2.TemplateError("the chat has too many of the characters U+FDD0 to U+FDEF")
        mark, end = unseen[:2]

        def marked(value):
            return self.special.marked(value, mark) if request["strict"] else value

        tools = marked(tools) or None
        messages = marked(self.messages(given))
        if request["ending"] == "open":
            whole = self.render_open(messages, tools, end)
        else:
            whole = self.render(messages, tools, request["ending"] == "prompt")
        cuts = []
        for cut in request["cuts"]:
            begin = messages[:cut["messages"]]
            if "parts" in cut:
                last = given[cut["messages"] - 1]
                begin[-1:] = marked(self.messages([dict(last, parts=last["parts"][:cut["parts"]])]))
            if not begin or begin[-1]["role"] == "system":
                begin = begin + self.messages([{"role": "user", "parts": [end]}])
            other = self.try_render(begin, tools, cut["generate"])
            common = whole[:common_size(whole, other)]
            cuts.append(len(common.replace(mark, "").encode()))
        plain, at = [], 0
        for piece in whole.split(mark)[:-1]:
            at += len(piece.encode())
            plain.append(at)
        if len(plain) > MAX_PLACES:
            raise jinja2.TemplateError(
                f"the chat has {len(plain)} names of special tokens; the limit is {MAX_PLACES}")
        return {"text": whole.replace(mark, ""), "cuts": cuts, "plain": plain}

    def render_open(self, messages, tools, end):
        """Renders the chat up to the end of its last text, or, after system messages alone, up to
        the beginning of the user's text."""
        last = dict(messages[-1])
        is_user_next = last["role"] == "system"
        if is_user_next:
            messages = messages + self.messages([{"role": "user", "parts": [end]}])
        else:
            more = [{"type": "text", "text": end + " "}] if self.reads_lists else end + " "
            messages = messages[:-1] + [dict(last, content=last["content"] + more)]
        text = self.render(messages, tools)
        begin, found, rest = text.rpartition(end)
        if not found:
            raise jinja2.TemplateError("the template does not write the last message")
        # As in transformers: if the template strips the space, it strips the text before it, too.
        return begin if is_user_next or rest.startswith(" ") else begin.rstrip()


def read(size):
    got = sys.stdin.buffer.read(size)
    if len(got) < size:
        sys.exit()
    return got


def write(answer):
    sys.stdout.buffer.write(len(answer).to_bytes(4, "big") + answer)
    sys.stdout.buffer.flush()


def reply_to(make):
    """Returns the answer that `make` makes, or its error."""
    try:
        return json.dumps(make(), ensure_ascii=False).encode()
    except jinja2.TemplateError as error:
        words = str(error)
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
    return json.dumps({"error": words[:MAX_WORDS].encode(errors="replace").decode()}).encode()


def main():
    template = None

    def make():
        nonlocal template
        if template is not None:
            return template.answer(json.loads(text))
        template = ChatTemplate(setup)
        return {"reads_tools": template.reads_tools,
                "call": template.call_form() if template.reads_tools else None}

    setup = None
    while True:
        size = int.from_bytes(read(4), "big")
        text = read(size).decode()
        if jinja2 is None:
            return write(b'{"missing": true}')
        if setup is None:
            setup = json.loads(text)
            try:
                give_up_rights(setup["memory_bytes"])
            except (OSError, ValueError) as error:
                words = f"its process cannot give up its rights: {error}"
                return write(json.dumps({"error": words}).encode())
        # The kernel ends the process after this CPU time.
        signal.setitimer(signal.ITIMER_PROF, setup["cpu_s"])
        made = reply_to(make)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if len(made) > 4 * size + (1 << 20):
            made = json.dumps({"error": f"the rendering has {len(made)} bytes"}).encode()
        write(made)


if __name__ == "__main__":
    main()
