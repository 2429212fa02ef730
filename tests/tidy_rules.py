"""The rules of tests/tidy.py. Each takes {path: lines} and returns [(path, line, text)]."""

import ast
import fnmatch
import os
import re

from tidy_classes import classes, declared, homes
from tidy_functions import functions

FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100
SOURCES_MAX = 1  # maximum number of .cc files with methods of one class

# (path pattern, rule, reason): allowed exceptions. Keep the list short.
ALLOWED = [
    ("tests/tidy_self_test.py", "words", "its fixtures are what the rule must find"),
    ("tests/tidy_rules.py", "words", "names what it bans"),
]

CODE = (".cc", ".h")
SOURCES = CODE + (".py", ".sh", ".proto")
LIBRARIES = ("proto", "cache_store", "worker")
FOLDERS = LIBRARIES + ("services", "tests", "bench", "deploy")
# {folder: folders that it may include}. tests/ and bench/ may include all.
MAY_SEE = {
    "proto": {"proto"},
    "cache_store": {"proto", "cache_store"},
    "worker": {"proto", "worker"},
    "services": {"proto", "cache_store", "worker", "services"},
}
SERVING = {"services/rpc", "services/cli", "services/serving", "services/serving/access",
           "services/serving/calls", "services/serving/http"}
# {library folder: sibling library folders that it may include}. A "room" is a subfolder that is its
# own library.
ROOMS = {
    "cache_store/base": set(),
    "cache_store/retention": set(),
    "cache_store/memory": {"cache_store/base"},
    "cache_store/shared": {"cache_store/base"},
    "cache_store/shared/tier": {"cache_store/base", "cache_store/catalog", "cache_store/shared",
                                "cache_store/store"},
    "cache_store/disk/files": {"cache_store/base"},
    "cache_store/disk": {"cache_store/base", "cache_store/disk/files"},
    "cache_store/shared/redis": {"cache_store/base", "cache_store/shared"},
    "cache_store/catalog": {"cache_store/base", "cache_store/retention"},
    "cache_store/store": {"cache_store/base", "cache_store/memory", "cache_store/disk",
                          "cache_store/catalog", "cache_store/retention"},
    "cache_store/store/background": {"cache_store/base", "cache_store/disk", "cache_store/catalog",
                                     "cache_store/store"},
    "cache_store/store/calls": {"cache_store/base", "cache_store/disk", "cache_store/catalog",
                                "cache_store/store", "cache_store/store/background"},
    "worker/kernels/base": set(),
    "worker/kernels/quantized": {"worker/kernels/base"},
    "worker/kernels": {"worker/kernels/base", "worker/kernels/quantized"},
    "worker/device": {"worker/kernels"},
    "worker/text/schema": set(),
    "worker/text/jinja": {"worker/model", "worker/text"},
    "worker/text": {"worker/kernels", "worker/model", "worker/text/jinja", "worker/text/schema"},
    "worker/model": {"worker/kernels/base"},
    "worker/model/torch": {"worker/model"},
    "worker/model/invariant": {"worker/model", "worker/kernels", "worker/kernels/base",
                               "worker/kernels/quantized", "worker/device"},
    "worker/prefix": set(),
    "worker/engine/runner": {"worker/device", "worker/model", "worker/model/torch",
                             "worker/model/invariant", "worker/prefix"},
    "worker/engine/request": {"worker/device", "worker/model", "worker/prefix", "worker/text",
                              "worker/engine/runner"},
    "worker/engine": {"worker/kernels", "worker/device", "worker/text", "worker/model",
                      "worker/model/invariant", "worker/prefix", "worker/engine/request",
                      "worker/engine/runner"},
    "services/rpc": set(),
    "services/cli": {"services/rpc"},
    "services/serving": {"services/rpc", "services/cli", "services/serving/http"},
    "services/serving/http": {"services/rpc", "services/serving", "services/serving/access",
                              "services/serving/calls"},
    "services/serving/access": {"services/rpc", "services/serving"},
    "services/serving/calls": {"services/rpc", "services/serving", "services/serving/access"},
    "services/serving/server": SERVING,
    "services/store": SERVING,
    "services/inference/calls": SERVING,
    "services/inference": SERVING | {"services/inference/calls"},
    "services/openai": SERVING | {"services/inference/calls"},
    "services/programs": SERVING | {"services/serving/server", "services/store",
                                    "services/inference", "services/inference/calls",
                                    "services/openai"},
    "services/hearthctl": SERVING | {"services/store"},
    "services/hearthctl/commands": {"services/rpc", "services/cli", "services/hearthctl"},
}
# Folders with subfolder libraries: all their sources must be in one of these.
ROOMY = sorted({room.split("/")[0] for room in ROOMS})

FOLDER_FILES_MAX = 40

# (prefixes of an include, path patterns that may include it, reason)
FENCED = [
    (("grpcpp/", "grpc/"), ("services/*", "tests/*", "bench/*"), "only services/ includes grpcpp"),
    (("hiredis/",), ("tests/*", "bench/*"), "of Redis only what cache_store/shared/redis/ has"),
    (("rocksdb/",), ("cache_store/disk/*", "tests/*", "bench/*"),
     "RocksDB only in cache_store/disk/"),
    (("ATen/", "c10/", "torch/", "caffe2/"), ("worker/*", "tests/*", "bench/*"),
     "libtorch only in worker/"),
    (("hwy/",), ("worker/kernels/*",), "Highway only in worker/kernels/"),
    (("cuda",), ("cache_store/memory/cuda_memory.cc", "worker/device/cuda_device.cc",
                 "tests/gpu/*", "bench/gpu/*"),
     "the CUDA runtime only in cache_store/memory/cuda_memory.cc and worker/device/"),
    (("torch/torch.h", "torch/extension.h"), (), "40 s a translation unit: include ATen headers"),
    (("absl/log/", "absl/crc/"), (), "Debian 12's Abseil does not have it"),
]
INCLUDE = re.compile(r'\s*#\s*include\s*[<"]([^>"]+)[>"]')

# (banned pattern, path patterns where it is banned, what to do instead)
BANNED = [
    (re.compile(r"\b(sleep|sleep_for|sleep_until|usleep|nanosleep|SleepFor)\s*\("), ("tests/*",),
     "sleep in a test: wait for a condition, or use a fake clock"),
    (re.compile(r"\busing namespace\b"), ("*.cc", "*.h"), "using namespace: name what is used"),
    (re.compile(r"\bTODO\b(?!\(#\d+\))"), ("*",), "TODO without an issue: write TODO(#12)"),
    (re.compile(r"\b(getenv|setenv)\s*\("),
     ("proto/*.cc", "cache_store/*.cc", "worker/*.cc", "*.h"),
     "environment read below main: pass an option"),
    (re.compile(r"\babsl::Now\(\)"),
     ("services/serving/access/connection_*", "services/serving/calls/*",
      "services/inference/blocking_stream.h", "services/inference/store_stream.h",
      "services/inference/remote_prefix_cache.*", "services/rpc/client_access*",
      "worker/prefix/*"),
     "a wait would be hours longer when the machine's clock is set back: use SteadyClock"),
    (re.compile(r"\bABSL_FLAG\b"), ("*.cc", "*.h"), "flags live in services/serving/flags"),
]


def allowed(path, rule):
    return any(fnmatch.fnmatch(path, pattern) and rule == name for pattern, name, _ in ALLOWED)


def matches(path, patterns):
    return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)


def python_functions(lines):
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno


def check_shape(files):
    """Limits the files in a folder, and the lengths of functions and lines."""
    found = list(_crowd_findings(files))
    for path, lines in files.items():
        for number, line in enumerate(lines, 1):
            if len(line) > COLUMNS_MAX and "http" not in line and not allowed(path, "columns"):
                found.append((path, number, f"{len(line)} columns, the limit is {COLUMNS_MAX}"))
        spans = []
        if path.endswith(CODE):
            spans = functions(lines)
        elif path.endswith(".py"):
            spans = python_functions(lines)
        for name, first, last in spans:
            length = last - first + 1
            if length > FUNCTION_LINES_MAX and not allowed(path, "function"):
                found.append((path, first, f"{name} has {length} lines, the limit of a function "
                                           f"is {FUNCTION_LINES_MAX}"))
    return found


def check_classes(files):
    """Checks classes. Two classes of one program must not have the same name. The methods of a
    class must be in one .cc file. A .cc file must not define what the header of another .cc file
    declares."""
    found, defined, sources, functions_of, declares = [], {}, {}, {}, {}
    for path, lines in files.items():
        if not path.endswith(CODE) or path.split("/")[0] not in MAY_SEE:
            continue
        for name, line, is_local in classes(lines):
            if not is_local and defined.setdefault(name, path) != path:
                found.append((path, line, f"{name} is a type in {defined[name]}, too"))
        if path.endswith(".h"):
            declares[path] = declared(lines)
            continue
        its_classes, functions_of[path] = homes(lines)
        for name in its_classes:
            sources.setdefault(name, []).append(path)
    for name, paths in sorted(sources.items()):
        if len(paths) > SOURCES_MAX:
            found.append((paths[0], 1, f"{name} is in {len(paths)} .cc files, the limit is "
                                       f"{SOURCES_MAX}: " + ", ".join(paths)))
    return found + list(_stray_findings(sources, defined, functions_of, declares))


def _stray_findings(sources, defined, functions_of, declares):
    def owner(header):
        return header[:-len(".h")] + ".cc"

    def finding(path, name, header):
        if not allowed(path, "stray"):
            yield path, 1, f"{name} is declared in {header}, which belongs to {owner(header)}"

    for name, paths in sources.items():
        header = defined.get(name, "")
        if header.endswith(".h") and owner(header) in functions_of and owner(header) not in paths:
            yield from finding(paths[0], name, header)
    homes_of = {}
    for path, names in functions_of.items():
        for name in names:
            homes_of.setdefault(name, set()).add(path)
    for header, names in declares.items():
        for name in names if owner(header) in functions_of else ():
            homes_here = homes_of.get(name, {owner(header)})
            if not any(owner(header) == path or name in declares.get(path[:-len(".cc")] + ".h", ())
                       for path in homes_here):
                yield from finding(min(homes_here), name, header)


def _crowd_findings(files):
    held = {}
    for path in files:
        if path.endswith(SOURCES):
            held.setdefault(os.path.dirname(path), []).append(path)
    for folder, paths in sorted(held.items()):
        if len(paths) > FOLDER_FILES_MAX:
            yield (paths[0], 1,
                   f"{folder}/ holds {len(paths)} files, the limit is {FOLDER_FILES_MAX}: "
                   "make rooms")
        elif folder in ROOMY:
            yield paths[0], 1, f"{folder}/ has rooms: put it into one of them"


def _room_findings(path, number, target):
    room, to = os.path.dirname(path), os.path.dirname(target)
    is_sibling = to != room and to.split("/")[0] == room.split("/")[0]
    if room in ROOMS and to in ROOMS and is_sibling and to not in ROOMS[room]:
        yield path, number, f"{room}/ includes {target}: the room {room}/ may not see {to}/"
    for side, folder in ((path, room), (target, to)):
        if folder.startswith(tuple(f"{name}/" for name in ROOMY)) and folder not in ROOMS:
            yield path, number, f"{side}: name the room {folder}/ in ROOMS, and what it may see"


def _arrow_findings(path, number, target):
    folder, to = path.split("/")[0], target.split("/")[0]
    is_ours = to in FOLDERS and "/" in target
    if is_ours and folder in MAY_SEE and to not in MAY_SEE[folder]:
        yield path, number, f"{folder}/ includes {target}: {folder}/ may not see {to}/"
    yield from _room_findings(path, number, target)
    if target.endswith(".pb.h") and folder in LIBRARIES:
        yield path, number, f"{target}: libraries stay free of generated code"
    for prefixes, patterns, why in FENCED:
        if target.startswith(prefixes) and not matches(path, patterns):
            yield path, number, f"includes {target}: {why}"
    if target.startswith(("ATen/", "c10/")) and folder == "worker" and path.endswith(".h"):
        yield path, number, "torch"  # allowed if the header says that it is private


def check_arrows(files):
    """Checks includes: which folders may include which folders, and which may use which
    libraries."""
    found = []
    for path, lines in files.items():
        if not path.endswith(CODE) or allowed(path, "arrows"):
            continue
        says_private = re.search(r"\b(private|internal)\b", " ".join(lines[:30]), re.IGNORECASE)
        for number, line in enumerate(lines, 1):
            match = INCLUDE.match(line)
            for finding in _arrow_findings(path, number, match[1]) if match else ():
                if finding[2] != "torch":
                    found.append(finding)
                elif not says_private:
                    found.append((path, number, "a header with ATen must say that it is private"))
    return found


def check_patterns(files):
    """Each path pattern of the rules must match a file; otherwise the file was renamed or
    removed."""
    this = "tests/tidy_rules.py"
    patterns = {pattern for pattern, _, _ in ALLOWED}
    for _, where, _ in FENCED + BANNED:
        patterns.update(where)
    return [(this, 1, f"the pattern {pattern} matches no file")
            for pattern in sorted(patterns) if this in files
            and not any(fnmatch.fnmatch(path, pattern) for path in files)]


def check_words(files):
    found = []
    for path, lines in files.items():
        if allowed(path, "words"):
            continue
        for number, line in enumerate(lines, 1):
            for pattern, where, why in BANNED:
                if matches(path, where) and pattern.search(line):
                    found.append((path, number, why))
    return found


def _built(files):
    """Returns {folder: words} of all CMake files, without comments."""
    words = {}
    for path, lines in files.items():
        if path.endswith(("CMakeLists.txt", ".cmake")):
            text = "\n".join(line.split("#")[0] for line in lines)
            words.setdefault(os.path.dirname(path), set()).update(
                re.findall(r"[\w.+-]+", text))
    return words


def _tests_around(built, folder):
    """Returns the words of the CMake files in a test's folder and in the folders above it."""
    words = set()
    while folder:
        words |= built.get(folder, set())
        folder = os.path.dirname(folder)
    return words


def check_registered(files):
    """Each .cc must be in a CMake file, and each test in a CMake file of tests/."""
    found = []
    built = _built(files)
    everywhere = set().union(*built.values()) if built else set()
    for path in files:
        folder, name = os.path.split(path)
        top = path.split("/")[0]
        if path.endswith(".cc") and top in FOLDERS and name not in everywhere:
            found.append((path, 1, "is in no CMakeLists.txt: it is not compiled"))
            continue
        words = _tests_around(built, folder)
        if name.endswith("_test.cc") and name not in words:
            found.append((path, 1, "is in no CMakeLists.txt of tests/: it is not run"))
        elif name.endswith("_test.py") and top == "tests" and name != "tidy_self_test.py":
            if name not in words and name[:-len("_test.py")] not in words:
                found.append((path, 1, "is in no CMakeLists.txt of tests/: it is not run"))
    return found
