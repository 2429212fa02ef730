#!/bin/bash
# build.sh PREFIX BINARY...: compiles the named programs inside a builder image and installs them
# under PREFIX with install.sh; with hearth-worker, also the downloader of models. Debian's packages
# are already installed (apt-install.sh).
#
# hearth-worker needs libtorch: the CPU build that ./hearth setup fetches or, if DEVICE is cuda, the
# CUDA build from PyPI. Without hearth-worker, neither libtorch nor llguidance is fetched.
# The context has no git: to build another version than CMakeLists.txt has, or to name the commit,
# use `docker build --build-arg HEARTH_VERSION=$(scripts/version.sh version)`, and HEARTH_COMMIT.
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

deploy/docker/install.sh build/image "$torch" "$prefix" "$@"
[[ -z $torch ]] || deploy/docker/install-downloader.sh "$prefix"
