# shellcheck shell=bash
# Configuring, building and testing. Sourced after lib.sh and setup.sh.

BUILD=$ROOT/build
TEST_TIMEOUT_S=900

# Memory to reserve for one compiler process. Sources with ATen's headers need up to 1.1 GB, tests
# 0.9 GB.
JOB_MEMORY_MB=1500

job_count() {
  local cores memory_mb
  cores=$(nproc)
  memory_mb=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
  local by_memory=$((memory_mb / JOB_MEMORY_MB))
  ((by_memory >= 1)) || by_memory=1
  echo "${HEARTH_JOBS:-$((cores < by_memory ? cores : by_memory))}"
}

check_jobs() {
  [[ ${HEARTH_JOBS:-1} =~ ^[1-9][0-9]*$ ]] ||
    die "HEARTH_JOBS must be a number of processes, at least 1; got \"$HEARTH_JOBS\""
}

# Paths below the root are cached as relative, so that clones in different folders share ccache.
export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=true

# Used to estimate the time of a build: processor time of one ninja step on the reference machine,
# and the number of steps (if ninja cannot count them yet) of the programs without torch, of the
# demo, and of all targets.
STEP_MS=3800
STORE_STEPS=50
DEMO_STEPS=79
ALL_STEPS=176
# Programs that need no torch. Tests are left out, because without the worker some tests have other
# sources and would be compiled twice.
STORE_PROGRAMS=(hearth-store hearthctl)
WITHOUT_WORKER=-DHEARTH_WITH_WORKER=OFF

# compile_seconds STEPS
compile_seconds() { echo $(($1 * STEP_MS / 1000 / $(job_count))); }

# configure_digest CMAKE_ARGUMENT...
configure_digest() {
  local libraries=()
  if [[ " $* " != *" $WITHOUT_WORKER "* ]]; then
    mapfile -t libraries < <(cat "$VENV"/{hearth,llguidance}.stamp 2>/dev/null)
  fi
  digest -- "$ROOT" "$@" "$(command -v cmake)" "$("$ROOT/scripts/version.sh" version)" \
    "$("$ROOT/scripts/version.sh" commit)" "${libraries[@]}"
}

is_configured() {
  local folder=$1
  shift
  [[ -f $folder/build.ninja ]] && stamp_holds "$folder/hearth.stamp" "$(configure_digest "$@")"
}

run_configure() {
  local folder=$1
  shift
  # Reconfiguring a folder that was configured without the worker keeps CMake's cache and all
  # objects.
  is_configured "$folder" "$WITHOUT_WORKER" ||
    rm -rf "$folder/CMakeCache.txt" "$folder"/CMakeFiles/[0-9]*  # keeps precompiled headers
  rm -f "$folder/hearth.stamp"
  cmake -S "$ROOT" -B "$folder" -G Ninja -DHEARTH_PYTHON="$PYTHON" -DHEARTH_WITH_WORKER=ON "$@"
  write_stamp "$folder/hearth.stamp" "$(configure_digest "$@")"
}

# plan_configure NAME FOLDER CMAKE_ARGUMENT...
plan_configure() {
  local name=$1 folder=$2
  shift 2
  if ! has_piece torch && ! has_piece llguidance && is_configured "$folder" "$@"; then return; fi
  piece "configure-$name" "configure ${folder#"$ROOT"/}" 3 "apt torch llguidance build-store" \
    run_configure "$folder" "$@"
}

run_ninja() { ninja -C "$1" -j "$(job_count)" "${@:2}"; }

# plan_build NAME TEXT FOLDER STEPS TARGET...: plans to build the targets, unless they are up to
# date. STEPS is an estimate of the steps, for a folder that is not configured yet.
plan_build() {
  local name=$1 text=$2 folder=$3 steps=$4 said
  shift 4
  if ! has_piece "configure-$name"; then
    said=$(ninja -C "$folder" -n "$@" 2>/dev/null) || true
    [[ $said != *"no work to do"* ]] || return 0
    [[ ! $said =~ \[[0-9]+/([0-9]+)\] ]] || steps=${BASH_REMATCH[1]}
  fi
  piece "build-$name" "$text" "$(compile_seconds "$steps")" "apt configure-$name" \
    run_ninja "$folder" "$@"
}

# configure FOLDER CMAKE_ARGUMENT...
configure() {
  plan_configure "$(basename "$1")" "$@"
  run_plan
}

# build FOLDER TARGET...
build() {
  plan_build "$(basename "$1")" "compile ${1#"$ROOT"/}" "$1" 0 "${@:2}"
  run_plan
}

# plan_release TARGET...: plans to build the targets; without targets, everything. While torch is
# downloaded, the programs that do not need it are compiled, in the same folder.
plan_release() {
  local steps=$ALL_STEPS disk_mb=1800 text="compile" rest="compile the worker and the tests"
  (($# == 0)) || steps=$DEMO_STEPS disk_mb=1000 rest="compile the worker"
  if has_piece torch; then
    if [[ ! -f $BUILD/build.ninja ]] || is_configured "$BUILD" "$WITHOUT_WORKER"; then
      plan_store
      steps=$((steps - STORE_STEPS)) text=$rest
    fi
  fi
  plan_configure build "$BUILD"
  plan_build build "$text" "$BUILD" "$steps" "$@"
  has_piece configure-build || return 0
  plan_line "the programs" "${*:-all, with their tests}, compiled into build" "$disk_mb"
}

plan_store() {
  is_configured "$BUILD" "$WITHOUT_WORKER" ||
    piece configure-store "configure build, without the worker" 2 apt \
      run_configure "$BUILD" "$WITHOUT_WORKER"
  plan_build store "compile store and hearthctl" "$BUILD" "$STORE_STEPS" "${STORE_PROGRAMS[@]}"
}

build_release() {
  plan_release "$@"
  run_plan
}

# --- tests -----------------------------------------------------------------------------------

# Runs two tests at a time, because many tests start processes with two threads each.
# OMP_WAIT_POLICY=passive lets waiting OpenMP threads sleep. By default they spin, and tests that
# share the cores with other work took six times as long.
run_ctest() {
  local log=$LOG_DIR/ctest.log status=0
  mkdir -p "$LOG_DIR"
  (cd "$BUILD" &&
    OMP_WAIT_POLICY=passive ctest --output-on-failure --timeout "$TEST_TIMEOUT_S" -j 2 \
      --repeat "until-pass:${HEARTH_TEST_ATTEMPTS:-1}" "$@") 2>&1 |
    tee "$log" || status=$?
  # A crash counts, even if a later attempt passed.
  ! grep -aq '\*\*\*Exception' "$log" || status=1
  return "$status"
}

# Prints the tests that failed and passed at a later attempt.
unstable_tests() {
  [[ ! -f $LOG_DIR/ctest.log ]] || comm -12 \
    <(grep -aoP 'Test +#\d+: \K\S+(?=.*\*\*\*)' "$LOG_DIR/ctest.log" | sort -u) \
    <(grep -aoP 'Test +#\d+: \K\S+(?=.* Passed )' "$LOG_DIR/ctest.log" | sort -u)
  cat "$BUILD"/{asan,tsan}/parts/*.unstable 2>/dev/null || true
}

# Prints the summary of ctest's output. The wording of its first line differs between CMake 3 and 4.
ctest_summary() { sed -n '/tests passed.* out of/,$p' "$LOG_DIR/ctest.log"; }

# Prints the test programs to run under a sanitizer. Programs that link torch are left out, because
# torch's libraries are not instrumented and compiling ATen's headers again takes minutes.
sanitized_programs() {
  case $1 in
    address)
      echo hearth_simulation_test hearth_store_test hearth_worker_test hearth_services_test \
        hearth_worker_service_test hearth_kernel_test hearth_threads_test hearth_device_test \
        hearth_contract_test hearth_redis_test hearth_shared_test hearth_openai_test
      ;;
    thread)
      # hearth_simulation_test is left out, because it runs one step at a time.
      echo hearth_store_test hearth_worker_test hearth_threads_test hearth_device_test \
        hearth_redis_test hearth_shared_test
      ;;
  esac
}

# Prints the compiler's options. With the address sanitizer, optimising would take three times as
# long as compiling and save less. With the thread sanitizer, unoptimised code is too slow.
sanitized_flags() {
  case $1 in
    address) echo "-O0 -g1" ;;
    thread) echo "-O1 -g1" ;;
  esac
}

# sanitize KIND FOLDER: builds the programs with -fsanitize=KIND and runs them. A program that has
# passed is not run again until the program, its libraries or its data change.
sanitize() {
  local kind=$1 folder=$BUILD/$2 name programs=() changed=()
  configure "$folder" -DHEARTH_SANITIZE="$kind" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_FLAGS_RELEASE="$(sanitized_flags "$kind")"
  ninja -C "$folder" build.ninja >/dev/null  # brings build.ninja up to date for the query
  for name in $(sanitized_programs "$kind"); do
    if ninja -C "$folder" -t query "$name" >/dev/null 2>&1; then
      programs+=("$name")
    else
      die "$kind sanitizer: there is no test program $name; correct scripts/build.sh"
    fi
  done
  build "$folder" "${programs[@]}"
  for name in "${programs[@]}"; do
    stamp_holds "$folder/passed/$name" "$(sanitized_digest "$folder" "$name")" || changed+=("$name")
  done
  if ((${#changed[@]} == 0)); then
    say "  $kind sanitizer: ${#programs[@]} test programs are unchanged since they passed"
    return
  fi
  step "run-$2" "run ${#changed[@]} test programs, $kind sanitizer" \
    run_sanitized "$folder" "${changed[@]}"
}

# sanitized_digest FOLDER PROGRAM: a digest of the program, the program that it starts, their
# libraries, the files that tests read, and the functions that run them.
sanitized_digest() {
  local program=$1/tests/$2 child=$1/tests/hearth_store_client files libraries
  [[ -f $child ]] || child=$program
  files=$(find "$ROOT/tests" "$ROOT/scripts/lsan.supp" "$ROOT/scripts/tsan.supp" -type f \
    -not -name '*.cc' -not -name '*.h' -not -name '*.py*' -print0 |
    sort -z | xargs -0 sha256sum)
  libraries=$(ldd "$program" "$child" | awk '$3 ~ /^\// { print $3 }' | sort -u |
    xargs stat -L -c '%n %s %Y')
  digest "$program" "$child" -- "$files" "$libraries" "$(declare -f run_sanitized run_part)"
}

# run_sanitized FOLDER PROGRAM...: splits the tests of each program into parts and runs job_count
# parts at a time, because many tests wait for the disk. A failure does not stop the other parts;
# the output of failed parts is printed again at the end.
run_sanitized() {
  local folder=$1 parts=4 name part status=0 passed=() work=()
  shift
  # Run every test, even if the caller's environment has filters of GoogleTest.
  unset "${!GTEST_@}"
  export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1
  export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:die_after_fork=0
  TSAN_OPTIONS+=:suppressions=$ROOT/scripts/tsan.supp
  export LSAN_OPTIONS=suppressions=$ROOT/scripts/lsan.supp
  # Tests of disk failures and corrupt files try fewer cases than in the release build, because a
  # sanitizer's findings do not depend on the number of cases.
  export HEARTH_CRASH_SEEDS=3 HEARTH_FULL_MOMENTS=12 HEARTH_HOSTILE_FILES=40
  export TEST_TIMEOUT_S HEARTH_TEST_ATTEMPTS=${HEARTH_TEST_ATTEMPTS:-1}
  export -f run_part run_failed_again
  rm -rf "$folder/parts"
  mkdir -p "$folder/parts"
  for name in "$@"; do
    for ((part = 0; part < parts; ++part)); do
      work+=("$folder/tests/$name" "$part" "$parts" "$folder/parts/$name.$part")
    done
  done
  # shellcheck disable=SC2016
  printf '%s\0' "${work[@]}" |
    xargs -0 -n 4 -P "$(job_count)" bash -c 'run_part "$@"' bash || status=$?
  for name in "$@"; do
    passed=("$folder/parts/$name".*.passed)
    ((${#passed[@]} < parts)) ||
      write_stamp "$folder/passed/$name" "$(sanitized_digest "$folder" "$name")"
  done
  for name in "$folder"/parts/*.failed; do
    if [[ -f $name ]]; then cat "$name"; fi
  done
  return "$status"
}

# run_part PROGRAM PART PARTS LOG: runs one of PARTS parts of the program's tests; prints its output
# when it ends.
run_part() {
  local status=0
  GTEST_TOTAL_SHARDS=$3 GTEST_SHARD_INDEX=$2 \
    timeout --foreground "$TEST_TIMEOUT_S" "$1" --gtest_brief=1 >"$4" 2>&1 || status=$?
  echo "== ${1##*/}, part $(($2 + 1)) of $3"
  cat "$4"
  if ((status > 0)) && ! run_failed_again "$1" "$4" "$status"; then
    echo "== ${1##*/}, part $(($2 + 1)) of $3, failed with status $status" >"$4.failed"
    grep -aE -A 6 "Failure$|FAILED|ERROR|SUMMARY" "$4" >>"$4.failed" ||
      tail -n 12 "$4" >>"$4.failed"
    return 1
  fi
  touch "$4.passed"
}

# run_failed_again PROGRAM LOG STATUS: runs the failed tests of LOG again, HEARTH_TEST_ATTEMPTS - 1
# times at most, and succeeds if all pass. Fails at once if the sanitizer reported a fault, or if
# STATUS is not that of failed tests: the program crashed or was stopped before it ran all tests.
run_failed_again() {
  local tests attempt
  (($3 == 1)) || return 1
  tests=$(grep -aoP '^\[  FAILED  \] \K[\w/.]+(?=.* ms\)$)' "$2") || return 1
  ! grep -aqE 'ERROR: |WARNING: ThreadSanitizer' "$2" || return 1
  for ((attempt = 2; attempt <= HEARTH_TEST_ATTEMPTS; ++attempt)); do
    echo "== ${1##*/}, attempt $attempt: ${tests//$'\n'/ }" | tee -a "$2"
    if timeout --foreground "$TEST_TIMEOUT_S" "$1" --gtest_brief=1 \
      --gtest_filter="${tests//$'\n'/:}" >>"$2" 2>&1; then
      echo "$tests" >"$2.unstable"
      return 0
    fi
  done
  return 1
}
