#!/bin/bash
# build.sh PREFIX BINARY...: compiles the named binaries inside a builder image and installs them,
# stripped, under PREFIX/bin. Debian's packages are already installed (apt-install.sh).
#
# hearth-worker also needs the set-up's virtual environment (libtorch), whose shared libraries go to
# PREFIX/lib/torch/lib. Without hearth-worker it is not fetched.
# REQUIRES: runs in the root of the source tree.
set -euo pipefail
prefix=$1
shift

with_worker=OFF
for binary in "$@"; do
  [[ $binary != hearth-worker ]] || with_worker=ON
done

if [[ $with_worker == ON ]]; then
  # shellcheck source=/dev/null
  source scripts/lib.sh
  # shellcheck source=/dev/null
  source scripts/setup.sh
  setup_python
fi

cmake -S . -B build/image -G Ninja -DHEARTH_WITH_WORKER=$with_worker
cmake --build build/image --target "$@"

mkdir -p "$prefix/bin"
for binary in "$@"; do
  install --strip -m 0755 "build/image/bin/$binary" "$prefix/bin/$binary"
done
if [[ $with_worker == ON ]]; then
  torch=(.venv/lib/*/site-packages/torch)
  mkdir -p "$prefix/lib/torch"
  cp -r "${torch[0]}/lib" "$prefix/lib/torch/lib"
  # The Python binding is never loaded and would drag in libpython.
  rm -f "$prefix"/lib/torch/lib/libtorch_python*
fi
