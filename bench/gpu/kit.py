"""Runs the parts of a GPU kit, the most valuable first, and keeps their output.

    kit.py KIT OUT [--model DIR] [--seconds 520] [--only PART|FIRST..LAST,...]

KIT: an unpacked kit (scripts/gpu_kit.sh). After each part OUT/figures.json is written anew:
machine, driver, commit; for each part whether it ran, or why not; for each row its runs, median,
spread and bar. OUT/log has each part's output, and the logs of its workers and stores. With --only,
the figures of other parts that an earlier run on this machine left in OUT are kept; an end of a
range may be missing. Without a device the parts that need none run on the CPU, on a tiny model.
--model: a checkpoint with real weights of the 270M (default: made-up weights).
"""

import argparse
import json
import math
import os
import pathlib
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

# {model: layer_types of a shortened model; None: all layers}. The 27B has two periods of five local
# layers and a global layer.
GEOMETRIES = {"1b": None, "4b": None, "27b": "lllllg" * 2}
# {end of "part: row", or "part: ... end" of all such rows: (comparison, bar)}: results that must
# hold. The second form is not met if the part did not run to its end.
BARS = {"differ from mma.sync's": ("<=", 0),
        "270M: a step of 1 sequences, chosen tilings, with overlap": ("<=", 1.0),
        "1B: a step of 1 sequences, chosen tilings, with overlap": ("<=", 2.2),
        "4B: a step of 1 sequences, chosen tilings, with overlap": ("<=", 4.8),
        "270M: throughput of 32 sequences over one": (">=", 12),
        "4B, bf16: rate of 32 sequences": (">=", 6500),
        "27B, bf16: rate of 32 sequences": (">=", 1150),
        "service-bf16: first token behind 2048 tokens, chunks of 128, restored, host": ("<=", 6),
        "service-bf16-4b: first token behind 2048 tokens, chunks of 128, restored, host":
            ("<=", 12),
        "service-bf16-4b: share of the pinned rate": (">=", 80)}
for _end, _sign, _bar, *_parts in (
        ("that differ from the CPU's", "<=", 0, "bits", "workers", "workers-bf16", "workers-int8"),
        ("tokens that differ from transformers'", "<=", 0, "tokens"),
        ("tests that failed", "<=", 0, "tests"),
        ("other logits after a restore", "<=", 0, "restore", "tokens", "service-bf16",
         "service-bf16-4b", "service-invariant", "service", "service-512"),
        ("that differ from the emulation's", "<=", 0, "sanitizers"),
        ("finds nothing", ">=", 1, "sanitizers", "sanitizers-store"),
        ("ran and nothing differs", ">=", 1, "tensor-cores")):
    BARS.update({f"{_part}: ... {_end}": (_sign, _bar) for _part in _parts})
for _model, _share, _prefill in (("270M", 28, 5), ("1B", 45, 12), ("4B", 68, 36),
                                 ("12B", 77, None), ("27B", 80, 230)):
    BARS[f"{_model}, bf16: share of the bandwidth"] = (">=", _share)
    if _prefill:
        BARS[f"{_model}, bf16: tuned prefill of 2048 tokens"] = ("<=", _prefill)
BARS.update({"4B, bf16: tuned prefill of 32768 tokens": ("<=", 620),
             "4B, q8_0: tuned step of 1 sequences": ("<=", 2.6),
             "4B, q4_0: tuned step of 1 sequences": ("<=", 1.9),
             "27B, q4_0: tuned step of 1 sequences": ("<=", 8.5),
             "4B, q8_0: tuned prefill of 2048 tokens": ("<=", 65),
             "4B, bf16: decode step beside a restore over alone": ("<=", 1.15),
             "4B, bf16: first launch after 32768 tokens from the gpu tier": ("<=", 3),
             "4B, bf16: first launch after 32768 tokens from the worker's pool": ("<=", 1)})

# Rows computed from the medians of other rows: (row, unit, factor, numerators, denominators); the
# other rows are named by the ends of "part: row".
DERIVED = [("service-bf16-4b: share of the pinned rate", "%", 100,
            ["service-bf16-4b: rate of a restore, host"], ["pinned to device"]),
           ("4B, bf16: offloaded token over its bytes' time", "times", 1e-3,
            [" 4B, bf16: token after 32768 offloaded tokens", "pinned to device"],
            [" 4B, bf16: bytes of 32768 offloaded tokens"])]
BARS[DERIVED[-1][0]] = ("<=", 2.0)
for _tokens in (2048, 32768):
    _row = f"4B, bf16: restore of {_tokens} tokens, share of the pinned rate"
    DERIVED.append((_row, "%", 100, [f" 4B, bf16: rate of a restore of {_tokens} tokens"],
                    ["pinned to device"]))
    BARS[_row] = (">=", 80)
for _model in ("270M", "1B", "4B", "12B", "27B"):
    for _kind in ("", ", bf16", ", q8_0", ", q4_0"):
        _name = f" {_model}{_kind}: "
        _step = f"{_name}tuned step of 1 sequences"
        DERIVED.append((f"{_name[1:]}share of the bandwidth", "%", 1e5,
                        [f"{_name}bytes of a token"], [_step, "device memory, read"]))
for _model, _peer, _bar in (("270M", "layers", 0.8), ("1B", "layers-1b", 0.8),
                            ("4B", "layers-4b", 0.95), ("4B", "products-4b", 1.15),
                            ("27B", "products-27b", 1.15)):
    _of = {"layers": "compiled layers: a step of 1 sequences, 512 tokens each, bfloat16",
           "products": "products of a step of 1 rows, bfloat16"}[_peer.partition("-")[0]]
    _row = f"{_model}, bf16: a token over {_peer}"
    DERIVED.append((_row, "times", 1, [f" {_model}, bf16: tuned step of 1 sequences"],
                    [f"{_peer}: {_of}"]))
    BARS[_row] = ("<=", _bar)

# Parts that print the rows of other bars and of DERIVED: (pattern of the name, part); the first
# match decides. A part that the name begins with needs no pattern.
SOURCES = [("pinned to device|device memory, read", "probes"), ("differ from mma.sync's", "bits"),
           ("4B, bf16: .*(restore|tier|pool|offloaded)", "restore"),
           ("270M: (a step|throughput)", "device-270m"), ("1B: a step", "device-1b"),
           ("4B: a step", "device-4b"), ("q8_0|q4_0", "bars-integers"),
           *((f"{_model}, bf16: ", f"bars-{_model.lower()}")
             for _model in ("270M", "1B", "4B", "12B", "27B"))]
KILL_SECONDS = 10  # within which a killed program must end
NOT_RUN = 77  # exit status of a program that cannot run here


class NotRun(Exception):
    """This part of the kit cannot run on this machine; the message says why."""


class TimedOut(NotRun):
    """A program did not end within its own limit."""


class Failed(NotRun):
    """A program ended with an error."""


class Kit:
    def __init__(self, folder, out, seconds, model):
        self.folder, self.out, self.model = folder, out, model
        self.ends = time.monotonic() + seconds
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="gpu_kit."))
        self.device, self.machine = "cpu", {"cpu": cpu_name(), "cores": os.cpu_count(),
                                            "kernel": platform.release()}
        self.parts, self.rows, self.making = [], [], {}
        self.driver = "none"
        self.lost = ""  # why no part can run any more
        self.unread = 0  # lines of the current part that are not JSON, although they begin like it
        (out / "log").mkdir(parents=True, exist_ok=True)

    def look_around(self):
        import torch
        self.machine.update(torch=torch.__version__, cuda=torch.version.cuda or "none",
                            python=platform.python_version())
        if torch.cuda.is_available():
            self.device = "cuda"
            self.machine["gpu"] = torch.cuda.get_device_name(0)
            try:
                self.driver = self.command(
                    "driver", "nvidia-smi", "--query-gpu=driver_version,memory.total",
                    "--format=csv,noheader", limit=20).strip()
            except NotRun as why:
                self.driver = f"nvidia-smi: {why}"

    def keep_earlier(self, parts):
        """Keeps the figures of other parts that an earlier run of this kit on this machine left in
        OUT. Deletes the logs of these parts."""
        for name in parts:
            (self.out / "log" / f"{name}.txt").unlink(missing_ok=True)
            shutil.rmtree(self.out / "log" / name, ignore_errors=True)
        try:
            earlier = json.loads((self.out / "figures.json").read_text())
        except (OSError, ValueError):
            return
        if all(earlier.get(key) == value for key, value in self.origin().items()):
            self.parts = [part for part in earlier["parts"] if part["part"] not in parts]
            self.rows = [row for row in earlier["rows"] if row["part"] not in parts]

    def origin(self):
        """Returns what figures of one file have in common."""
        made = "270M" if self.device == "cuda" else "tiny model"
        weights = f"of {self.model}" if self.model else f"of a {made}, made here"
        return {"commit": (self.folder / "commit").read_text().strip(), "machine": self.machine,
                "device": self.device, "weights": weights}

    def write(self):
        self.derive()
        figures = {**self.origin(), "driver": self.driver, "parts": self.parts,
                   "bars": self.report(), "rows": self.rows}
        text = json.dumps(figures, indent=1) + "\n"
        (self.out / "figures.json.new").write_text(text)
        (self.out / "figures.json.new").rename(self.out / "figures.json")

    def add(self, part, line):
        row = {"part": part, **line}
        values = line.get("values")
        if values:
            row.update(median=statistics.median(values), min=min(values), max=max(values))
            for name, (sign, bar) in BARS.items():
                if is_named(row, name):
                    holds = row["median"] <= bar if sign == "<=" else row["median"] >= bar
                    row.update(bar=f"{sign} {bar}", holds=holds)
        self.rows.append(row)

    def add_rows(self, part, said):
        """Adds the rows that a program printed. A line that is not JSON, such as a line that a kill
        cut, stays in the log; the state of the part says so."""
        for line in said.splitlines():
            if line.startswith('{"'):
                try:
                    self.add(part, json.loads(line))
                except ValueError:
                    self.unread += 1

    def derive(self):
        """Adds the rows of DERIVED if all their rows were measured; replaces those added before."""
        self.rows = [row for row in self.rows if "derived" not in row]
        for name, unit, factor, *sides in DERIVED:
            medians = [[next((row["median"] for row in self.rows if "median" in row and
                              is_named(row, end)), None) for end in side] for side in sides]
            if None not in medians[0] + medians[1] and 0 not in medians[1]:
                value = factor * math.prod(medians[0]) / math.prod(medians[1])
                part = name.partition(": ")[0] if name.startswith("service") else "derived"
                self.add(part, {"row": name.removeprefix(f"{part}: "), "unit": unit,
                                "values": [round(value, 3)], "derived": True})

    def report(self):
        """Returns the state of each bar; the worst row decides. Without a figure, or with figures
        of a part that did not run to its end, also returns why."""
        bars = []
        for name, (sign, bar) in BARS.items():
            rows = [row for row in self.rows if "median" in row and is_named(row, name)]
            holds, why = all(row["holds"] for row in rows), ""
            if not rows or " ... " in name:
                why = self.why_no_figure(name)
            told = {"bar": f"{name} {sign} {bar}", "state": "met" if holds else "MISSED"}
            if holds and (why or not rows):
                failed = {part["part"] for part in self.parts if part["state"] == "failed"}
                told["state"] = "failed" if failed.intersection(sources(name)) else \
                    "partly" if rows else "not run"
            if rows:
                told["figure"] = (max if sign == "<=" else min)(row["median"] for row in rows)
            bars.append({**told, "why": why} if why else told)
        return bars

    def print_report(self):
        for told in self.report():
            print(f"{told['state']:8} {told['bar']}" +
                  (f": {told['figure']:.6g}" if "figure" in told else "") +
                  (f" ({told['why']})" if "why" in told else ""))

    def why_no_figure(self, bar):
        """Returns why rows of a bar are missing, "" if none is known to be missing."""
        reasons = []
        for end in ends_of(bar):
            rows = [row for row in self.rows if is_named(row, end)]
            if " ... " not in end and any("median" in row for row in rows):
                continue
            reasons += [row["why"] for row in rows if row.get("why")]
            for name in sources(end):
                part = next((of for of in self.parts if of["part"] == name), None)
                if part is None:
                    reasons.append(f"{name} was not asked for")
                elif part["state"] != "ran":
                    reasons.append(f"{name} {part['state']}: {part['why']}")
                elif "lines_not_json" in part:
                    reasons.append(f"lines of {name} are not JSON: {part['lines_not_json']}")
                elif not rows:
                    reasons.append(f"{name} ran without this row")
        return "; ".join(dict.fromkeys(reasons))

    def one(self, part, row, unit, *values):
        self.add(part, {"row": row, "unit": unit, "values": list(values)})

    def command(self, part, *argv, limit):
        """Runs a program, adds the rows that it prints and returns its output. Kills its process
        group at `limit` seconds. Raises NotRun, TimedOut or Failed if it does not succeed."""
        if self.lost:
            raise NotRun(self.lost)
        whole, limit = limit, min(limit, self.ends - time.monotonic())
        if limit < 1:
            raise NotRun("the time was spent before its turn")
        log = self.out / "log" / f"{part}.txt"
        begin = log.stat().st_size if log.exists() else 0
        with open(log, "ab") as output:
            child = start(argv, output, self.work)
            try:
                status = child.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
                if not end(child):
                    self.lost = f"the device is lost: {argv[0]} of {part} could not be ended"
        said = log.read_bytes()[begin:].decode(errors="replace")
        self.add_rows(part, said)
        if self.lost:
            raise Failed(self.lost)
        if status is None:
            why = f"ended after {limit:.0f} s; rows until then are kept"
            raise TimedOut(why) if limit == whole else NotRun(f"{why}; the kit's time was over")
        if status != 0:
            last = [line for line in said.splitlines() if line.strip()][-1:] or ["nothing said"]
            why = last[0][:300]
            raise NotRun(why) if status == NOT_RUN else Failed(f"status {status}: {why}")
        return said

    def commands(self, part, argvs, limit, row=""):
        """Runs independent programs, {name: argv}, also after a program that does not succeed. Then
        raises the reasons as one error. `row`: adds this row for each program, with its name for
        {}: 1 if the program succeeded, 0 if it failed or did not end."""
        faults = {}
        for name, argv in argvs.items():
            try:
                self.command(part, *argv, limit=limit)
            except NotRun as fault:
                faults[name] = fault
            if row and type(faults.get(name)) is not NotRun:
                self.one(part, row.format(name), "works", int(name not in faults))
        for kind in (Failed, TimedOut, NotRun):
            if any(isinstance(fault, kind) for fault in faults.values()):
                raise kind("; ".join(f"{name}: {fault}" for name, fault in faults.items())[:500])

    def run(self, name, part):
        begin, self.unread = time.monotonic(), 0
        told = {"part": name, "state": "ran"}
        try:
            if self.lost:
                raise NotRun(self.lost)
            if begin >= self.ends:
                raise NotRun("the time was spent before its turn")
            part(self, name)
        except NotRun as why:
            state = "failed" if isinstance(why, Failed) else "not run"
            told.update(state=state, why=str(why))
            if isinstance(why, TimedOut):
                told["timed_out"] = True
        except Exception as error:  # an error in one part must not stop the remaining parts
            told.update(state="failed", why=f"{type(error).__name__}: {error}"[:500])
        if self.unread:
            told["lines_not_json"] = self.unread
        told["seconds"] = round(time.monotonic() - begin, 1)
        self.parts.append(told)
        self.write()
        print(f"{name:14} {told['state']:8} {told['seconds']:6.1f} s  {told.get('why', '')}",
              flush=True)

    def needs_device(self):
        if self.device == "cpu":
            raise NotRun("there is no CUDA device")

    def needs(self, program):
        for line in (self.folder / "unloadable").read_text().splitlines():
            if line.startswith(f"{program}: "):
                raise NotRun(f"it needs torch {(self.folder / 'torch_version').read_text().strip()}"
                             f", or g++ for --compile: {line}")

    def python(self, name):
        return [sys.executable, "-B", self.folder / name]

    def checkpoint(self, geometry):
        """Returns a folder with random weights of this geometry; waits until they are made."""
        out = self.work / geometry
        if geometry in self.making:
            try:
                self.making[geometry].wait(max(1, min(90, self.ends - time.monotonic())))
            except subprocess.TimeoutExpired:
                raise NotRun("its weights were not ready in time") from None
            del self.making[geometry]
        if not out.exists():
            self.command("weights", *self.weights_command(geometry), limit=90)
        return out

    def weights_command(self, geometry):
        flags = ["--geometry", geometry, "--dtype", "bfloat16"]
        if GEOMETRIES.get(geometry):
            flags += ["--set", f"layer_types={GEOMETRIES[geometry]}"]
        return [*self.python("scripts/make_checkpoint.py"), self.work / geometry, *flags]

    def make_weights(self, parts):
        """Starts making the weights for these parts in the background, because it takes a minute of
        one core."""
        for geometry in sorted(geometries_of(parts)) if self.device == "cuda" else ():
            with open(self.out / "log/weights.txt", "ab") as log:
                self.making[geometry] = start(self.weights_command(geometry), log, self.work)

    def drop_weights(self, parts):
        """Deletes the weights that none of these parts uses."""
        for geometry in GEOMETRIES.keys() - geometries_of(parts):
            if geometry in self.making:
                end(self.making.pop(geometry))
            shutil.rmtree(self.work / geometry, ignore_errors=True)

    def small(self):
        """Returns --model if given, else a 270M model with random weights or, without a device, a
        tiny model."""
        if self.model:
            return self.model
        return self.checkpoint("270m" if self.device == "cuda" else "tiny")

    def dtype(self):
        return "bfloat16" if self.device == "cuda" else "float32"


def is_named(row, name):
    """Returns whether a row is one of a bar's rows; `name`: as in BARS."""
    part, dots, end = name.partition(": ... ")
    if dots:
        return row["part"] == part and row.get("row", "").endswith(end)
    return f"{row['part']}: {row.get('row', '')}".endswith(name)


def ends_of(bar):
    """Returns the names of the rows that a bar's figure is computed from."""
    return next(([end for side in sides for end in side] for name, _, _, *sides in DERIVED
                 if name == bar), [bar])


def sources(bar):
    """Returns the parts that print the rows of a bar."""
    parts = []
    for end in ends_of(bar):
        first = end.partition(": ")[0]
        matching = (part for pattern, part in SOURCES if re.search(pattern, end))
        parts.append(first if first in PARTS else next(matching))
    return parts


def start(argv, output, work):
    """Starts a program in a process group of its own, with temporary files below `work`. Raises
    Failed if there is no such program."""
    try:
        return subprocess.Popen([str(a) for a in argv], stdout=output, stderr=output,
                                stdin=subprocess.DEVNULL, start_new_session=True,
                                env={**os.environ, "TMPDIR": str(work)})
    except OSError as error:
        raise Failed(str(error)) from None


def end(child):
    """Kills the process group of a child. Returns False if the child does not end, because it is in
    an uninterruptible call of a driver."""
    os.killpg(child.pid, signal.SIGKILL)
    try:
        child.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def probes(kit, name):
    kit.needs_device()
    rate = ("-", kit.device, "bfloat16", "rate", 8192, 7)
    kit.commands(name, {"gpu_probes": (kit.folder / "bin/gpu_probes", 7),
                        "rate": (*kit.python("bench/gpu/peer.py"), *rate)}, limit=40)


def tensor_cores(kit, name):
    kit.needs_device()
    kit.commands(name, {part: (kit.folder / "bin/gpu_tensor_core_probe", "--part", part, "--json",
                               kit.out / f"tensor_cores_{part}.json", "--observed",
                               kit.out / f"tensor_cores_{part}.bin")
                        for part in ("mma", "wgmma", "chains", "integers")},
                 limit=25, row="{} ran and nothing differs")


def device_bench(limit, *runs):
    def part(kit, name):
        kit.needs_device()
        program = kit.folder / "bin/device_step_bench"
        kit.commands(name, {" ".join(run): (program, *run) for run in runs}, limit)
    return part


def device_bits(kit, name):
    kit.needs_device()
    program = (kit.folder / "bin/device_step_bench", "digests")
    kit.commands(name, {f"{model}{kind}": (*program, model, kit.folder / "digests.txt", *more)
                        for kind, more in (("", ()), (", bf16", ("bf16",)))
                        for model in ("270M", "1B", "4B")}, limit=40)


def restore(kit, name):
    shape = ("cuda", "4B") if kit.device == "cuda" else ("emulated", "tiny")
    kit.command(name, kit.folder / "bin/device_restore_bench", *shape, limit=40)


def of_parts(command, limit, *more, geometry=None, after=None):
    def part(kit, name):
        for of in kit.parts:
            if of["part"] == after and ("timed_out" in of or "not ready in" in of.get("why", "")):
                raise NotRun(f"{after} did not end in time: {of['why']}")
        if command == "tokens":
            kit.needs("model_probe")
        if geometry:
            kit.needs_device()
        folder = kit.checkpoint(geometry) if geometry else kit.small()
        kit.command(name, *kit.python("bench/gpu/parts.py"), command, folder, kit.device,
                    kit.folder, kit.out / "log" / name, *more, limit=limit)
    part.geometry = geometry
    return part


def tests(kit, name):
    fault = None
    try:
        kit.command(name, kit.folder / "bin/hearth_gpu_test", limit=60)
    except (Failed, TimedOut) as why:
        fault = why
    kit.one(name, "tests that failed", "programs", int(fault is not None))
    said = (kit.out / "log" / f"{name}.txt").read_text(errors="replace")
    skipped = re.findall(r"\[  SKIPPED \] (\d+) test", said)
    kit.one(name, "tests that were skipped", "tests", sum(map(int, skipped)))
    if fault:
        raise fault


def steps(geometry, dtype=None):
    def part(kit, name):
        if geometry:
            kit.needs_device()
        kit.needs("gpu_step_bench")
        folder = kit.checkpoint(geometry) if geometry else kit.small()
        prefix = 2048 if kit.device == "cuda" else 256
        kit.command(name, kit.folder / "bin/gpu_step_bench", folder, kit.device,
                    dtype or kit.dtype(), prefix, 5, limit=60)
    part.geometry = geometry
    return part


def products(geometry):
    def part(kit, name):
        kit.needs_device()
        kit.command(name, *kit.python("bench/gpu/peer.py"),
                    kit.folder / f"scripts/data/configs/gemma-3-{geometry}.json", kit.device,
                    "bfloat16", "products", 0, 15, limit=30)
    return part


def peers(geometry, mode):
    def part(kit, name):
        if geometry or mode == "compiled":
            kit.needs_device()
        folder = kit.checkpoint(geometry) if geometry else kit.small()
        prefix = 256 if kit.device == "cpu" else 512 if mode == "layers" else 2048
        kit.command(name, *kit.python("bench/gpu/peer.py"), folder, kit.device, kit.dtype(), mode,
                    prefix, 5, limit={"compiled": 200, "layers": 120}.get(mode, 75))
    part.geometry = geometry
    return part


def sanitizers(tools, program, *arguments):
    def part(kit, name):
        kit.needs_device()
        if not shutil.which("compute-sanitizer"):
            raise NotRun("compute-sanitizer is not installed")
        # memcheck: API errors are not reported, because a test allocates too much memory on
        # purpose. initcheck: reports memory as unwritten if another process has written it.
        flags = {"memcheck": ("--report-api-errors", "no")}
        tests = {"initcheck": ("--gtest_filter=-CudaImport.*",)}
        kit.commands(name, {tool: ("compute-sanitizer", "--error-exitcode", 9, "--tool", tool,
                                   *flags.get(tool, ()), kit.folder / "bin" / program, *arguments,
                                   *tests.get(tool, ())) for tool in tools},
                     limit=60, row=program + ": {} runs and finds nothing")
    return part


INVARIANT = ("--exactness", "invariant")
BF16 = (*INVARIANT, "--arithmetic", "bf16")
# The most important parts come first, because the last parts are skipped when the time is over.
PARTS = {"bits": device_bits, "workers": of_parts("workers", 90),
         "workers-bf16": of_parts("workers", 90, "--arithmetic", "bf16", after="workers"),
         "workers-int8": of_parts("workers", 90, "--weights", "q8_0", after="workers"),
         "probes": probes,
         **{f"bars-{model.lower()}": device_bench(60, ("bars", model, "bf16"))
            for model in ("4B", "270M", "1B", "27B", "12B")},
         "restore": restore,
         "bars-integers": device_bench(60, ("bars", "4B", "q8_0"), ("bars", "4B", "q4_0"),
                                       ("bars", "27B", "q4_0")),
         "service-bf16": of_parts("service", 60, "128", "host", *BF16),
         "service-bf16-4b": of_parts("service", 90, "128", "host", *BF16, geometry="4b"),
         "device-270m": device_bench(40, ("tokens", "270M"), ("prefill", "270M"),
                                     ("tokens", "270M", "bf16"), ("prefill", "270M", "bf16")),
         "tokens": of_parts("tokens", 90), "tests": tests, "tensor-cores": tensor_cores,
         "device-4b": device_bench(40, ("tokens", "4B"), ("prefill", "4B"),
                                   ("tokens", "4B", "bf16"), ("prefill", "4B", "bf16")),
         "device-1b": device_bench(40, ("tokens", "1B"), ("prefill", "1B"),
                                   ("tokens", "1B", "bf16"), ("prefill", "1B", "bf16")),
         "sanitizers": sanitizers(("memcheck", "racecheck"), "device_step_bench", "tiny"),
         "products-4b": products("4b"), "products-27b": products("27b"),
         "layers-4b": peers("4b", "layers"), "layers": peers(None, "layers"),
         "layers-1b": peers("1b", "layers"),
         "service-invariant": of_parts("service", 90, "128", "gpu", *INVARIANT),
         "service": of_parts("service", 90), "service-512": of_parts("service", 90, "512"),
         "bars-float32": device_bench(40, ("bars", "270M"), ("bars", "1B"), ("bars", "4B")),
         "products-270m": products("270m"), "products-1b": products("1b"),
         "steps": steps(None), "steps-float32": steps(None, "float32"),
         "eager": peers(None, "eager"), "compiled": peers(None, "compiled"),
         "steps-4b": steps("4b"), "eager-4b": peers("4b", "eager"),
         "compiled-4b": peers("4b", "compiled"),
         "steps-27b": steps("27b"), "eager-27b": peers("27b", "eager"),
         "steps-1b": steps("1b"), "eager-1b": peers("1b", "eager"),
         "compiled-1b": peers("1b", "compiled"),
         "sanitizers-store": sanitizers(("memcheck", "racecheck", "initcheck", "synccheck"),
                                        "hearth_gpu_test")}


def geometries_of(parts):
    """Returns the models of GEOMETRIES whose weights these parts use."""
    return {getattr(PARTS[name], "geometry", None) for name in parts} & GEOMETRIES.keys()


def parts_of(text):
    """Returns the parts of --only: names and ranges FIRST..LAST; a range without an end is open.
    Raises ValueError for an unknown name."""
    names, parts = list(PARTS), []
    for item in text.split(","):
        first, dots, last = item.partition("..")
        begin = names.index(first) if first or not dots else 0
        parts += names[begin:names.index(last) + 1 if last else len(names) if dots else begin + 1]
    return parts


def run_parts(kit, names):
    if "probes" not in names:  # it measures the machine's memory, without weights being made
        kit.make_weights(names)
    for at, name in enumerate(names, 1):
        kit.run(name, PARTS[name])
        if name == "probes":
            kit.make_weights(names[at:])
        kit.drop_weights(names[at:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kit", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=520)
    parser.add_argument("--only", default="..")
    args = parser.parse_args()
    try:
        parts = parts_of(args.only)
    except ValueError as error:
        parser.error(f"--only: {error}; must be of {', '.join(PARTS)}")
    kit = Kit(args.kit.resolve(), args.out.resolve(), args.seconds, args.model)
    kit.look_around()
    kit.keep_earlier(parts)
    try:
        run_parts(kit, parts)
    finally:
        for making in kit.making.values():
            end(making)
        kit.write()
        shutil.rmtree(kit.work, ignore_errors=True)
        kit.print_report()
    failed = {part["part"] for part in kit.parts if part["state"] == "failed"}
    return 1 if failed.intersection(parts) else 0


if __name__ == "__main__":
    sys.exit(main())
