#!/usr/bin/env bash
# The worker names libtorch.so itself, whatever linker made it: nothing else loads libtorch_cuda,
# and without that there is no --device cuda. Usage: needed_libraries_test.sh HEARTH_WORKER
set -euo pipefail
needed=$(LC_ALL=C readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for library in libtorch.so libtorch_cpu.so libc10.so; do
  grep -qx "$library" <<<"$needed" || { echo "$1 does not name $library: $needed" && exit 1; }
done
# libtorch.so of the CUDA wheel exports a std::filesystem that crashes: the standard one goes first.
first=$(grep -x -e libstdc++.so.6 -e libtorch.so <<<"$needed" | head -1)
[[ $first == libstdc++.so.6 ]] || { echo "$1 names libtorch.so before libstdc++.so.6" && exit 1; }
echo "ok: $1 names libstdc++.so.6, libtorch.so, libtorch_cpu.so and libc10.so"
