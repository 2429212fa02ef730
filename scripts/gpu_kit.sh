#!/usr/bin/env bash
# Measures on a GPU machine that has neither network nor Hearth's libraries: "pack" packs programs
# here, "run" runs them on that machine. docs/dev/gpu-kit.md explains both.
#   scripts/gpu_kit.sh pack [DIR]            makes DIR (build/gpu_kit): this script and kit.tar.xz
#   DIR/gpu_kit.sh run OUT [--model DIR] [--seconds 520] [--only PART,...] [--compile]
# The GPU machine needs x86-64, glibc of Debian 12 or later, and Python with torch 2.11 for CUDA 13.
# With --compile, or if its torch lacks functions that packed programs call, "run" compiles them
# (g++).
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

TORCH_VERSION=2.11.0
PROGRAMS=(bin/hearth-worker bin/hearth-store bin/hearthctl bin/gpu_step_bench bin/gpu_probes
  bin/gpu_tensor_core_probe bin/device_step_bench bin/device_restore_bench tests/model_probe
  tests/hearth_gpu_test)
# The programs that link libtorch.
WITH_TORCH=(bin/hearth-worker bin/gpu_step_bench tests/model_probe)
# For "run": Python programs, and the sources and headers that compile() needs.
FILES=(bench/gpu scripts/hearth_procs.py scripts/make_checkpoint.py scripts/data/configs
  tests/worker/model/model_oracle.py worker/model worker/kernels/base proto)

# --- pack ---

# Fetches torch; keeps its headers and the three libraries that are linked, and deletes its device
# code.
fetch() {
  fetch_cuda "$DEPS" "$TORCH_VERSION" --no-deps
  find "$DEPS/python/torch/lib" -type f -not -name libtorch.so -not -name libtorch_cpu.so \
    -not -name libc10.so -delete
}

configure_kit() {
  # Uses DT_RPATH instead of RUNPATH, because it also applies to the dependencies of libraries.
  # PRE_TEST: tests are listed when they run, not during the build.
  local options
  mapfile -t options < <(cuda_options "$DEPS")
  # shellcheck disable=SC2016
  run_configure "$FOLDER" "${options[@]}" -DCMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE=PRE_TEST \
    -DCMAKE_BUILD_RPATH='$ORIGIN/../lib;$ORIGIN/../torch/lib' \
    -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags
}

# Computes on this CPU the digests with which device_step_bench compares a device's results.
make_digests() {
  local models=$FOLDER/models
  mkdir -p "$models"
  "$FOLDER/bin/seeded_digests" "$models" >"$FOLDER/digests.txt"
  rm -r "$models"
}

# Copies the libraries of the programs, except torch's and those that every system with a compiler
# has.
copy_libraries() {
  local system='lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|torch.*|c10.*|cu.*|gomp)\.so|ld-linux'
  mkdir -p "$KIT/lib"
  ldd "$KIT"/bin/* 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -Ev "/$system" | xargs -I{} cp -L {} "$KIT/lib/"
}

# Copies the objects that a program of WITH_TORCH is linked from, and writes a list of them in link
# order. The objects of hearth_model are left out: compile() makes them on the GPU machine.
copy_objects() {
  local program=$1 name=${1##*/} object
  mkdir -p "$KIT/objects"
  ninja -C "$FOLDER" -t commands "$program" | tail -1 | tr ' ' '\n' |
    grep -E '\.(o|a)$' | grep -v libhearth_model.a | grep -v '/librt\.a$' |
    while IFS= read -r object; do
      [[ $object == /* ]] || object=$FOLDER/$object
      flat=$(tr / _ <<<"${object#"$ROOT"/}")
      [[ -f $KIT/objects/$flat ]] || {
        cp "$object" "$KIT/objects/$flat"
        strip -g "$KIT/objects/$flat"
      }
      echo "$flat"
    done >"$KIT/objects/$name.list"
}

assemble() {
  local program
  rm -rf "$KIT"
  mkdir -p "$KIT/bin" "$KIT/include"
  for program in "${PROGRAMS[@]}"; do
    cp "$FOLDER/$program" "$KIT/bin/"
    strip "$KIT/bin/${program##*/}"
  done
  copy_libraries
  for program in "${WITH_TORCH[@]}"; do copy_objects "$program"; done
  (cd "$ROOT" && git ls-files -z -- "${FILES[@]}" | xargs -0 cp --parents -t "$KIT")
  cp -r /usr/include/absl "$KIT/include/"
  cp "$FOLDER/digests.txt" "$KIT/"
  echo "$TORCH_VERSION" >"$KIT/torch_version"
  git -C "$ROOT" describe --always --dirty --abbrev=40 >"$KIT/commit"
  rm -rf "$OUT"
  mkdir -p "$OUT"
  XZ_DEFAULTS=-T0 tar -C "$KIT" -cJf "$OUT/kit.tar.xz" .
  cp "$ROOT/scripts/gpu_kit.sh" "$OUT/"
}

pack() {
  local digests
  OUT=${1:-$HERE/../build/gpu_kit}
  # shellcheck source=/dev/null
  . "$HERE/lib.sh"
  # shellcheck source=/dev/null
  . "$HERE/setup.sh"
  # shellcheck source=/dev/null
  . "$HERE/build.sh"
  # shellcheck source=/dev/null
  . "$HERE/cuda.sh"
  DEPS=$ROOT/.deps/gpu FOLDER=$ROOT/build/gpu
  KIT=$FOLDER/kit
  setup_tools
  stamp_holds "$STAMPS/gpu" "$TORCH_VERSION $CUDA_TOOLKIT" ||
    step gpu-cuda "install torch $TORCH_VERSION for CUDA, and nvcc" \
      stamped "$STAMPS/gpu" "$TORCH_VERSION $CUDA_TOOLKIT" fetch
  step gpu-configure "configure build/gpu" configure_kit
  build "$FOLDER" "${PROGRAMS[@]##*/}" seeded_digests
  digests=$(digest "$FOLDER/bin/seeded_digests")
  stamp_holds "$FOLDER/digests.stamp" "$digests" ||
    step gpu-digests "compute digests of this CPU's results" \
      stamped "$FOLDER/digests.stamp" "$digests" make_digests
  step gpu-pack "pack the GPU kit" assemble
  say "  $(du -sh "$OUT" | cut -f1) in $(find "$OUT" -type f | wc -l) files: $OUT"
}

# --- run ---

# Prints each program that needs a library, or calls a function, that this machine's torch does not
# have: one program on a line, with the first missing function. Such a program may start, because
# functions are looked up when they are called.
unloadable() {
  local kit=$1 program
  for program in "${WITH_TORCH[@]##*/}"; do
    ldd -r "$kit/bin/$program" 2>&1 | sed "s/^[[:space:]]*/$program: /" |
      grep -m1 -e 'not found' -e "undefined symbol: .*($kit/bin/$program)" || true
  done
}

# Compiles hearth_model and links the programs with this machine's torch. Fails if this is not
# possible.
compile() {
  local kit=$1 name objects
  export kit
  echo "compiling the programs that use torch"
  # shellcheck disable=SC2016
  printf '%s\n' "$kit"/worker/model/torch/*.cc | xargs -P "$(nproc)" -I{} bash -c '
    g++ -std=c++17 -O2 -pthread -I"$kit" -isystem "$kit/include" -isystem "$kit/torch/include" \
      -c "$1" -o "$kit/objects/made_${1##*/}.o"' _ {} || return 1
  for name in "${WITH_TORCH[@]##*/}"; do
    mapfile -t objects <"$kit/objects/$name.list"
    (cd "$kit/objects" && g++ -pthread -o "$kit/bin/$name" -Wl,--start-group "${objects[@]}" \
      made_*.o -Wl,--end-group "$kit"/lib/*.so* -ldl -lrt -Wl,--allow-shlib-undefined \
      -Wl,--no-as-needed -lstdc++ "$kit"/torch/lib/lib{torch,torch_cpu,c10}.so \
      -Wl,--disable-new-dtags,-rpath,"$kit/lib:$kit/torch/lib") || return 1
  done
}

run() {
  local out=$1 kit compile='' arguments=()
  shift
  while (($#)); do
    if [[ $1 == --compile ]]; then compile=1; else arguments+=("$1"); fi
    shift
  done
  mkdir -p "$out"
  kit=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$kit'" EXIT
  python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' \
    "$HERE/kit.tar.xz" "$kit"
  ln -s "$(python3 -c 'import torch; print(torch.__path__[0])')" "$kit/torch"
  unloadable "$kit" | tee "$kit/unloadable"
  if [[ -s $kit/unloadable || $compile ]]; then
    compile "$kit" || echo "the programs that use torch could not be compiled"
    unloadable "$kit" >"$kit/unloadable"
  fi
  python3 -B "$kit/bench/gpu/kit.py" "$kit" "$out" "${arguments[@]}"
}

[[ ${BASH_SOURCE[0]} == "$0" ]] || return 0  # sourced by its test
case ${1:-} in
  pack) pack "${@:2}" ;;
  run) [[ ${2:-} ]] || { sed -n '2,7p' "${BASH_SOURCE[0]}" && exit 2; } && run "${@:2}" ;;
  *) sed -n '2,7p' "${BASH_SOURCE[0]}" && exit 2 ;;
esac
