#!/bin/bash
# build.sh PREFIX BINARY...: compiles the named binaries inside a builder image and installs them,
# stripped, under PREFIX/bin. Debian's packages are already installed (apt-install.sh).
#
# hearth-worker needs libtorch, whose shared libraries are copied to PREFIX/lib/torch/lib. It is the
# CPU build that ./hearth setup fetches or, if DEVICE is cuda, the CUDA build from PyPI. The CUDA
# build looks for NVIDIA's libraries at ../../nvidia relative to its own folder, so they are copied
# to PREFIX/lib/nvidia. The library of llguidance is copied to PREFIX/lib. Without hearth-worker,
# neither library is fetched.
# REQUIRES: runs in the root of the source tree.
set -euo pipefail
prefix=$1
shift

torch=
options=(-DHEARTH_WITH_WORKER=OFF)
if [[ " $* " == *" hearth-worker "* ]]; then
  # shellcheck source=/dev/null
  source scripts/lib.sh
  # shellcheck source=/dev/null
  source scripts/setup.sh
  options=(-DHEARTH_WITH_WORKER=ON)
  if [[ ${DEVICE:-} == cuda ]]; then
    # shellcheck source=/dev/null
    source scripts/cuda.sh
    setup_venv
    install_llguidance
    # --isolated: ignore pip's configured index, which may have only the CPU build of torch.
    fetch_cuda "$ROOT/build/cuda" "$(sed -n 's/^torch==\([^+]*\).*/\1/p' scripts/torch-cpu.txt)" \
      --isolated
    mapfile -t -O 1 options < <(cuda_options "$ROOT/build/cuda")
    torch=build/cuda/python/torch
  else
    setup_python
    torch=$(echo .venv/lib/*/site-packages/torch)
  fi
fi

cmake -S . -B build/image -G Ninja "${options[@]}"
cmake --build build/image --target "$@"

mkdir -p "$prefix/bin"
for binary in "$@"; do
  install --strip -m 0755 "build/image/bin/$binary" "$prefix/bin/$binary"
done
if [[ $torch ]]; then
  mkdir -p "$prefix/lib/torch"
  cp build/image/lib/libllguidance.so "$prefix/lib/"
  cp -r "$torch/lib" "$prefix/lib/torch/lib"
  # Removes torch's Python binding, which the worker never loads and which needs libpython.
  rm -f "$prefix"/lib/torch/lib/libtorch_python*
  [[ ! -d $torch/../nvidia ]] || cp -r "$torch/../nvidia" "$prefix/lib/nvidia"
fi
