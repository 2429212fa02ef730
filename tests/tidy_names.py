"""Finds metrics, flags and texts of messages that are defined in more than one place.

Usage: tidy_names.py ROOT    lists all of them, with the place of each

`check_names` is a rule of tidy.py. Each metric and each flag must be defined once. A text is the
literals of one call, with or without values between them, if it has at least three words and 20
characters; or one literal of at least 25 characters. Each text may occur once in the programs'
sources: if two places need it, make it a constant or a function.
"""

import collections
import os
import re
import sys

from cpp_tokens import TOKEN, line_of

FOLDERS = ("proto", "cache_store", "worker", "services")
TEXT_CHARACTERS_MIN = 20
# A shorter literal is a common phrase, such as " bytes; the limit is ".
FRAGMENT_CHARACTERS_MIN = 25
WORDS_MIN = 3

MARKS = set("(){}[],;")

# Counters in stats.cc and engine_counters.cc whose metric has a different name.
RENAMED = {
    "evicted_restore_points", "bytes_read_host", "bytes_read_disk", "bytes_read_gpu",  # by tier
    "cached_tokens_worker", "cached_tokens_gpu", "cached_tokens_host", "cached_tokens_disk",
    "cached_tokens_shared",
    "shared_read_bytes", "shared_written_bytes",
    "last_full_scrub_unix_s", "shared_unreachable_shards",  # gauges
}
COUNTERS = {"stats.cc": "hearth_store_", "engine_counters.cc": "hearth_worker_"}

# {program: files that declare its flags}. hearthctl's flags are in all files of COMMANDS.
SERVERS = {"hearth-store": ("hearth_store_main.cc", "shared_tier.cc", "flags.cc"),
           "hearth-worker": ("hearth_worker_main.cc", "flags.cc")}
SERVER_FLAG = re.compile(
    r'\bAdd(?:Text|Required|Bytes|Duration|Uint|Share|Choice)\(\s*"([a-z][a-z-]*)"')
COMMAND_FLAG = re.compile(
    r'\b(?:[Aa]dd|add_(?:option|flag)(?:_\w+)?(?:<[\w:]+>)?'
    r'|Add(?:Choice|Duration|Field|List<[\w:]+>))\(\s*(?:\w+,\s*)?"(--[a-z][a-z0-9-]*)[",]')
MENTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*[a-z0-9])\b")

# {flag of hearthctl that means something different in each command: its meanings}.
OF_ITS_COMMAND = {
    "--data-dir": "what is read, what is made, and what stands in for a running store",
    "--secret-file": "of a stopped store",
}
# COMMANDS: folders that declare flags of commands. OTHER_FLAGS: flags of the parser, and --worker,
# whose name connection.cc makes from the kind of server.
COMMANDS = ("services/hearthctl/", "services/cli/", "bench/simulate/")
OTHER_FLAGS = {"help", "version", "man", "config", "worker"}


def said(text):
    """Returns [(line, text)] of the string literals of a C++ file. Adjacent literals are joined,
    and so are the literals inside one pair of brackets, with * for each value between them."""
    # Groups of open brackets; an entry is [line, literal], or None for a value.
    found, stack = [], [[]]
    for match in TOKEN.finditer(text):
        group = stack[-1]
        mark = match["word"] if match["word"] in MARKS else None
        if match["text"] is not None:
            if group and group[-1] is not None:
                group[-1][1] += match["text"]
            else:
                group.append([line_of(text, match.start()), match["text"]])
        elif mark is not None and mark in ")]};":
            found += _texts_of(group)
            if mark == ";" or len(stack) == 1:
                stack[-1] = []
            else:
                stack.pop()
        elif match["skip"] is None:
            if not group or group[-1] is not None:
                group.append(None)
            if mark is not None and mark in "([{":
                stack.append([])
    return found


def _texts_of(group):
    literals = [each for each in group if each is not None]
    whole = "*".join(literal for _, literal in literals)
    is_phrase = any(" " in literal.strip() for _, literal in literals)
    if (is_phrase and len(whole.replace("*", " ").split()) >= WORDS_MIN
            and len(whole) >= TEXT_CHARACTERS_MIN and (len(literals) > 1 or len(group) == 1)):
        yield literals[0][0], whole
    for line, literal in literals if len(group) > 1 else ():
        if len(literal) >= FRAGMENT_CHARACTERS_MIN and len(literal.split()) >= WORDS_MIN:
            yield line, literal


def sources(files):
    for path, lines in files.items():
        if path.split("/")[0] in FOLDERS and path.endswith((".cc", ".h")):
            yield path, "\n".join(lines)


def metrics(files):
    """Returns {name: [(path, line)]} of the servers' metrics."""
    found = collections.defaultdict(list)
    for path, text in sources(files):
        prefix = COUNTERS.get(os.path.basename(path))
        names = re.search(r"kNames\[\] = \{(.*?)\};", text, re.S) if prefix else None
        for match in re.finditer(r'"(\w+)"', names[1]) if names else ():
            if match[1] not in RENAMED:
                at = path, line_of(text, names.start(1) + match.start())
                found[f"{prefix}{match[1]}_total"].append(at)
        for match in re.finditer(r'"(hearth_(?:store|worker)_\w*[a-z])"', text):
            found[match[1]].append((path, line_of(text, match.start())))
        for match in re.finditer(r'\bprefix \+ "(_\w+_seconds)"', text):
            at = path, line_of(text, match.start())
            # Only workers generate.
            for server in ("worker",) if "generation" in match[1] else ("store", "worker"):
                found[f"hearth_{server}{match[1]}"].append(at)
        for match in re.finditer(r'\bconstexpr char k\w+Latency\[\] = "(\w+)"', text):
            at = path, line_of(text, match.start())
            found[f"hearth_store_{match[1]}_seconds"].append(at)
    return found


def counters_named_again(files):
    """Yields literals with a counter's name that are not keys of a JSON object: they must use
    CounterName."""
    names = {}
    for path, text in sources(files):
        array = re.search(r"kNames\[\] = \{(.*?)\};", text, re.S)
        if array and os.path.basename(path) in COUNTERS:
            names.update({name: path for name in re.findall(r'"(\w+_\w+)"', array[1])})
    for path, text in sources(files):
        for match in re.finditer(r'"(\w+_\w+)"', text):
            is_key = re.search(r"\[$|\{\s*$", text[:match.start()]) and re.match(
                r'\]\s*(=|\[|\.Append)|,\s*(?!")', text[match.end():])
            if match[1] in names and os.path.basename(path) not in COUNTERS and not is_key:
                yield path, line_of(text, match.start()), (
                    f"{match[1]} is a counter's name, defined in {names[match[1]]}: CounterName")


def flags(files):
    """Returns {(program, flag): [(path, line)]}."""
    found = collections.defaultdict(list)
    for path, text in sources(files):
        leaf = os.path.basename(path)
        for program, its in SERVERS.items():
            for match in SERVER_FLAG.finditer(text) if leaf in its else ():
                found[program, "--" + match[1]].append((path, line_of(text, match.start())))
        for match in COMMAND_FLAG.finditer(text) if path.startswith(COMMANDS) else ():
            found["hearthctl", match[1]].append((path, line_of(text, match.start())))
    return found


def texts(files):
    """Returns {text: [(path, line)]} of the programs' messages."""
    found = collections.defaultdict(list)
    for path, text in sources(files):
        for line, each in said(text):
            found[each].append((path, line))
    return found


def _flag_findings(files, said_texts):
    known = OTHER_FLAGS.copy()
    by_place = collections.defaultdict(set)
    for (program, flag), places in flags(files).items():
        known.add(flag[2:])
        for place in places:
            by_place[flag, program if program == "hearthctl" else "a server"].add(place)
    for (flag, _), places in by_place.items():
        if flag not in OF_ITS_COMMAND:
            yield from _twice(f"flag {flag}", sorted(places))
    for text, places in said_texts.items():
        for flag in MENTION.findall(text):
            if flag not in known:
                yield (*places[0], f"--{flag} is no flag of any program")


def _twice(what, places):
    for path, line in places[1:]:
        yield path, line, f"{what} is defined in {places[0][0]}:{places[0][1]}, too"


def check_names(files):
    """Each metric, flag and text must be defined in one place."""
    said_texts = texts(files)
    found = list(counters_named_again(files)) + list(_flag_findings(files, said_texts))
    for name, places in metrics(files).items():
        found += _twice(f"metric {name}", places)
    for text, places in said_texts.items():
        found += _twice(f'text "{text}"', places)
    return found


def main():
    from tidy import read_tree
    files = read_tree(sys.argv[1])
    for title, table in (("metric", metrics(files)), ("flag", flags(files)),
                         ("text", texts(files))):
        for name, places in sorted(table.items()):
            name = " ".join(name) if isinstance(name, tuple) else name
            print(f"{places[0][0]}:{places[0][1]}: {title} {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
