#!/usr/bin/env bash
# Fuzzes the parsers of files and network input, and keeps inputs that reach new code.
#
#   scripts/fuzz.sh [SECONDS_EACH] [TARGET...]     default: 600 s for each of the nine
#
# Needs clang with libFuzzer (Debian: clang-14 libclang-rt-14-dev). A crash leaves its input in
# build-fuzz/ and ends with a failure; new inputs go to tests/fuzz/corpus, minimised.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-600}
shift || true
targets=("${@:-}")
[[ -n ${targets[0]} ]] || targets=(snapshot manifest request state redis http bodies calls grammar)
clang=$(command -v clang++-14 || command -v clang++) || {
  echo "fuzz.sh: clang is not installed; apt-get install clang-14 libclang-rt-14-dev" >&2
  exit 1
}
cmake -S . -B build-fuzz -G Ninja -DCMAKE_CXX_COMPILER="$clang" -DHEARTH_WITH_WORKER=OFF \
  -DHEARTH_FUZZ=ON -DHEARTH_SANITIZE=address -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CXX_FLAGS_RELEASE="-O1 -g1" -DHEARTH_PRECOMPILED=OFF \
  -DCMAKE_CXX_FLAGS="-fsanitize=fuzzer-no-link" >/dev/null
ninja -C build-fuzz hearth_fuzz_seeds "${targets[@]/#/hearth_fuzz_}"
build-fuzz/tests/hearth_fuzz_seeds build-fuzz/seeds
for target in "${targets[@]}"; do
  corpus=tests/fuzz/corpus/$target
  found=build-fuzz/found/$target
  mkdir -p "$corpus" "$found"
  "build-fuzz/tests/hearth_fuzz_$target" -max_total_time="$seconds" -max_len=16384 -timeout=10 \
    -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="build-fuzz/$target-" \
    "$found" "$corpus" "build-fuzz/seeds/$target" 2>"build-fuzz/$target.log" || {
    tail -40 "build-fuzz/$target.log" >&2
    exit 1
  }
  "build-fuzz/tests/hearth_fuzz_$target" -set_cover_merge=1 -max_len=16384 "$corpus" \
    "build-fuzz/seeds/$target" "$found" 2>>"build-fuzz/$target.log"
  grep -E 'number_of_executed_units|average_exec_per_sec' "build-fuzz/$target.log" |
    sed "s/^stat::/$target: /"
  echo "$target: $(find "$corpus" -type f | wc -l) inputs in the corpus"
done
