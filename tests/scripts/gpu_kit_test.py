"""Tests scripts/gpu_kit.sh and bench/gpu/kit.py without a GPU, torch or a packed kit.

Run as: python gpu_kit_test.py BIN_DIR [unittest arguments]
BIN_DIR: the build's programs; without a worker it has no device_restore_bench.
"""

import contextlib
import io
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "bench/gpu"))

import kit as gpu_kit  # noqa: E402  (path set above)
import parts as kit_parts  # noqa: E402


def in_script(commands, *arguments):
    """Runs commands that can call the functions of gpu_kit.sh; returns their output."""
    return subprocess.run(["bash", "-c", f". '{ROOT}/scripts/gpu_kit.sh'; {commands}", "_",
                           *map(str, arguments)],
                          check=True, stdout=subprocess.PIPE, text=True).stdout


class GpuKit(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.kit = pathlib.Path(folder.name)
        (self.kit / "bin").mkdir()
        (self.kit / "lib").mkdir()

    def compile(self, source, *flags):
        subprocess.run(["g++", "-x", "c++", "-", *map(str, flags)], input=source, text=True,
                       check=True)

    def make_library(self, source):
        self.compile(source, "-shared", "-fPIC", "-o", self.kit / "lib/libold.so")

    def make_program(self, name):
        """Makes a program. It calls a function of a library only if it gets an argument."""
        self.compile("int Sum();\nint main(int count, char**) { return count > 1 ? Sum() : 0; }",
                     f"-L{self.kit}/lib", f"-Wl,-rpath,{self.kit}/lib", "-Wl,-z,lazy", "-o",
                     self.kit / "bin" / name, "-lold")

    def unloadable(self):
        return in_script('unloadable "$1"', self.kit).splitlines()

    def test_program_whose_library_lacks_a_function_is_listed(self):
        self.make_library("int Sum() { return 3; }")
        names = ["hearth-worker", "gpu_step_bench", "model_probe"]
        for name in names:
            self.make_program(name)
        self.assertEqual(self.unloadable(), [])
        self.make_library("int Other() { return 3; }")
        subprocess.run([self.kit / "bin/model_probe"], check=True)  # starts, as it never calls Sum
        lines = self.unloadable()
        self.assertEqual([line.partition(": undefined symbol: ")[0] for line in lines], names)
        (self.kit / "lib/libold.so").unlink()
        self.assertIn("libold.so => not found", self.unloadable()[0])

    def open_kit(self, device="cpu"):
        (self.kit / "commit").write_text("1\n")
        kit = gpu_kit.Kit(self.kit, self.kit / "out", 60, self.kit)
        self.addCleanup(shutil.rmtree, kit.work)
        kit.device = device
        return kit

    def script(self, name, text):
        """Makes a program of the kit from a shell script."""
        (self.kit / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.kit / "bin" / name).chmod(0o755)

    def test_parts_with_an_unloadable_program_are_not_run(self):
        for name, text in (("torch_version", "2.11.0\n"),
                           ("unloadable", "gpu_step_bench: undefined symbol: Sum\n"
                                          "model_probe: undefined symbol: Sum\n")):
            (self.kit / name).write_text(text)
        kit = self.open_kit()
        for name in ("steps", "tokens"):
            kit.run(name, gpu_kit.PARTS[name])
        self.assertEqual([part["state"] for part in kit.parts], ["not run", "not run"])
        self.assertIn("it needs torch 2.11.0, or g++ for --compile: model_probe: undefined",
                      kit.parts[1]["why"])

    def test_lines_that_are_not_json_lose_no_other_row(self):
        self.script("device_step_bench", """
            echo '{"under load": [1980, [N/A]]}'
            echo '{"row": "'"$2"': a", "unit": "ms", "values": [1]}'
            printf '{"row": "cut'""")
        kit = self.open_kit("cuda")
        kit.run("bars-integers", gpu_kit.PARTS["bars-integers"])
        self.assertEqual([row["row"] for row in kit.rows], ["4B: a", "4B: a", "27B: a"])
        self.assertEqual((kit.parts[0]["state"], kit.parts[0]["lines_not_json"]), ("ran", 6))
        self.assertIn("[N/A]", (self.kit / "out/log/bars-integers.txt").read_text())

    def test_failed_run_stops_no_other_run(self):
        self.script("device_step_bench", """
            echo '{"row": "'"$2 $4"': results that differ", "unit": "", "values": [0]}'
            echo "no memory" && [[ $2 != 1B ]]""")
        kit = self.open_kit("cuda")
        kit.run("bits", gpu_kit.PARTS["bits"])
        self.assertEqual(len(kit.rows), 6)
        self.assertEqual((kit.parts[0]["state"], kit.parts[0]["why"]),
                         ("failed", "1B: status 1: no memory; 1B, bf16: status 1: no memory"))

    def test_program_that_hangs_stops_no_other_check(self):
        self.script("gpu_tensor_core_probe", """
            [[ $2 == mma ]] && exec tail -f /dev/null
            [[ $2 != chains ]]""")
        kit = self.open_kit("cuda")
        command = kit.command
        with unittest.mock.patch.object(
                kit, "command", lambda *argv, limit: command(*argv, limit=1)):
            kit.run("tensor-cores", gpu_kit.PARTS["tensor-cores"])
        self.assertEqual({row["row"].partition(" ")[0]: row["median"] for row in kit.rows},
                         {"mma": 0, "wgmma": 1, "chains": 0, "integers": 1})
        self.assertEqual(kit.parts[0]["state"], "failed")
        self.assertIn("mma: ended after 1 s", kit.parts[0]["why"])

    def test_check_without_time_has_no_result(self):
        kit = self.open_kit("cuda")
        kit.ends = 0
        with self.assertRaisesRegex(gpu_kit.NotRun, "the time was spent"):
            gpu_kit.PARTS["tensor-cores"](kit, "tensor-cores")
        self.assertEqual(kit.rows, [])

    def test_program_that_cannot_be_ended_ends_later_parts(self):
        kit, start, children = self.open_kit(), gpu_kit.start, []
        with unittest.mock.patch.object(gpu_kit, "KILL_SECONDS", 0.01), \
                unittest.mock.patch("os.killpg"), unittest.mock.patch.object(
                    gpu_kit, "start", lambda *of: children.append(start(*of)) or children[-1]):
            kit.run("probes", lambda kit, name: kit.command(
                name, "tail", "-f", "/dev/null", limit=1))
            kit.run("bits", gpu_kit.PARTS["bits"])
        self.assertEqual(len(children), 1)
        self.assertTrue(gpu_kit.end(children[0]))
        why = "the device is lost: tail of probes could not be ended"
        self.assertEqual([(part["state"], part["why"]) for part in kit.parts],
                         [("failed", why), ("not run", why)])

    def test_temporary_files_of_an_ended_program_are_deleted(self):
        kit = self.open_kit()
        with self.assertRaises(gpu_kit.TimedOut):
            kit.command("service", "bash", "-c", "mktemp && exec tail -f /dev/null", limit=1)
        file = pathlib.Path((kit.out / "log/service.txt").read_text().strip())
        self.assertEqual(file.parent, kit.work)

    def test_weights_are_kept_until_their_last_part(self):
        kit, seen = self.open_kit("cuda"), []
        (self.kit / "scripts").mkdir()
        (self.kit / "scripts/make_checkpoint.py").write_text(
            "import os, sys; os.mkdir(sys.argv[1])")

        def see(kit, name):
            for geometry in kit.making.copy():
                kit.checkpoint(geometry)
            seen.append((name, {folder.name for folder in kit.work.iterdir()}))

        def using(geometry):
            def part(kit, name):
                see(kit, name)
            part.geometry = geometry
            return part

        parts = {"bits": see, "probes": see, "eager-27b": using("27b"), "eager-1b": using("1b"),
                 "steps-27b": using("27b"), "tests": see}
        with unittest.mock.patch.dict(gpu_kit.PARTS, parts):
            gpu_kit.run_parts(kit, list(parts))
        self.assertEqual(seen, [("bits", set()), ("probes", set()), ("eager-27b", {"1b", "27b"}),
                                ("eager-1b", {"1b", "27b"}), ("steps-27b", {"27b"}),
                                ("tests", set())])

    def test_second_run_keeps_figures_of_other_parts(self):
        first = self.open_kit("cuda")
        for part, row, value in (("bars-4b", "4B, bf16: tuned step of 1 sequences", 3.6),
                                 ("layers-4b", "old", 1)):
            first.run(part, lambda kit, name: kit.one(name, row, "ms", value))
        second = self.open_kit("cuda")
        second.keep_earlier(["layers-4b"])
        second.run("layers-4b", lambda kit, name: kit.one(
            name, "compiled layers: a step of 1 sequences, 512 tokens each, bfloat16", "ms", 4.0))
        self.assertEqual([part["part"] for part in second.parts], ["bars-4b", "layers-4b"])
        bar = {of["bar"]: of for of in second.report()}["4B, bf16: a token over layers-4b <= 0.95"]
        self.assertEqual((bar["state"], bar["figure"]), ("met", 0.9))
        self.assertEqual([row["row"] for row in second.rows if row["row"] == "old"], [])
        for change in ({"device": "cpu"}, {"machine": {"gpu": "another"}}, {"commit": "2"}):
            other = self.open_kit("cuda")
            with unittest.mock.patch.object(other, "origin", lambda: {**first.origin(), **change}):
                other.keep_earlier(["layers-4b"])
            self.assertEqual((other.parts, other.rows), ([], []))
        (first.out / "figures.json").write_text("{")
        second.keep_earlier(["tests"])
        self.assertEqual(len(second.parts), 2)

    def test_only_takes_names_and_ranges(self):
        names = list(gpu_kit.PARTS)
        self.assertEqual(gpu_kit.parts_of(".."), names)
        self.assertEqual(gpu_kit.parts_of(f"..{names[1]},{names[4]},{names[-2]}.."),
                         [*names[:2], names[4], *names[-2:]])
        for wrong in ("", "bits,", "bit", "bits..test"):
            self.assertRaises(ValueError, gpu_kit.parts_of, wrong)

    def test_workers_that_hang_skip_their_other_arithmetics(self):
        for fault in (gpu_kit.TimedOut("ended after 90 s"),
                      gpu_kit.Failed("status 1: worker1 was not ready in 45 s: starting")):
            kit = self.open_kit("cuda")
            with unittest.mock.patch.object(kit, "command", side_effect=fault):
                for name in ("workers", "workers-bf16", "workers-int8"):
                    kit.run(name, gpu_kit.PARTS[name])
            self.assertEqual([part["why"] for part in kit.parts],
                             [str(fault)] + 2 * [f"workers did not end in time: {fault}"])

    def test_missing_program_is_a_failure_with_its_name(self):
        with self.assertRaisesRegex(gpu_kit.Failed, "No such file.*no-such-program"):
            self.open_kit().command("driver", "no-such-program", limit=5)

    def test_bars_are_met_missed_or_not_run(self):
        kit = self.open_kit()
        for part, row, value in (("probes", "device memory, read", 3000),
                                 ("probes", "pinned to device", 50),
                                 ("restore", "4B, bf16: rate of a restore of 2048 tokens", 45),
                                 ("restore", "4B, bf16: token after 32768 offloaded tokens", 24),
                                 ("restore", "4B, bf16: bytes of 32768 offloaded tokens", 0.6),
                                 ("bars-4b", "4B, bf16: bytes of a token", 8.0),
                                 ("bars-4b", "4B, bf16: tuned step of 1 sequences", 3.2),
                                 ("bars-4b", "4B, bf16: rate of 32 sequences", 6499),
                                 ("layers-4b", "compiled layers: a step of 1 sequences, 512 tokens "
                                               "each, bfloat16", 4.0)):
            kit.one(part, row, "unit", value)
        for _ in range(2):
            kit.write()
        derived = {row["row"]: row["median"] for row in kit.rows if row["part"] == "derived"}
        self.assertEqual(len({(row["part"], row["row"]) for row in kit.rows}), len(kit.rows))
        self.assertEqual(derived, {"4B, bf16: offloaded token over its bytes' time": 2.0,
                                   "4B, bf16: restore of 2048 tokens, share of the pinned rate":
                                       90.0,
                                   "4B, bf16: share of the bandwidth": 83.333,
                                   "4B, bf16: a token over layers-4b": 0.8})
        with contextlib.redirect_stdout(io.StringIO()) as said:
            kit.print_report()
        lines = said.getvalue().splitlines()
        self.assertEqual(len(lines), len(gpu_kit.BARS))
        self.assertIn("met      4B, bf16: share of the bandwidth >= 68: 83.333", lines)
        self.assertIn("MISSED   4B, bf16: rate of 32 sequences >= 6500: 6499", lines)
        self.assertIn("not run  12B, bf16: share of the bandwidth >= 77 "
                      "(bars-12b was not asked for)", lines)

    def test_bars_name_parts_of_the_kit(self):
        parts = {part for bar in gpu_kit.BARS for part in gpu_kit.sources(bar)}
        self.assertLessEqual(parts, set(gpu_kit.PARTS))
        self.assertEqual(gpu_kit.sources("4B, bf16: a token over layers-4b"),
                         ["bars-4b", "layers-4b"])

    def test_bar_of_a_part_that_failed_is_not_met(self):
        self.script("device_step_bench", """
            echo '{"row": "'"$2"': results that differ from the CPU'"'s"'", "values": [0]}'
            [[ $2 != 4B ]]""")
        kit = self.open_kit("cuda")
        kit.run("bits", gpu_kit.PARTS["bits"])
        bar = {"bar": "bits: ... that differ from the CPU's <= 0", "figure": 0, "state": "failed"}
        why = "4B: status 1: "
        found = next(of for of in kit.report() if of["bar"] == bar["bar"])
        self.assertIn(f"bits failed: {why}", found.pop("why"))
        self.assertEqual(found, bar)
        kit.one("bits", "1B: results that differ from the CPU's", "results", 3)
        states = {of["bar"]: of["state"] for of in kit.report()}
        self.assertEqual(states[bar["bar"]], "MISSED")
        self.assertEqual(states["workers: ... that differ from the CPU's <= 0"], "not run")

    @unittest.skipUnless((BIN_DIR / "hearth-worker").is_file(), "built without a worker")
    def test_restore_part_gives_rows_of_its_bars(self):
        program = "device_restore_bench"
        (self.kit / "bin" / program).symlink_to(BIN_DIR / program)
        kit = self.open_kit()
        kit.run("restore", gpu_kit.PARTS["restore"])
        self.assertEqual([part["state"] for part in kit.parts], ["ran"], kit.parts)
        rows = {row["row"].replace("tiny", "4B").replace(" 64 ", " 2048 ").replace(
            " 128 ", " 32768 "): row for row in kit.rows}
        other = rows.pop("4B, bf16: other logits after a restore")
        self.assertEqual((other["unit"], other["values"]), ("of 51", [0]))
        self.assertEqual(rows["4B, bf16: bytes of 32768 offloaded tokens"]["values"],
                         [128 * 2 * 2 * 64 * 2 / 1e9])
        self.assertEqual({len(row["values"]) for name, row in rows.items() if "bytes" not in name},
                         {9})
        kit.rows.clear()
        kit.one("probes", "pinned to device", "GB/s", 50)
        for name, row in rows.items():
            kit.one("restore", name, row["unit"], *row["values"])
        kit.derive()
        with contextlib.redirect_stdout(io.StringIO()) as said:
            kit.print_report()
        self.assertEqual(len(re.findall("^(met|MISSED) ", said.getvalue(), re.M)), 6)

    def refuse(self, device, text):
        """Runs the part "workers" with workers that do not start; returns the part's state."""
        for folder in ("bench", "scripts"):
            (self.kit / folder).symlink_to(ROOT / folder)
        (self.kit / "config.json").write_text('{"vocab_size": 100}')
        self.script("hearth-store", """
            while [[ $1 != --address-file ]]; do shift; done
            echo 127.0.0.1:1 >"$2.new" && mv "$2.new" "$2" && exec tail -f /dev/null""")
        self.script("hearth-worker", f"echo 'starting'; echo '{text}'; exit 1")
        kit = self.open_kit(device)
        kit.run("workers", gpu_kit.PARTS["workers"])
        bar = next(of for of in kit.report() if of["bar"].startswith("workers: "))
        self.assertEqual(bar["state"], kit.parts[0]["state"])
        self.assertIn(f"before it was ready: {text}", kit.parts[0]["why"])
        self.assertIn(text, bar["why"])
        self.assertEqual((kit.out / "log/workers/worker1.log").read_text(), f"starting\n{text}\n")
        return bar["state"]

    def test_gpu_worker_that_refuses_to_start_is_a_failure(self):
        self.assertEqual(self.refuse("cuda", "the device and the CPU compute different bits"),
                         "failed")

    def test_worker_without_device_support_is_not_run(self):
        self.assertEqual(self.refuse("cuda", "device: cuda; this worker was built without it"),
                         "not run")

    def test_worker_that_cannot_start_without_a_device_is_not_run(self):
        self.assertEqual(self.refuse("cpu", "bf16 needs AVX-512"), "not run")

    def test_rate_that_cannot_be_measured_says_why(self):
        kit, gigabyte = self.open_kit("cuda"), 10**9
        for taken, figure, why in (
                ({"restored, host": [12.0, 30.0, 30.0], "restored, worker": [10.0]}, 50.0, None),
                ({"restored, host": [8.0], "restored, worker": [10.0]}, None,
                 "a restore took 8.000 ms, from the worker's pool 10.000 ms"),
                ({"computed": [8.0], "restored, gpu": [10.0]}, None,
                 "needs restores from host and worker; got computed, restored, gpu")):
            with contextlib.redirect_stdout(io.StringIO()) as said:
                kit_parts.print_rate(taken, "host", gigabyte)
            kit.rows.clear()
            kit.add_rows("service-bf16-4b", said.getvalue())
            kit.one("probes", "pinned to device", "GB/s", 100)
            kit.derive()
            bar = next(of for of in kit.report() if "share of the pinned rate" in of["bar"])
            self.assertEqual(bar.get("figure"), figure)
            self.assertEqual("why" in bar, why is not None)
            self.assertIn(why or "", bar.get("why", ""))

    def test_kit_has_every_header_that_it_compiles(self):
        packed = in_script('printf "%s\\n" "${FILES[@]}"').split()
        seen, todo = set(), [str(file.relative_to(ROOT))
                             for file in (ROOT / "worker/model/torch").glob("*.cc")]
        while todo:
            file = todo.pop()
            if file in seen or not (ROOT / file).is_file():
                continue  # torch's, Abseil's and the system's headers
            seen.add(file)
            todo += re.findall(r'^#include "(.*)"', (ROOT / file).read_text(), re.M)
        self.assertGreater(len(seen), 20)
        self.assertEqual([file for file in sorted(seen)
                          if not any(file.startswith(f"{of}/") for of in packed)], [])


if __name__ == "__main__":
    unittest.main()
