# shellcheck shell=bash
# Configuring, building and testing. Sourced after lib.sh and setup.sh.

BUILD=$ROOT/build
TEST_TIMEOUT_S=900

# A compiler process that reads ATen's headers takes up to 1.5 GB.
JOB_MEMORY_MB=1500

job_count() {
  local cores memory_mb
  cores=$(nproc)
  memory_mb=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
  local by_memory=$((memory_mb / JOB_MEMORY_MB))
  ((by_memory >= 1)) || by_memory=1
  echo "${HEARTH_JOBS:-$((cores < by_memory ? cores : by_memory))}"
}

# Clones in different folders share the compiler cache: paths below the root are stored relative.
export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=true

# configure FOLDER CMAKE_ARGUMENT...
configure() {
  local folder=$1
  shift
  local want
  want=$(digest -- "$ROOT" "$@" "$(command -v cmake)" "$(<"$VENV/hearth.stamp")")
  if [[ -f $folder/build.ninja ]] && stamp_holds "$folder/hearth.stamp" "$want"; then
    return
  fi
  rm -rf "$folder/CMakeCache.txt" "$folder/CMakeFiles"
  step "configure-$(basename "$folder")" "configure ${folder#"$ROOT"/}" \
    cmake -S "$ROOT" -B "$folder" -G Ninja -DHEARTH_PYTHON="$PYTHON" \
    -DHEARTH_SENTENCEPIECE="$SENTENCEPIECE" "$@"
  write_stamp "$folder/hearth.stamp" "$want"
}

# build FOLDER TARGET...: nothing is printed when there is nothing to do.
build() {
  local folder=$1
  shift
  if ninja -C "$folder" -n "$@" 2>/dev/null | grep -q 'no work to do'; then
    return
  fi
  step "build-$(basename "$folder")" "build ${folder#"$ROOT"/}" \
    ninja -C "$folder" -j "$(job_count)" "$@"
}

build_release() {
  configure "$BUILD"
  build "$BUILD" "$@"
}

# --- tests -----------------------------------------------------------------------------------

# Two at a time: many tests start processes that use two threads each.
run_ctest() {
  local log=$LOG_DIR/ctest.log status=0
  mkdir -p "$LOG_DIR"
  # libtorch's threads sleep while they wait, instead of spinning on the other test's processor.
  (cd "$BUILD" && OMP_WAIT_POLICY=passive ctest --output-on-failure --timeout "$TEST_TIMEOUT_S" -j 2 "$@") 2>&1 |
    tee "$log" || status=$?
  return "$status"
}

# The part of ctest's output that says how it went; CMake 3 and 4 word its first line differently.
ctest_summary() { sed -n '/tests passed.* out of/,$p' "$LOG_DIR/ctest.log"; }

# The test programs that a sanitizer runs. Those that link torch are left out: the wheel's
# libraries are not instrumented, and building ATen's users once more costs minutes.
sanitized_programs() {
  case $1 in
    address)
      echo hearth_contract_test hearth_store_test hearth_worker_test hearth_services_test \
        hearth_worker_service_test
      ;;
    thread) echo hearth_store_test hearth_worker_test ;;
  esac
}

# sanitize KIND FOLDER: builds the programs with -fsanitize=KIND and runs them. A program that
# passed as it is, on the data that it reads, is not run again.
sanitize() {
  local kind=$1 folder=$BUILD/$2 name data programs=() changed=()
  configure "$folder" -DHEARTH_SANITIZE="$kind" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_FLAGS_RELEASE="-O1 -g1"
  for name in $(sanitized_programs "$kind"); do
    if ninja -C "$folder" -t query "$name" >/dev/null 2>&1; then
      programs+=("$name")
    else
      die "$kind sanitizer: there is no test program $name; correct scripts/build.sh"
    fi
  done
  build "$folder" "${programs[@]}"
  data=$(sanitized_data)
  for name in "${programs[@]}"; do
    stamp_holds "$folder/passed/$name" "$(digest "$folder/tests/$name" -- "$data")" ||
      changed+=("$name")
  done
  if ((${#changed[@]} == 0)); then
    say "  $kind sanitizer: ${#programs[@]} test programs passed as they are"
    return
  fi
  step "run-$2" "run ${#changed[@]} test programs, $kind sanitizer" \
    run_sanitized "$folder" "$data" "${changed[@]}"
}

# One digest of what the programs read beside themselves, and of what the sanitizers let pass.
sanitized_data() {
  find "$ROOT/tests" "$ROOT/scripts/lsan.supp" "$ROOT/scripts/tsan.supp" -type f \
    -not -name '*.cc' -not -name '*.h' -not -name '*.py*' -print0 |
    sort -z | xargs -0 sha256sum | sha256sum
}

# run_sanitized FOLDER DATA PROGRAM...
run_sanitized() {
  local folder=$1 data=$2 name
  shift 2
  export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$ROOT/scripts/tsan.supp
  export LSAN_OPTIONS=suppressions=$ROOT/scripts/lsan.supp
  for name in "$@"; do
    echo "== $name"
    run_in_shards "$folder/tests/$name"
    write_stamp "$folder/passed/$name" "$(digest "$folder/tests/$name" -- "$data")"
  done
}

# run_in_shards PROGRAM: its tests dealt out to as many processes as there are jobs, since many wait
# for the disk.
run_in_shards() {
  local program=$1 shards shard pid status=0 pids=()
  shards=$(job_count)
  for ((shard = 0; shard < shards; ++shard)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard \
      timeout --foreground "$TEST_TIMEOUT_S" "$program" --gtest_brief=1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do
    wait "$pid" || status=$?
  done
  return "$status"
}
