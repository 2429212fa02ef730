#!/usr/bin/env bash
# Tests scripts/work.sh, progress.sh and setup.sh. Usage: bash tests/scripts/work_test.sh
# shellcheck disable=SC2016  # the shell that `run` starts expands the text
set -euo pipefail
ROOT_OF_TEST=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
FOLDER=$(mktemp -d)
trap 'rm -rf "$FOLDER"' EXIT

# run COMMANDS: runs them in a new shell that has sourced the scripts; sets OUTPUT and STATUS.
run() {
  STATUS=0
  OUTPUT=$(cd "$FOLDER" && bash -c '
    set -euo pipefail
    . "$1/scripts/lib.sh"
    . "$1/scripts/setup.sh"
    trap end_work_on_exit EXIT
    LOG_DIR=$2/log
    HEARTBEAT_S=1 END_POLLS=3
    eval "$3"' bash "$ROOT_OF_TEST" "$FOLDER" "$1" 2>&1) || STATUS=$?
}

# expect TEXT CONDITION...: fails with TEXT unless the condition holds.
expect() {
  local text=$1
  shift
  if ! "$@"; then
    printf 'FAILED: %s\nstatus %d, output:\n%s\n' "$text" "$STATUS" "$OUTPUT"
    exit 1
  fi
  echo "ok: $text"
}

says() { [[ $OUTPUT == *"$1"* ]]; }

run 'piece one One 1 "" touch one; piece two Two 1 "absent one" ls one; run_plan'
expect "a piece begins once those before it are done" test "$STATUS" = 0

run 'before() { sleep 0.5; touch late; }
  piece two Two 1 one ls late; piece one One 1 "" before; run_plan'
expect "however they were added" test "$STATUS" = 0

run 'half() { echo begun; false; touch went-on; }
  piece bad Bad 1 "" stamped "$2/stamp" 1 half; piece after After 1 bad touch came-after
  run_plan; touch went-on'
expect "a piece fails with the first command in it that does" test ! -e "$FOLDER/went-on"
expect "without its stamp" test ! -e "$FOLDER/stamp"
expect "and without what comes after it" test ! -e "$FOLDER/came-after"
expect "the tail of its log is shown" says "    | begun"
expect "the status says so" test "$STATUS" = 1

run 'both() { echo "$BASHPID" >group; sleep 60 & sleep 61; }
  bad() { until [[ -s group ]]; do :; done; false; }
  piece long Long 1 "" both; piece bad Bad 1 "" bad; run_plan'
# has_ended GROUP: waits until no process of the group is left. A killed process exists until its
# parent has read its status.
has_ended() {
  local poll
  for ((poll = 0; poll < 6000; ++poll)); do
    kill -0 -- "-$1" 2>/dev/null || return 0
    read -rt 0.01 <> <(:) || true
  done
  return 1
}
expect "an end leaves no process behind" has_ended "$(<"$FOLDER/group")"

# The pieces end only when the log has a line.
run 'is_logged() { until grep -q "1 of 4" shown; do :; done; }
  ninja_like() { echo "[1/4] a"; is_logged; echo "[4/4] d"; }
  piece build-x Compile 2 "" ninja_like; piece other Other 1 "" is_logged
  run_plan >shown 2>&1; cat shown'
expect "a log gets lines with the expected time and ninja's count" says "s: Compile, 1 of 4; Other"

for make in make_model make_checkpoint; do
  mkdir -p "$FOLDER/models/.fetch-killed"
  run "MODEL=\$2/models/a.gguf PYTHON=true; $make"
  expect "$make removes what a killed one left" test ! -e "$FOLDER/models/.fetch-killed"
done

run 'run_plan'
expect "without work nothing is said" test -z "$OUTPUT"
