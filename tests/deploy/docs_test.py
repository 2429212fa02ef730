"""Each link, file, flag, variable and metric on the pages exists in the tree or the programs."""
import functools
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import manifests as m

sys.path.insert(0, str(m.ROOT / "tests"))

import cpp_tokens  # noqa: E402
import tidy  # noqa: E402
import tidy_names  # noqa: E402
import tidy_rules  # noqa: E402

TREE = tidy.read_tree(m.ROOT)
ALL_METRICS = tidy_names.metrics(TREE)
DOCS = m.ROOT / "docs"
ROOT_PAGES = [m.ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES = sorted(DOCS.rglob("*.md")) + ROOT_PAGES
ARCHITECTURE, DECISIONS = DOCS / "dev/architecture.md", DOCS / "dev/decisions.md"
SOURCE_SUFFIXES = {".cc", ".h", ".cu", ".py", ".sh", ".proto", ".cmake", ".txt", ".yaml", ".yml",
                   ".toml", ".Dockerfile"}
# Flags on pages that belong to no program here: mypy's, and an example in the reference.
FOREIGN_FLAGS = {"--strict", "--some-name"}
MESSAGE_FOLDERS = ("proto", "cache_store", "worker", "services")
TROUBLESHOOTING = DOCS / "troubleshooting.md"
PROGRAMS = ("hearth-store", "hearth-worker", "hearth-simulate", "hearthctl")


def name_of(page):
    return page.relative_to(m.ROOT).as_posix()


def without_blocks(text):
    """Replaces code blocks by empty lines, so that line numbers stay the same."""
    return re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text,
                  flags=re.M | re.S)


def code_blocks(text):
    return re.findall(r"^```[^\n]*\n(.*?)^```", text, re.M | re.S)


def code_spans(text):
    return re.findall(r"`([^`\n]+)`", without_blocks(text))


def headings(page):
    """Returns the anchors that GitHub and similar sites make for the page's headings."""
    found = re.findall(r"^#+ (.+)$", without_blocks(page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in found}


def broken_links(page, text):
    broken = []
    for target in re.findall(r"\]\(([^)]+)\)", without_blocks(text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page if not path else (page.parent / path)
        if not file.exists() or (anchor and anchor not in headings(file)):
            broken.append(target)
    return broken


def documented_metrics(server):
    """Returns the metric names in observability.md's rows about `server`. A row may shorten a name
    to its end, like `_hits_total`."""
    names = set()
    for line in (DOCS / "observability.md").read_text().splitlines():
        if line.startswith(f"| `{server}_"):
            for name in re.findall(r"`([a-z_]+)(?:\{[a-z,]+\})?`", line.split("|")[1]):
                names.add(server + name if name.startswith("_") else name)
    return names


def metrics_in_the_source(server):
    return {name for name in ALL_METRICS if name.startswith(server + "_")}


def unknown_metrics(text):
    """Returns metric names that no source defines. Ignores `hearth_store_shared_...`, which stands
    for several names."""
    named = re.findall(r"\bhearth_(?:store|worker)_[a-z0-9_]*[a-z0-9](?!\w*(?:\.\.\.|\*))", text)
    programs = {pathlib.Path(path).stem for path in TREE}
    return [name for name in named
            if not {name, re.sub(r"_(bucket|sum|count)$", "", name)} & set(ALL_METRICS)
            and not name.endswith("_test") and name not in programs]


def missing_files(text):
    """Returns paths in code spans that do not exist; a source file may lack its suffix."""
    folders = "proto|cache_store|worker|services|tests|bench|scripts|deploy|docs|examples|python"
    paths = re.findall(rf"`((?:{folders})/[\w./-]*)`", text)
    return [path for path in paths if not (m.ROOT / path).exists()
            and not list(m.ROOT.glob(path + ".*"))]


def tables_without_header(text):
    """Returns the line numbers of tables whose row of dashes has no matching header above it."""
    lines = [""] + without_blocks(text).splitlines()
    cells = [len(re.findall(r"(?<!\\)\|", line)) for line in lines]
    return [number for number, line in enumerate(lines)
            if re.fullmatch(r"\|( *:?-+:? *\|)+", line) and cells[number - 1] != cells[number]]


@functools.cache
def flags_by_command():
    """Returns ({"hearthctl generate": {"--prompt", ...}, ...}, all environment variables)."""
    flags, variables = {}, set()
    for program in PROGRAMS:
        how = "reference" if program == "hearthctl" else "--reference"
        text = subprocess.run([str(m.BIN / program), how], check=True, capture_output=True,
                              text=True, timeout=240).stdout
        for section in re.split(r"^#{2,3} ", text, flags=re.M)[1:]:
            rows = re.findall(r"^\| (`-.*?) \|(.*)$", section, re.M)
            shown = {flag for cell, _ in rows for flag in re.findall(r"`(--?[\w-]+)`", cell)}
            flags[section.splitlines()[0].strip()] = shown
            variables |= {name for _, rest in rows for name in re.findall(r"`(HEARTH\w+)`", rest)}
    return flags, variables


@functools.cache
def flags_of_scripts():
    """Returns all words like --flag in the repository's scripts and Python programs."""
    found = set()
    for path, lines in TREE.items():
        if path.startswith(("python/", "scripts/", "bench/")) or path == "hearth":
            found |= set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", "\n".join(lines)))
    return found


def command_lines(text):
    """Yields the commands in code blocks and spans, with continued lines joined, without
    comments."""
    for block in code_blocks(text):
        for line in block.replace("\\\n", " ").splitlines():
            yield re.sub(r"\s#\s.*", "", line)
    yield from code_spans(text)


def unknown_flags(text):
    """Returns flags in command lines that their program does not have, and flags in code spans that
    no program has."""
    flags, _ = flags_by_command()
    everything = set().union(*flags.values()) | flags_of_scripts() | FOREIGN_FLAGS
    unknown = []
    for line in command_lines(text):
        # A command ends at a pipe, a semicolon, an ampersand, or the next program.
        for part in re.split(r"[|;&]|(?=\bhearth(?:ctl|-\w+)\s)", line):
            found = re.match(r"(?:\S*/)?(hearth(?:ctl|-store|-worker|-simulate))((?: +[a-z]+)*)",
                             part)
            shown = re.findall(r"(?<![\w-])--[a-z][\w-]*", part)
            if found:
                words = (found[1] + found[2]).split()
                names = [" ".join(words[:n]) for n in range(len(words), 0, -1)]
                known = flags[next(name for name in names if name in flags)]
                unknown += [f"{found[1]}: {flag}" for flag in shown if flag not in known]
            elif part.startswith("--"):
                unknown += [flag for flag in shown if flag not in everything]
    return unknown


def unknown_variables(text):
    """Returns environment variables that neither a flag nor docker-compose.yml has."""
    _, variables = flags_by_command()
    composed = set(re.findall(r"\$\{(\w+)", (m.ROOT / "docker-compose.yml").read_text()))
    named = re.findall(r"\bHEARTH(?:_STORE|_WORKER|CTL)_[A-Z0-9_]*[A-Z0-9](?!\w*(?:\.\.\.|\*))",
                       text)
    return [name for name in named if name not in variables | composed]


@functools.cache
def program_texts():
    """Returns (the string literals of each source file of the programs, all words of the files).
    The literals are one text, with * between literals that are not adjacent."""
    texts, words = [], set()
    for path, lines in TREE.items():
        if not path.startswith(MESSAGE_FOLDERS) or not path.endswith((".cc", ".h", ".cu")):
            continue
        source, parts, is_adjacent = "\n".join(lines), [], False
        for match in cpp_tokens.TOKEN.finditer(source):
            if match["text"] is not None:
                parts += [] if is_adjacent else ["*"]
                parts.append(match["text"].replace('\\"', '"'))
                is_adjacent = True
            elif match["skip"] is None:
                is_adjacent = False
        texts.append("".join(parts))
        words.update(re.findall(r"\w+", source))
    return texts, words


def unknown_quotes(text):
    """Returns the quotes of troubleshooting.md that are not in the programs' literals. A quote is a
    code span in the first column. Its placeholders, which the page's second paragraph lists, stand
    for any value. A quote without spaces must consist of words of the sources."""
    placeholders = set(code_spans(text.split("\n\n")[1].split(" stand for values")[0]))
    texts, words = program_texts()

    def is_printed(quote):
        if " " not in quote:
            return set(re.findall(r"\w+", quote)) - placeholders <= words
        pieces = re.split(r"\b(?:" + "|".join(placeholders) + r")\b", quote)
        pattern = re.compile(".{1,80}?".join(re.escape(piece) for piece in pieces if piece))
        return any(pattern.search(one) for one in texts)

    rows = re.findall(r"^\|(.*?)(?<!\\)\|", text.split("\n## Error codes")[0], re.M)
    return [quote for row in rows for quote in code_spans(row) if not is_printed(quote)]


def decision_findings(text):
    """Returns errors in the numbers, the index and the form of the decisions."""
    entries = re.findall(r"^## (D\d+)\. .*$", text, re.M)
    index = text[:text.index("\n## ")] if "\n## " in text else text
    listed = re.findall(r"\[(D\d+) [^\]]*\]\(#(d\d+)-", index)
    found = []
    if entries != [f"D{number}" for number in range(1, len(entries) + 1)]:
        found.append(f"numbers are not 1 to {len(entries)} in order")
    if [number for number, _ in listed] != entries:
        found.append("the index does not list each entry once, in order")
    found += [f"{number} leads to {anchor}" for number, anchor in listed
              if anchor != number.lower()]
    for entry in re.split(r"^## ", text, flags=re.M)[1:]:
        number = entry.split(".")[0]
        for part in ("Context", "Decision", "Cost"):
            if entry.count(f"**{part}.**") != 1:
                found.append(f"{number} has no {part}, or several")
        if not 40 <= len(entry.split()) <= 160:
            found.append(f"{number} has {len(entry.split())} words")
    return found


def pages_that_sources_name():
    """Yields (source, page) for each `docs/...md` that a file outside of docs/ names."""
    for path in sorted(m.ROOT.rglob("*")):
        parts = path.relative_to(m.ROOT).parts
        if parts[0] in tidy.SKIPPED | {"docs"} or path.suffix not in SOURCE_SUFFIXES:
            continue
        if any(part in tidy.SKIPPED or part.startswith("build-") for part in parts):
            continue
        if path.is_file() and path != pathlib.Path(__file__).resolve():
            text = path.read_text(errors="replace")
            for page in re.findall(r"(?<![\w/.-])docs/[\w/-]+\.md", text):
                yield "/".join(parts), page
            for number in re.findall(r"decisions\.md, (D\d+)", text):
                yield "/".join(parts), f"docs/dev/decisions.md {number}"


class DocsTest(unittest.TestCase):

    def test_page_links_are_valid(self):
        for page in PAGES:
            self.assertEqual(broken_links(page, page.read_text()), [], name_of(page))

    def test_broken_links_are_reported(self):
        page = m.ROOT / "README.md"
        text = "[a](docs/gone.md) [b](docs/dev/architecture.md#gone) [c](LICENSE)"
        self.assertEqual(broken_links(page, text),
                         ["docs/gone.md", "docs/dev/architecture.md#gone"])
        self.assertEqual(broken_links(ARCHITECTURE, "[a](invariants.md) [b](invariants.md#gone)"),
                         ["invariants.md#gone"])

    def test_tables_have_header_rows(self):
        for page in PAGES:
            self.assertEqual(tables_without_header(page.read_text()), [], name_of(page))
        table = "| a | b |\n| --- | --- |\n"
        self.assertEqual(tables_without_header(table + "\n| --- | --- |\n| a |\n| --- | --- |\n"
                                               "```\n| --- |\n```\n"), [4, 6])

    def test_readme_lists_every_page(self):
        text = (m.ROOT / "README.md").read_text()
        listed = "".join(re.findall(r"^\| .*$", text[text.index("## Where to go next"):], re.M))
        for page in PAGES:
            if page.name != "README.md":
                self.assertIn(f"({name_of(page)})", listed)

    def test_files_named_on_pages_exist(self):
        for page in PAGES:
            self.assertEqual(missing_files(page.read_text()), [], name_of(page))
        text = "`proto/fingerprint` `proto/fingerprint.h` `proto/` `proto/gone` `services/gone.h`"
        self.assertEqual(missing_files(text), ["proto/gone", "services/gone.h"])

    def test_pages_named_in_sources_exist(self):
        decisions = re.findall(r"^## (D\d+)\.", DECISIONS.read_text(), re.M)
        for source, page in pages_that_sources_name():
            path, _, number = page.partition(" ")
            self.assertTrue((m.ROOT / path).exists(), f"{source}: {page}")
            self.assertTrue(number in decisions or not number, f"{source}: {page}")

    def test_building_lists_every_option(self):
        files = [m.ROOT / "CMakeLists.txt", *(m.ROOT / "scripts").glob("*.cmake"),
                 *(file for folder in ("worker", "tests") for file in
                   (m.ROOT / folder).rglob("CMakeLists.txt"))]
        options = {one or other for file in files for one, other in re.findall(
            r"\boption\((HEARTH_\w+)|\bset\((HEARTH_\w+) .*\bCACHE\b", file.read_text())}
        self.assertGreater(len(options), 10)
        page = (DOCS / "dev/building.md").read_text()
        self.assertEqual({name for name in options if f"`-D{name}" not in page}, set())

    def test_changelog_has_upgrade_note_of_each_format(self):
        text = (m.ROOT / "CHANGELOG.md").read_text()
        for name, file, constant in (("data folder", "cache_store/disk/disk_tier.h",
                                      "kFormatVersion"),
                                     ("snapshot file", "proto/snapshot_format.cc", "kVersion"),
                                     ("state file", "proto/state_format.cc", "kWithGrammar")):
            version = re.search(rf"\b{constant} = (\d+)", (m.ROOT / file).read_text())[1]
            listed = re.search(rf"^\| {name} \| ([^|]*) \|", text, re.M)[1]
            self.assertEqual(re.findall(r"\d+", listed)[-1], version, name)
            self.assertRegex(text, rf"(?m)^\| {name} {version} \| [\d.]+ \| \w")

    def test_architecture_lists_every_source_folder(self):
        text = ARCHITECTURE.read_text()
        rows = "".join(re.findall(r"^\| .*$", text[text.index("## Folders"):], re.M))
        for room in tidy_rules.ROOMS:
            self.assertTrue(f"`{room.split('/')[-1]}/`" in rows or f"`{room}/`" in rows, room)

    def test_files_named_in_architecture_exist(self):
        sources = {path.stem for top in tidy_names.FOLDERS for path in (m.ROOT / top).rglob("*.*")}
        text = ARCHITECTURE.read_text()
        parts = text[text.index("## Folders"):text.index("## One computation")].split("\n## ")
        tables = [re.findall(r"^\| .*$", part, re.M) for part in parts]
        names = set(re.findall(r"`([a-z]+_[a-z_]+)`", "".join(sum(tables, []))))
        # check_head is a function that the page names, not a file.
        self.assertEqual(names - sources - {"check_head"}, set())

    def test_decisions_follow_their_form(self):
        text = DECISIONS.read_text()
        self.assertGreater(text.count("\n## D"), 40)
        self.assertEqual(decision_findings(text), [])
        self.assertLessEqual(len(text.split()), 8000)

    def test_malformed_decisions_are_reported(self):
        entry = "## D1. A\n**Context.** a **Decision.** b **Cost.** " + "c " * 40 + "\n"
        page = "[D1 a](#d1-a)\n\n" + entry
        self.assertEqual(decision_findings(page), [])
        self.assertEqual(decision_findings(page.replace("#d1-", "#d2-")), ["D1 leads to d2"])
        self.assertEqual(decision_findings(page.replace("**Cost.**", "")),
                         ["D1 has no Cost, or several"])
        self.assertEqual(decision_findings(page + entry),
                         ["numbers are not 1 to 2 in order",
                          "the index does not list each entry once, in order"])

    def test_commands_shown_on_pages_exist(self):
        known = m.help_text("hearthctl")
        for page in PAGES:
            # A command is in a code span, or at the beginning of a command line.
            shown = re.findall(r"(?:`|^|/|-- )hearthctl\s+([a-z]+)\b", page.read_text(), re.M)
            for command in shown:
                self.assertRegex(known, rf"(?m)^\s+{command}\b", f"{name_of(page)}: {command}")

    def test_flags_named_on_pages_exist(self):
        for page in PAGES:
            self.assertEqual(unknown_flags(page.read_text()), [], name_of(page))
        text = ("`--kv-bytes` `--gone` `hearthctl generate --prompt a --listen b`\n```\n"
                "build/bin/hearth-store --data-dir a \\\n  --gone2 & hearthctl ls --json\n```\n")
        self.assertEqual(set(unknown_flags(text)),
                         {"--gone", "hearthctl: --listen", "hearth-store: --gone2"})

    def test_variables_named_on_pages_exist(self):
        for page in PAGES:
            self.assertEqual(unknown_variables(page.read_text()), [], name_of(page))
        self.assertEqual(unknown_variables("HEARTH_STORE_LISTEN HEARTH_STORE_... HEARTHCTL_GONE"),
                         ["HEARTHCTL_GONE"])

    def test_quoted_messages_exist(self):
        text = TROUBLESHOOTING.read_text()
        self.assertGreater(text.count("| `"), 50)
        self.assertEqual(unknown_quotes(text), [])
        page = "# T\n\n`N` and `ADDR` stand for values.\n\n"
        rows = ("| `no NAME at ADDR`, `no N at ADDR` | `not a quote` | |\n"
                "| a fix: `data folder N is held by another process` | | |\n"
                "| `data folder N is used by another process` | | |\n"
                "| `cached_tokens` is 0, `cached_token` | | |\n## Error codes\n| `gone` | |\n")
        self.assertEqual(unknown_quotes(page + rows),
                         ["no NAME at ADDR", "data folder N is used by another process",
                          "cached_token"])

    def test_metrics_named_on_pages_exist(self):
        for page in PAGES:
            self.assertEqual(unknown_metrics(page.read_text()), [], name_of(page))
        self.assertEqual(unknown_metrics("hearth_store_test hearth_store_shared_... "
                                         "hearth_worker_gone_total"), ["hearth_worker_gone_total"])

    def test_reference_has_every_metric(self):
        reference = (DOCS / "reference/reference.md").read_text()
        for server in ("hearth_store", "hearth_worker"):
            found = set(re.findall(rf"^\| `({server}_\w+)` \|", reference, re.M))
            self.assertEqual(found, metrics_in_the_source(server))
            documented = documented_metrics(server)
            self.assertGreater(len(documented), 5)
            self.assertEqual(documented - found, set())

    def test_store_serves_every_source_metric(self):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            store = subprocess.Popen(
                [str(m.BIN / "hearth-store"), "--listen", "127.0.0.1:0", "--metrics-listen",
                 "127.0.0.1:0", "--metrics-address-file", str(folder / "metrics"), "--data-dir",
                 str(folder / "data"), "--host-bytes", "64MiB", "--disk-bytes", "64MiB"],
                stderr=subprocess.PIPE, text=True)
            try:
                for line in store.stderr:
                    if " ready " in line:
                        break
                address = (folder / "metrics").read_text().strip()
                subprocess.run([str(m.BIN / "hearthctl"), "stats", "--store",
                                re.search(r"address=(\S+)", line).group(1)],
                               check=True, capture_output=True, timeout=240)
                direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
                with direct.open(f"http://{address}/metrics", timeout=240) as page:
                    text = page.read().decode()
            finally:
                store.send_signal(signal.SIGTERM)
                store.communicate(timeout=240)
            self.assertEqual(store.returncode, 0)
        # The page includes counters of the gpu tier, which are served even without a GPU.
        served = set(re.findall(r"^# TYPE (\w+)", text, re.M))
        self.assertEqual(served, metrics_in_the_source("hearth_store"))


if __name__ == "__main__":
    unittest.main()
