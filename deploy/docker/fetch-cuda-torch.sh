#!/bin/bash
# fetch-cuda-torch.sh DIR: replaces DIR/torch/lib (the CPU libtorch) by the CUDA build of the same
# version, from the ordinary wheel on PyPI, and puts the NVIDIA libraries into DIR/nvidia.
#
# libtorch_cuda.so looks for them at ../../nvidia relative to itself: the two folders stay siblings.
# REQUIRES: runs in the root of the source tree, after build.sh made .venv.
set -euo pipefail
dir=$1
version=$(sed -n 's/^torch==\([^+]*\).*/\1/p' scripts/torch-cpu.txt)
target=$(mktemp -d)
# --isolated: from pip's default index, whatever index the set-up took the CPU build from.
.venv/bin/python -m pip --isolated install --disable-pip-version-check --no-cache-dir \
  --only-binary=:all: --target "$target" "torch==$version"
[[ -f $target/torch/lib/libtorch_cuda.so ]] || {
  echo "fetch-cuda-torch.sh: the wheel of torch $version holds no libtorch_cuda.so" >&2
  exit 1
}
rm -rf "$dir/torch/lib"
mkdir -p "$dir/torch"
mv "$target/torch/lib" "$dir/torch/lib"
rm -f "$dir"/torch/lib/libtorch_python*
mv "$target/nvidia" "$dir/nvidia"
rm -rf "$target"
