#!/bin/bash
# install.sh BUILD TORCH PREFIX BINARY...: installs the named programs of the build folder BUILD,
# stripped, under PREFIX/bin.
#
# TORCH is the folder of the Python package torch; "" if no program needs libtorch. The shared
# libraries that hearth-worker loads are copied to PREFIX/lib/torch/lib, stripped: 350 MB of 460.
# The CUDA build of libtorch opens others by name, some of them at ../../nvidia relative to its own
# folder, so all are copied, and NVIDIA's to PREFIX/lib/nvidia. With libtorch, the library of
# llguidance is copied to PREFIX/lib.
set -euo pipefail
build=$1 torch=$2 prefix=$3
shift 3

mkdir -p "$prefix/bin"
for binary in "$@"; do
  install --strip -m 0755 "$build/bin/$binary" "$prefix/bin/$binary"
done
[[ $torch ]] || exit 0
mkdir -p "$prefix/lib/torch/lib"
[[ ! -f $build/lib/libllguidance.so ]] || cp "$build/lib/libllguidance.so" "$prefix/lib/"
if [[ -d $torch/../nvidia ]]; then
  cp -r "$torch/lib" "$prefix/lib/torch"
  cp -r "$torch/../nvidia" "$prefix/lib/nvidia"
  # Removes torch's Python binding, which the worker never loads and which needs libpython.
  rm -f "$prefix"/lib/torch/lib/libtorch_python*
else
  loaded=$(LD_LIBRARY_PATH=$torch/lib ldd "$prefix/bin/hearth-worker" | awk '{ print $1 }')
  for library in $loaded; do
    [[ ! -f $torch/lib/$library ]] ||
      install --strip -m 0755 "$torch/lib/$library" "$prefix/lib/torch/lib/"
  done
fi
