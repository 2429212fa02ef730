#!/usr/bin/env bash
# Tests that the worker is linked with libtorch.so itself, with any linker: only libtorch.so loads
# libtorch_cuda, which --device cuda needs. Usage: needed_libraries_test.sh HEARTH_WORKER
set -euo pipefail
needed=$(LC_ALL=C readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for library in libtorch.so libtorch_cpu.so libc10.so; do
  grep -qx "$library" <<<"$needed" || { echo "$1 does not name $library: $needed" && exit 1; }
done
# libstdc++ must come first: libtorch.so of the CUDA wheel exports a std::filesystem that crashes.
first=$(grep -x -e libstdc++.so.6 -e libtorch.so <<<"$needed" | head -1)
[[ $first == libstdc++.so.6 ]] || { echo "$1 names libtorch.so before libstdc++.so.6" && exit 1; }
echo "ok: $1 names libstdc++.so.6, libtorch.so, libtorch_cpu.so and libc10.so"
