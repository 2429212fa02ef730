#!/usr/bin/env bash
# Plants faults into the device programs (worker/device/) and checks that the tests find them. The
# thread sanitizer finds a missing barrier; copies that arrive late show a wait for too few copies.
# Fails if a fault is not found, or if the tests fail without a fault.
#   scripts/plant_device_faults.sh           after cmake --build build --target hearth_device_test
#   scripts/plant_device_faults.sh --changes checks only that each fault changes the programs
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
mkdir -p "$WORK/worker/device"
[[ ${1:-} == --changes ]] || LINK=$(ninja -C "$ROOT/build" -t commands hearth_device_test |
  grep -e '-o tests/hearth_device_test' | tail -1 | sed 's/^.*: && //; s/ && .*//')

# planted NAME FILE SED TEST [OPTION...]: runs this test, of DeviceStep if TEST names no suite, with
# FILE changed by SED. emulated_device.cc includes all device programs, so only this file is
# compiled.
planted() {
  local name=$1 file=$2 change=$3 test=$4
  shift 4
  [[ $test == *.* ]] || test=DeviceStep.$test
  if ! grep -q "TEST(${test%.*}, ${test#*.})" "$ROOT"/tests/worker/device/*_test.cc; then
    echo "$name: tests/worker/device has no test $test" && return 1
  fi
  rm -f "$WORK"/worker/device/*
  sed -E "$change" "$ROOT/worker/device/$file" >"$WORK/worker/device/$file"
  if [[ -n $change ]] && cmp -s "$ROOT/worker/device/$file" "$WORK/worker/device/$file"; then
    echo "$name: the fault changes no line of $file" && return 1
  fi
  [[ ${LINK:-} ]] || return 0
  g++ -std=c++17 -O2 -g1 -ffp-contract=off -pthread "$@" -I"$WORK" -I"$ROOT" \
    -c "$ROOT/worker/device/emulated_device.cc" -o "$WORK/emulated.o"
  local link=${LINK/-o tests\/hearth_device_test/$* $WORK/emulated.o -o $WORK/test}
  (cd "$ROOT/build" && eval "$link")
  if ("$WORK/test" --gtest_filter="$test" >"$WORK/log" 2>&1) 2>/dev/null; then
    echo "$name: $(grep '^\[  PASSED  \]' "$WORK/log")"
    [[ -z $change ]] && grep -q '^\[  PASSED  \] 1 test' "$WORK/log"
  else
    echo "$name: found: $(grep -m1 -E 'ThreadSanitizer: data race|Failure|Assertion' "$WORK/log")"
    [[ -n $change ]]
  fi
}

# In this test a split has several stages, so a wait for too few copies reads an old stage.
SEVERAL=WrappedRingBufferGivesSameBits
THREADS=(DelayedCopiesGiveSameBits -fsanitize=thread -DHEARTH_WARPS_AS_THREADS)
planted "unchanged programs, with threads" product_program.h "" "${THREADS[@]}"
planted "no barrier before a product's stage" product_program.h \
  '/WaitCopies<kDepth - \(kAhead/ { n; s|BARRIER\(\);.*|| }' "${THREADS[@]}"
planted "no barrier before attention's weights" attend_programs.h \
  '/^    BARRIER\(\);$/d' "${THREADS[@]}"
THREADS[0]=DelayedCopiesInBf16GiveSameBits
planted "unchanged bfloat16 programs, with threads" product_program.h "" "${THREADS[@]}"
planted "no barrier before attention's products" bf16_attend_program.h \
  's|BARRIER\(\);  // all threads see the pass.*||' "${THREADS[@]}"
planted "no barrier before attention's bfloat16 weights" bf16_attend_program.h \
  '/^      BARRIER\(\);$/d' "${THREADS[@]}"
planted "bfloat16 attention waits for no pass" bf16_attend_program.h \
  's|WaitCopies<kDepth - 2>|WaitCopies<kDepth - 1>|' "${THREADS[0]}"
planted "unchanged programs, with late copies" product_program.h "" $SEVERAL
planted "a product waits for one stage too few" product_program.h \
  's|kAhead > 0 \? 3 : 2|kAhead > 0 ? 2 : 1|' $SEVERAL
planted "attention waits for one stage too few" attend_programs.h \
  's|WaitCopies<kDepth - 2>|WaitCopies<kDepth - 1>|' $SEVERAL

# In these tests, copies also arrive late (LateCopies).
INTEGERS=IntegerProductProgram.EveryTilingMatchesCpuBits
planted "unchanged integer programs" integer_product_program.h "" $INTEGERS
planted "an integer product waits for one stage too few" integer_product_program.h \
  's|WaitCopies<kDepth - 2>|WaitCopies<kDepth - 1>|' $INTEGERS
planted "no barrier before an integer product's stage" integer_product_program.h \
  's|BARRIER\(\);  // all threads see the stage.*||' $INTEGERS \
  -fsanitize=thread -DHEARTH_WARPS_AS_THREADS
planted "a norm quantizes before the row is complete" integer_matrix.h \
  '/if \(to.ints == nullptr\) return;/ { n; s|BARRIER\(\);|| }' \
  DeviceIntegers.FileWithMixedTypesMatchesCpuBits -fsanitize=thread -DHEARTH_WARPS_AS_THREADS
