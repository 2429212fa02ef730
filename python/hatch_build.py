"""Build hook of the wheel: compiles the .proto files into hearth_cache.v1, and makes the blocking
clients from the asyncio clients in hearth_cache.aio.

The messages are compiled under the package's own name: a module `proto` would hide proto-plus.
"""

from __future__ import annotations

import email
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "hearth_cache/v1"
# (pattern, replacement), applied in this order. They turn asyncio code into blocking code; for
# example, AsyncStore becomes Store.
BLOCKING = (
    (r"\bhearth_cache\.aio\b", "hearth_cache"),
    (r"\bAsyncGenerator\[(.*), None\]", r"Generator[\1, None, None]"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\basync (?=def|for|with)|\bawait ", ""),
    (r"\b__a(?=enter|exit|iter|next)", "__"),
    (r"\baclos(e|ing)\b", r"clos\1"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bAwaitable(?:\[([\w.]+)\]|, )", r"\1"),
    (r"(\S+)\.get_state\(try_to_connect=True\)", r"grpc.channel_ready_future(\1)"),
    (r"\bgrpc\.aio\b", "grpc"),
    (r"\bAioRpcError\b", "RpcError"),
    (r"\bfrom asyncio import Queue\b", "from queue import Queue"),
    (r"\bfrom asyncio import sleep\b", "from time import sleep"),
)
FILES = ("cache_store", "chunk_run", "inference", "store_stats")


def version() -> str:
    """Returns the version of the repository; in a source package, that package's version."""
    root = pathlib.Path(__file__).parent
    if (root / "PKG-INFO").exists():
        return email.message_from_bytes((root / "PKG-INFO").read_bytes())["Version"]
    command = [root.parent / "scripts" / "version.sh", "version"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def strict(stub: str) -> str:
    """Corrects two errors of protoc's type stubs: a field named `bytes` hides the type `bytes` from
    the other fields, and mappings have no type parameters."""
    stub = re.sub(r"(: |\[)bytes\b(?!:)", r"\1_bytes", stub)
    stub = re.sub(r"_Mapping(?=\])", "_Mapping[str, _Any]", stub)
    return "from builtins import bytes as _bytes\nfrom typing import Any as _Any\n" + stub


def blocking(source: str) -> str:
    for pattern, instead in BLOCKING:
        source = re.sub(pattern, instead, source)
    return "# Made from aio/ by hatch_build.py.\n" + source


class MessagesHook(BuildHookInterface[Any]):
    made: pathlib.Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root = pathlib.Path(self.root)
        source = root / "proto" if (root / "proto").is_dir() else root.parent / "proto"
        self.made = pathlib.Path(tempfile.mkdtemp(prefix="hearth-cache-"))
        package = self.made / PACKAGE
        package.mkdir(parents=True)
        for name in FILES:
            text = (source / f"{name}.proto").read_text(encoding="utf-8")
            text = re.sub('(import (?:public )?")proto/', rf"\1{PACKAGE}/", text)
            (package / f"{name}.proto").write_text(text, encoding="utf-8")
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", f"-I{self.made}",
             f"--python_out={self.made}", f"--pyi_out={self.made}",
             *[f"{PACKAGE}/{name}.proto" for name in FILES]], check=True)
        for path in sorted(package.glob("*_pb2.py*")):
            if path.suffix == ".pyi":
                path.write_text(strict(path.read_text(encoding="utf-8")), encoding="utf-8")
            build_data["force_include"][str(path)] = f"{PACKAGE}/{path.name}"
        clients = root / "src" / "hearth_cache"
        for path in (clients / "aio").glob("*.py"):
            # A blocking module that exists already was written by hand.
            if not (clients / path.name).exists():
                made = self.made / path.name
                made.write_text(blocking(path.read_text(encoding="utf-8")), encoding="utf-8")
                build_data["force_include"][str(made)] = f"hearth_cache/{path.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self.made is not None:
            shutil.rmtree(self.made)
