#!/usr/bin/env bash
# Tests how scripts/build.sh runs test programs in parts under sanitizers.
# Usage: bash tests/scripts/sanitized_test.sh
# shellcheck disable=SC2016  # the programs' shells expand the text
set -euo pipefail
ROOT_OF_TEST=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
FOLDER=$(mktemp -d)
trap 'rm -rf "$FOLDER"' EXIT
unset HEARTH_TEST_ATTEMPTS

# program NAME COMMAND: makes a program that appends its part to $FOLDER/ran and runs COMMAND.
program() {
  mkdir -p "$FOLDER/tests"
  {
    printf '#!/usr/bin/env bash\nset -e\n'
    printf 'echo "%s $GTEST_SHARD_INDEX of $GTEST_TOTAL_SHARDS" >>"%s"\n' "$1" "$FOLDER/ran"
    echo "$2"
  } >"$FOLDER/tests/$1"
  chmod +x "$FOLDER/tests/$1"
}

# run JOBS PROGRAM...: runs run_sanitized; sets OUTPUT and STATUS.
run() {
  STATUS=0
  rm -rf "$FOLDER/ran" "$FOLDER/passed"
  OUTPUT=$(HEARTH_JOBS=$1 bash -c '
    set -euo pipefail
    . "$1/scripts/lib.sh"
    . "$1/scripts/setup.sh"
    . "$1/scripts/build.sh"
    sanitized_digest() { echo a digest; }
    run_sanitized "${@:2}"' bash "$ROOT_OF_TEST" "$FOLDER" "${@:2}" 2>&1) || STATUS=$?
}

expect() {
  local text=$1
  shift
  if ! "$@"; then
    printf 'FAILED: %s\nstatus %d, output:\n%s\nran:\n%s\n' "$text" "$STATUS" "$OUTPUT" \
      "$(sort "$FOLDER/ran")"
    exit 1
  fi
  echo "ok: $text"
}

all_parts() {
  local name part
  for name in "$@"; do for part in 0 1 2 3; do echo "$name $part of 4"; done; done | sort
}
each_once() { diff <(sort "$FOLDER/ran") <(all_parts "$@"); }
stamped_are() { diff <(ls "$FOLDER/passed" 2>/dev/null) <(printf '%s\n' "$@" | sort); }
says() { [[ $OUTPUT == *"$1"* ]]; }

program one 'echo hello'
program two 'true'
program three 'true'
for jobs in 1 2 5 30; do
  run "$jobs" one two three
  expect "$jobs jobs: it succeeds" test "$STATUS" = 0
  expect "$jobs jobs: each part of each program runs once" each_once one two three
  expect "$jobs jobs: each program is stamped" stamped_are one two three
done
expect "what a part writes is shown" says hello

# One part of a program fails; the parts before and after it must still run.
program two '[[ $GTEST_SHARD_INDEX != 1 ]] || { echo "broken here"; exit 3; }'
for jobs in 1 2 5; do
  run "$jobs" one two three
  expect "$jobs jobs: a part that fails fails all" test "$STATUS" != 0
  expect "$jobs jobs: what it wrote is shown" says "broken here"
  expect "$jobs jobs: the others run, and it is not stamped" stamped_are one three
done

# A test that fails only at its first attempt.
said='[  FAILED  ] Lamp.Lights (5 ms)'
program two '
  [[ "$*" != *--gtest_filter=Lamp.Lights* ]] || exit "$(cat "'"$FOLDER"'/again")"
  [[ $GTEST_SHARD_INDEX != 1 ]] || { echo "'"$said"'"; exit 1; }'
echo 0 >"$FOLDER/again"
run 2 one two
expect "without attempts, a failed test fails" test "$STATUS" != 0
export HEARTH_TEST_ATTEMPTS=2
run 2 one two
expect "a test that passes at its second attempt passes" test "$STATUS" = 0
expect "its name is kept" grep -qx Lamp.Lights "$FOLDER/parts/two.1.unstable"
echo 1 >"$FOLDER/again"
run 2 one two
expect "a test that fails twice fails" test "$STATUS" != 0
echo 0 >"$FOLDER/again"
said=$'ERROR: AddressSanitizer: heap\n[  FAILED  ] Lamp.Lights (5 ms)'
program two 'echo "'"$said"'"; exit 1'
run 2 one two
expect "a fault that the sanitizer reports is not tried again" test "$STATUS" != 0
program two 'exit 139'
run 2 one two
expect "a crash is not tried again" test "$STATUS" != 0
said='[  FAILED  ] Lamp.Lights (5 ms)'
program two '[[ "$*" == *--gtest_filter=* ]] || { echo "'"$said"'"; exit 134; }'
run 2 one two
expect "a crash after a failed test is not tried again" test "$STATUS" != 0
