"""Checks the code that nvcc generates: no register is spilled, no float operation is contracted.

Run as: python cuda_code_test.py [unittest arguments]. nvcc is $NVCC, or the nvcc fetched by
gpu_kit.sh, or the nvcc in PATH. Without nvcc the exit status is 77, which ctest shows as skipped.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
CMAKE = (ROOT / "worker/device/CMakeLists.txt").read_text()
# The compiler flags and the GPU generations of the build.
FLAGS = re.search(r"NVCC_EXECUTABLE\} (.*) \$\{generations\}", CMAKE).group(1).split()
GENERATIONS = re.search(r"names (\d[\da ]+)\)", CMAKE).group(1).split()
# Instructions that round, or that PTX approximates. With `.rn` they round to nearest; without it,
# ptxas may contract them. Only the type may follow .rn, because .ftz would flush subnormal numbers.
# cvt.f32.f16 does not round.
ROUNDS = re.compile(r"^\s+(?:@\S+ )?((?:add|sub|mul|mad|fma|div|rcp|sqrt|rsqrt|ex2|lg2|sin|cos|tanh"
                    r"|cvt)\.[\w.]*)", re.M)
GOOD = re.compile(r"(add|sub|mul|fma|div|sqrt)\.rn\.f32$|cvt\.rn\.(f32\.[su](16|32)|bf16x2\.f32)$"
                  r"|cvt\.f32\.f16$")


def find_nvcc():
    fetched = sorted(ROOT.glob(".deps/*/nvcc/nvidia/cu13/bin/nvcc"))
    return os.environ.get("NVCC") or (str(fetched[0]) if fetched else shutil.which("nvcc"))


def nvcc(*arguments):
    """Runs nvcc; returns its output."""
    return subprocess.run([find_nvcc(), *FLAGS, f"-I{ROOT}", *arguments], check=True, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout


def float_operations(ptx):
    """Returns the rounding operations on floats of any width."""
    return [name for name in ROUNDS.findall(ptx) if re.search(r"\.(tf32|b?f\d+)", name)]


class CudaCode(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.said = nvcc("-Xptxas", "-v", "--keep", "--keep-dir", cls.folder, "-c",
                        *(flag for one in GENERATIONS
                          for flag in ("-gencode", f"arch=compute_{one},code=sm_{one}")),
                        ROOT / "worker/device/cuda_kernels.cu", "-o", cls.folder / "kernels.o")

    def test_no_kernel_spills(self):
        for generation in GENERATIONS:
            kernels = re.findall(rf"for 'sm_{generation}'\n.*\n\s+(.*)\n", self.said)
            self.assertGreater(len(kernels), 20, generation)
            self.assertEqual(set(kernels), {"0 bytes stack frame, 0 bytes spill stores, "
                                            "0 bytes spill loads"}, f"sm_{generation}")

    def test_matrix_instructions_run_asynchronously(self):
        self.assertNotIn("instructions are serialized", self.said)

    def test_float_operations_round_to_nearest(self):
        for generation in GENERATIONS:
            ptx = next(self.folder.glob(f"*compute_{generation}.ptx")).read_text()
            operations = float_operations(ptx)
            self.assertGreater(operations.count("fma.rn.f32"), 1000)
            self.assertEqual({name for name in operations if not GOOD.match(name)}, set(),
                             f"compute_{generation}")

    def test_product_and_sum_stay_two_operations(self):
        source, out = self.folder / "planted.cu", self.folder / "planted.ptx"

        def operations(*flags):
            nvcc(*flags, "-arch=compute_90a", "-ptx", source, "-o", out)
            return float_operations(out.read_text())

        source.write_text("__global__ void Planted(float* a, float b, float c) {\n"
                          "  a[0] = a[0] * b + c;\n"
                          "  a[1] = a[1] / b;\n}\n")
        self.assertEqual(sorted(operations()), ["add.rn.f32", "div.rn.f32", "mul.rn.f32"])
        contracted = operations("-fmad=true", "-use_fast_math")
        self.assertIn("fma.rn.ftz.f32", contracted)
        self.assertEqual([name for name in contracted if GOOD.match(name)], [])


if __name__ == "__main__":
    if find_nvcc() is None:
        print("skipped: there is no nvcc; scripts/gpu_kit.sh pack fetches it, or set $NVCC")
        sys.exit(77)
    unittest.main()
