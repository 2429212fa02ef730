"""Attacks on a worker's HTTP addresses, by name.

Run as: python http_attacks.py NAME HTTP PAGES [TOKEN [SHARE]]. Prints a line when it begins, and its
counters as JSON when stdin is closed. HTTP, PAGES: HOST:PORT of --http-listen and of
--metrics-listen. SHARE: the largest part of one core that the process uses, as measured by itself.
It connects from 127.0.0.2, so that a server which counts by address does not count the honest
client.
"""

import functools
import itertools
import json
import os
import random
import resource
import sys

import hostile_calls
from hostile_kinds import MIB
from http_peers import Exchanges, Request, Sips, Throttle

SOURCE = "127.0.0.2"
BODY_BYTES = 3 * MIB
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
# Maximum units a second. Most attacks are slower, because they wait for free connections.
UNITS_PER_S = 2000


class HttpTarget:
    def __init__(self, http, pages, token="", share=0.5):
        self.http, self.pages = address_of(http), address_of(pages)
        self.token, self.source, self.throttle = token, SOURCE, Throttle(share)

    def head(self, path, more="", method="POST", keeps=False):
        """Returns the request line and the headers, without the empty line."""
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
        if not keeps:
            lines.append("Connection: close")
        if method == "POST":
            lines.append("Content-Type: application/json")
        if self.token:
            lines.append("Authorization: Bearer " + self.token)
        return ("\r\n".join(lines) + "\r\n" + more).encode()

    def post(self, path, body, **how):
        """Returns a request with a body: bytes, or a value that is sent as JSON."""
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        return Request(self.head(path, f"Content-Length: {len(text)}\r\n\r\n"), text, **how)


def address_of(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


def in_turns(makers):
    """Returns a function that calls each of these in turn."""
    turns = itertools.cycle(makers)
    return lambda: next(turns)()


def posts(target, kinds, **how):
    """Returns a function that makes requests of these (path, body) in turn."""
    return in_turns([functools.partial(target.post, path, body, **how) for path, body in kinds])


def filled(begin, piece, end, size=BODY_BYTES):
    """Returns `begin`, `piece` as often as it fits (without a comma at the end), and `end`."""
    text = piece * ((size - len(begin) - len(end)) // len(piece))
    return begin + text.removesuffix(b",") + end


def numbered(begin, form, end, count):
    return begin + ",".join(form % i for i in range(count)).encode() + end


# --- Attacks: each field with a value of each type.
VALUES = (None, True, False, 0, -1, 1, 1.5, 1e300, 10**30, "", "a", "none", [], [0], ["a"], [[]],
          [{}], [None], {}, {"a": 0}, {"type": 0}, {"type": {}}, {"type": "text"})
COMMON = ("model stream n max_tokens max_completion_tokens temperature top_p top_k min_p "
          "min_tokens seed presence_penalty frequency_penalty repetition_penalty logit_bias "
          "stop_token_ids bad_token_ids stop ignore_eos stream_options response_format best_of "
          "cache_salt tools functions tool_choice function_call audio modalities prediction "
          "web_search_options suffix guided_json guided_regex structured_outputs "
          "prompt_logprobs prompt_cache_key prompt_cache_options logprobs user").split()
NESTED = [("stream_options", "include_usage"), ("response_format", "type"), ("logit_bias", "5")]
NESTED += [("prompt_cache_options", name) for name in ("mode", "prewarm", "ttl", "keep",
                                                       "priority")]
CHAT_FIELDS = [("messages",), ("top_logprobs",), ("messages", 0)]
CHAT_FIELDS += [("messages", 0, name) for name in ("role", "content", "tool_calls", "name")]
CHAT_FIELDS += [("messages", 0, "content", 0)]
CHAT_FIELDS += [("messages", 0, "content", 0, name) for name in ("type", "text",
                                                                 "prompt_cache_breakpoint")]
CHAT_FIELDS += [("messages", 0, "content", 0, "prompt_cache_breakpoint", "ttl")]
COMPLETION_FIELDS = [("prompt",), ("prompt", 0), ("echo",)]
TOOL_FIELDS = [("tools",), ("tools", 0), ("tool_choice",), ("tool_choice", "type")]
TOOL_FIELDS += [("tools", 0, name) for name in ("type", "name", "function", "description",
                                                "input_schema", "parameters", "strict")]
RESPONSE_FIELDS = [(name,) for name in (
    "model input instructions stream max_output_tokens temperature top_p text metadata store "
    "previous_response_id conversation background include reasoning parallel_tool_calls "
    "service_tier truncation client_metadata hearth_explain").split()]
RESPONSE_FIELDS += [("text", "format"), ("text", "format", "type"), ("text", "format", "schema")]
RESPONSE_FIELDS += [("input", 0)] + [("input", 0, name) for name in (
    "type role content call_id name arguments output id").split()]
RESPONSE_FIELDS += [("input", 0, "content", 0, name) for name in ("type", "text")]
MESSAGE_FIELDS = [(name,) for name in (
    "model messages system max_tokens stream temperature top_p top_k stop_sequences metadata "
    "thinking thread output_config service_tier cache_control hearth_explain").split()]
MESSAGE_FIELDS += [("output_config", "format"), ("output_config", "format", "schema")]
MESSAGE_FIELDS += [("system", 0, name) for name in ("type", "text", "cache_control")]
MESSAGE_FIELDS += [("messages", 0)] + [("messages", 0, name) for name in ("role", "content")]
MESSAGE_FIELDS += [("messages", 0, "content", 0, name) for name in (
    "type text id name input tool_use_id content is_error cache_control").split()]
MESSAGE_FIELDS += [("messages", 0, "content", 0, "cache_control", "ttl")]
SMALL = {
    CHAT: {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
           "max_tokens": 1},
    COMPLETIONS: {"prompt": [5], "max_tokens": 1},
    RESPONSES: {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
                "max_output_tokens": 1},
    MESSAGES: {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
               "max_tokens": 1},
    COUNT: {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [5]},
}
FIELDS = {
    CHAT: [(name,) for name in COMMON] + NESTED + CHAT_FIELDS,
    COMPLETIONS: [(name,) for name in COMMON] + NESTED + COMPLETION_FIELDS,
    RESPONSES: RESPONSE_FIELDS + TOOL_FIELDS,
    MESSAGES: MESSAGE_FIELDS + TOOL_FIELDS,
    COUNT: MESSAGE_FIELDS + TOOL_FIELDS,
    "/tokenize": [("prompt",), ("messages",), ("add_special_tokens",), ("model",)],
    "/detokenize": [("tokens",), ("tokens", 0), ("model",)],
}


def with_field(base, path, value):
    """Returns a copy of the body whose field at this path has this value."""
    body = json.loads(json.dumps(base))
    at = body
    for name, following in zip(path, path[1:]):
        if isinstance(at, dict) and not isinstance(at.get(name), (dict, list)):
            at[name] = [] if isinstance(following, int) else {}
        at = at[name]
        if isinstance(at, list) and not at:
            at.append({})
    at[path[-1]] = value
    return body


def field_bodies():
    """Returns (path, body) for each field of each request with each value, shuffled."""
    made = [(path, with_field(SMALL[path], field, value))
            for path, fields in FIELDS.items() for field in fields for value in VALUES]
    made += [(path, value) for path in FIELDS for value in VALUES]
    random.Random(1).shuffle(made)
    return made


# --- Attacks: tokens, hosts and message framing.
ODD = ["\xe9", "\xff\xfe", "\x80", "a\tb", "a\x7fb", "\xc3\xa9t\xc3\xa9", "a" * 15000, "", " ",
       "a b"]


def odd_tokens(target):
    made = []
    for odd, path in itertools.product(ODD, (CHAT, COMPLETIONS, "/tokenize", "/v1/models")):
        for form in (f"Authorization: Bearer {odd}", f"X-Api-Key: {odd}",
                     f"Authorization: Bearer {odd}\r\nX-Api-Key: a"):
            body = json.dumps(SMALL.get(path, {}))
            method = "POST" if path in SMALL else "GET"
            made.append(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
                        f"{form}\r\n\r\n{body}".encode("latin-1"))
    return Exchanges(target, in_turns([functools.partial(Request, each) for each in made]))


def raw_requests(target, forms, to_pages=False):
    """An attack that sends these raw requests in turn, with the target's token if it has one."""
    line = f"Authorization: Bearer {target.token}\r\n" if target.token else ""
    made = [form.replace("\n", "\r\n").replace("TOKEN\r\n", line).encode() for form in forms]
    return Exchanges(target, in_turns([functools.partial(Request, each) for each in made]),
                     to_pages=to_pages)


CLOSES = "Connection: close\nTOKEN\n"
NO_HOST = [
    f"GET /health HTTP/1.1\nOrigin: http://evil.example\n{CLOSES}\n",
    f"GET /v1/models HTTP/1.0\nOrigin: http://evil.example\n{CLOSES}\n",
    f"GET /health HTTP/1.1\n{CLOSES}\n", f"GET /health HTTP/1.0\n{CLOSES}\n",
    f"OPTIONS {CHAT} HTTP/1.1\nHost:\nOrigin: null\n{CLOSES}\n",
]
EVIL_HOSTS = [f"GET {path} HTTP/1.1\nHost: {host}\n{CLOSES}\n"
              for path in ("/status.json", "/status", "/metrics", "/", "/health", "/v1/models")
              for host in ("evil.example", "evil.example:80", "[evil]", "localhost.evil", "")]
POST = f"POST /tokenize HTTP/1.1\nHost: localhost\nContent-Type: application/json\n{CLOSES}"
SMUGGLED = "GET /version HTTP/1.1\nHost: localhost\nConnection: close\n\n"
WHOLE = '\n\n{"prompt":"a"}'
IN_CHUNKS = '\n\ne\n{"prompt":"a"}\n0\n\n'
SMUGGLING = [
    POST + "Transfer-Encoding: chunked, gzip" + IN_CHUNKS + SMUGGLED,
    POST + "Transfer-Encoding: identity\nContent-Length: 14" + WHOLE + SMUGGLED,
    POST + "Transfer-Encoding: xchunked\nContent-Length: 14" + WHOLE + SMUGGLED,
    POST + "Transfer-Encoding: chunked\nContent-Length: 24" + IN_CHUNKS + SMUGGLED,
    POST + "Transfer-Encoding: chunked\nTransfer-Encoding: identity" + IN_CHUNKS + SMUGGLED,
    POST + "Content-Length: 14\nContent-Length: 40" + WHOLE + SMUGGLED,
    POST + "Host: evil.example\nContent-Length: 14" + WHOLE,
    POST + "Authorization: Bearer a\nAuthorization: Bearer b\nContent-Length: 14" + WHOLE,
    POST + "Authorization: Bearer a\nX-Api-Key: b\nContent-Length: 14" + WHOLE,
    POST + "Content-Length : 14" + WHOLE, POST + "Content-Length: +14" + WHOLE,
]

# --- Attacks: bodies that take long to parse, or need much memory.
OBJECTS = filled(b'{"prompt":"a","max_tokens":1,"x":[', b"{},", b"]}")
DEEP = [b'{"prompt":' + b"[" * (BODY_BYTES - 20), filled(b'{"a":', b'{"a":', b"1"),
        b'{"a":' + b"[" * 60 + filled(b"", b"[],", b"", BODY_BYTES - 200) + b"]" * 60 + b"}"]
KEYS = [numbered(b"{", '"key%d":0', b"}", 200000), filled(b"{", b'"a":0,', b"}"),
        filled(b'{"prompt":"a","max_tokens":1,"x":[', b'{"a":{"b":{}}},', b"]}")]
STOPS = b'{"prompt":["' + b'a","' * 63 + b'a"],"max_tokens":1,' + filled(
    b'"stop":[', b'"x",', b"]}", BODY_BYTES - 1000)
BIASES = numbered(b'{"prompt":[5],"max_tokens":1,"logit_bias":{', '"%d":1', b"}}", 250000)
# Token 137 of Gemma is 31 line feeds, which are 62 bytes of JSON.
DETOKENIZE = filled(b'{"tokens":[', b"137,", b"]}")
LOGPROBS = {"prompt": [2] + [300 + i % 90 for i in range(500)], "max_tokens": 1, "n": 16,
            "echo": True, "logprobs": 20}
LONG = b"x" * (BODY_BYTES - 200)


def quotes():
    return [(CHAT, b'{"messages":[{"role":"' + LONG + b'","content":"a"}]}'),
            (CHAT, b'{"messages":[{"role":"user","content":[{"type":"' + LONG + b'"}]}]}'),
            (COMPLETIONS, b'{"prompt":"a","seed":"' + LONG + b'"}'),
            (COMPLETIONS, b'{"prompt":"a","top_p":["' + LONG + b'"]}'),
            (COMPLETIONS, b'{"prompt":"a","model":"' + LONG + b'"}'),
            (COMPLETIONS, b'{"prompt":"a","logit_bias":{"' + LONG + b'":1}}'),
            (COMPLETIONS, b'{"prompt":"a","stop_token_ids":["' + LONG + b'"]}'),
            (COMPLETIONS, b'{"prompt":"a","prompt_cache_options":{"ttl":"' + LONG + b'"}}')]


def half_bodies(target, slots=600):
    head = target.head(COMPLETIONS, f"Content-Length: {BODY_BYTES}\r\n\r\n")
    body = b"[" * (BODY_BYTES - 1)
    return Exchanges(target, lambda: Request(head, body, reads=False), slots)


def chunks(target, piece, begin="5\r\n", to_pages=False, slots=4):
    """Sends chunked bodies that never end."""
    path = "/metrics" if to_pages else "/tokenize"
    head = target.head(path, "Transfer-Encoding: chunked\r\n\r\n")
    return Exchanges(target, lambda: Request(head + begin.encode(), endless=piece, reads=False),
                     slots, to_pages=to_pages)


def pipelined(target, path, slots, to_pages=False):
    """Pipelines requests without end on each connection, and reads nothing."""
    asked = target.head(path, "\r\n", "GET", keeps=True) * 100
    return Exchanges(target, lambda: Request(asked, asked, reads=False), slots, small_window=True,
                     to_pages=to_pages)


def header_fields(target, slots=1100):
    """Sends headers of many tiny fields, up to the limit of fields or of bytes, complete or not;
    sends no body."""
    head = target.head(COMPLETIONS, "Content-Length: 5\r\n")
    made = [head + b"a:\r\n" * count + end
            for count in (120, 3900) for end in (b"", b"a", b"\r\n")]
    return Exchanges(target, in_turns([functools.partial(Request, each, reads=False)
                                       for each in made]), slots)


EXTENSIONS, TRAILERS = b"a=" * (MIB // 2), b"x-trailer: yyyyyyyyyyyyyyyyyy\r\n" * (MIB // 32)
LONG_ANSWER = {"prompt": [2] + [300 + i % 90 for i in range(64)], "max_tokens": 64,
               "ignore_eos": True}


def hang_ups(target):
    """Clients that send a request and one more byte, then close the connection."""
    text = json.dumps(LONG_ANSWER).encode()
    head = target.head(COMPLETIONS, f"Content-Length: {len(text)}\r\n\r\n")
    return Exchanges(target, lambda: Request(head, text, b"G", reads=False, ending="close"), 8)


def half_closed(target):
    """Clients that close their sending side; some wait for the answer, some leave after 2 s."""
    token = f"Authorization: Bearer {target.token}\r\n" if target.token else ""
    old = f"GET /v1/models HTTP/1.0\r\nHost: localhost\r\n{token}\r\n".encode()
    return Exchanges(target, in_turns([
        functools.partial(Request, old, ending="half"),
        functools.partial(target.post, COMPLETIONS, SMALL[COMPLETIONS], ending="half"),
        functools.partial(target.post, COMPLETIONS, LONG_ANSWER, ending="half", reads=False)]),
        slots=8, leaves_s=2.0)


def slow_streams(target):
    body = {**LONG_ANSWER, "max_tokens": 4000, "stream": True}
    return Sips(target, lambda: target.post(COMPLETIONS, body, reads=False), 8, small_window=True)


# {name: (function that makes the attack for a target, whether it uses the token of another tenant
# at a worker with identities, maximum units a second)}
ATTACKS = {
    "fields": (lambda t: Exchanges(t, posts(t, field_bodies())), True, UNITS_PER_S),
    "tokens": (odd_tokens, False, UNITS_PER_S),
    "json-objects": (lambda t: Exchanges(t, posts(t, [(COMPLETIONS, OBJECTS), (CHAT, OBJECTS)]), 2),
                     True, UNITS_PER_S),
    "json-deep": (lambda t: Exchanges(t, posts(t, [(COMPLETIONS, each) for each in DEEP]), 2),
                  True, UNITS_PER_S),
    "json-keys": (lambda t: Exchanges(t, posts(t, [(COMPLETIONS, each) for each in KEYS]), 2),
                  True, UNITS_PER_S),
    "json-strangers": (lambda t: Exchanges(t, posts(t, [(COMPLETIONS, OBJECTS)]), 8), False,
                       UNITS_PER_S),
    "chunk-extensions": (lambda t: chunks(t, EXTENSIONS, "5;"), False, UNITS_PER_S),
    "chunk-trailers": (lambda t: chunks(t, TRAILERS, "0\r\n"), False, UNITS_PER_S),
    "header-fields": (header_fields, False, UNITS_PER_S),
    "half-bodies": (half_bodies, False, UNITS_PER_S),
    "half-bodies-tenant": (half_bodies, True, UNITS_PER_S),
    "quotes": (lambda t: Exchanges(t, posts(t, quotes(), reads=False), 200, small_window=True),
               True, UNITS_PER_S),
    "unread-detokenize": (lambda t: Exchanges(
        t, posts(t, [("/detokenize", DETOKENIZE)], reads=False), 32, small_window=True), True,
        UNITS_PER_S),
    "unread-logprobs": (lambda t: Exchanges(
        t, posts(t, [(COMPLETIONS, LOGPROBS)], reads=False), 8, small_window=True), True, 1),
    "stops": (lambda t: Exchanges(t, posts(t, [(COMPLETIONS, STOPS)]), 1), True, UNITS_PER_S),
    "biases": (lambda t: Exchanges(t, posts(t, [(COMPLETIONS, BIASES)]), 1), True, UNITS_PER_S),
    "no-host": (lambda t: raw_requests(t, NO_HOST), False, UNITS_PER_S),
    "hosts": (lambda t: raw_requests(t, EVIL_HOSTS), False, UNITS_PER_S),
    "connections": (lambda t: pipelined(t, "/", 1100), False, UNITS_PER_S),
    "hang-ups": (hang_ups, True, 5),
    "half-closed": (half_closed, True, 5),
    "smuggling": (lambda t: raw_requests(t, SMUGGLING), True, UNITS_PER_S),
    "pages-extensions": (lambda t: chunks(t, EXTENSIONS, "5;", to_pages=True), False, UNITS_PER_S),
    "pages-trailers": (lambda t: chunks(t, TRAILERS, "0\r\n", to_pages=True), False, UNITS_PER_S),
    "pages-connections": (lambda t: pipelined(t, "/metrics", 200, to_pages=True), False,
                          UNITS_PER_S),
    "pages-hosts": (lambda t: raw_requests(t, EVIL_HOSTS, to_pages=True), False, UNITS_PER_S),
    "slow-streams": (slow_streams, True, 5),
}

# The statuses that these attacks may get; other attacks may get any status of the API.
WANTED = {"smuggling": {400}, "half-closed": {200}, "no-host": {200, 400, 403},
          "hosts": {400, 403}, "pages-hosts": {400, 403}}


def main():
    name, http, pages = sys.argv[1:4]
    token = sys.argv[4] if len(sys.argv) > 4 else ""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    make, _, rate = ATTACKS[name]
    share = float(sys.argv[5]) if len(sys.argv) > 5 else 0.5
    attack = make(HttpTarget(http, pages, token, share))
    print("begins", flush=True)
    hostile_calls.run(attack, rate)
    os._exit(0)  # closes all sockets


if __name__ == "__main__":
    main()
