"""Shared by the programs of this package: the flags of a server, exit codes, and the error line.

Exit codes: 0 done; 1 failed; 2 the command line, or a value in it, was wrong; 3 the server was not
reached; 130 interrupted. With each code but 0, one line on stderr says what is wrong, where, and
what to do.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import NoReturn, Union

import grpc

from hearth_cache._calls import Access
from hearth_cache.errors import HearthError

OK, FAILED, USAGE, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130
_ACCESS = (
    ("tls-ca", "connect with TLS; CA (PEM) that signed the server's certificate"),
    ("tls-cert", "client certificate (PEM)"), ("tls-key", "its private key (PEM)"),
    ("token-file", "file with the bearer token"))
# Unicode's control characters except line feeds and tabs, and the marks that change the direction
# of text.
_CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def shown(text: str) -> str:
    """Escapes control characters, so that text from a server or a file cannot control the
    terminal."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 0x100
                         else f"\\u{ord(found[0]):04x}", text)


class Parser(argparse.ArgumentParser):
    """An argument parser that prints errors in one line. --help shows `examples` after the
    flags."""

    def __init__(self, program: str, about: str, examples: str) -> None:
        super().__init__(program, usage=f"python -m {program} [FLAG...]", description=about,
                         epilog="examples:\n" + examples, allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument("--version", action="version", version=version("hearth-cache"))

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {shown(message)} (--help shows examples)\n")

    def fail(self, error: Union[HearthError, OSError, ValueError]) -> int:
        """Prints the error line; returns the exit code."""
        name = error.code.name + ": " if isinstance(error, HearthError) else ""
        text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and \
            error.filename else str(error)
        if name.startswith(grpc.StatusCode.UNIMPLEMENTED.name):
            text += f" (is the server a {self._kind} of this version? pass --{self._kind} ADDR)"
        line = shown(f"{self.prog}: {name}{text}".replace("\n", " "))
        print(line, file=sys.stderr, flush=True)
        is_wrong = isinstance(error, ValueError) or \
            name.startswith(grpc.StatusCode.INVALID_ARGUMENT.name)
        return USAGE if is_wrong else FAILED

    def add_server(self, kind: str, port: int) -> None:
        """Adds the flags for a server's address and credentials; access_of() reads the
        credentials."""
        self._kind = kind
        variable, usual = f"HEARTHCTL_{kind.upper()}", f"127.0.0.1:{port}"
        self.add_argument(
            f"--{kind}", dest="address", metavar="ADDR", type=address,
            default=os.environ.get(variable) or usual,
            help=f"address of the {kind}, host:port or unix:PATH (default: {usual}) [{variable}]")
        group = self.add_argument_group("access")
        for name, meaning in _ACCESS:
            variable = "HEARTHCTL_" + name.upper().replace("-", "_")
            group.add_argument(f"--{name}", metavar="FILE", help=f"{meaning} [{variable}]",
                               default=os.environ.get(variable) or None)
        group.add_argument("--plaintext-tokens", action="store_true",
                           help="send the token to another host without TLS")


def access_of(flags: argparse.Namespace) -> Access:
    return Access(tls_ca=flags.tls_ca, tls_cert=flags.tls_cert, tls_key=flags.tls_key,
                  token_file=flags.token_file, plaintext_tokens=flags.plaintext_tokens)


def address(text: str) -> str:
    port = re.fullmatch(r".+:(\d{1,5})", text)
    if not re.fullmatch(r"unix(-abstract)?:.+", text) and \
            not (port and 0 < int(port[1]) < 1 << 16):
        raise argparse.ArgumentTypeError(f'must be host:port or unix:PATH; got "{text}"')
    return text


def whole(least: int, most: int) -> Callable[[str], int]:
    """Returns the argparse type of a flag whose value is an integer in [least, most]."""
    def number(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,20}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be an integer in [{least}, {most}]; got {text}")
        return int(text)
    return number


def duration(text: str) -> float:
    """Converts 30s, 500ms, 1h30m or plain seconds to seconds."""
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    part = r"(\d{1,9}(?:\.\d{1,9})?)(h|ms|m|s|us|ns)"
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
        return float(text)
    if not re.fullmatch(f"({part})+", text):
        raise argparse.ArgumentTypeError(f'must be a duration like 250ms, 2s or 1m; got "{text}"')
    return sum(float(number) * units[unit] for number, unit in re.findall(part, text))


def utf8(text: str) -> str:
    """Raises an error if an argument is not UTF-8: Python would decode it to surrogates, which
    protobuf refuses."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise argparse.ArgumentTypeError(f"is not UTF-8 at character {error.start}") from None
    return text
