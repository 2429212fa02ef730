#!/usr/bin/env bash
# Long tests: mixed operations under the sanitizers, kill -9 at random moments, and a disk that
# fails and loses writes, flips bits, or fills up.
#
#   scripts/soak.sh [OPERATIONS] [KILLS] [SEEDS] [FLIPS] [MOMENTS] [SIMULATED]
#                                     default: 10 million, 500, 300, 5,000, 1,000, 7200 s
#   scripts/soak.sh --help
#
# OPERATIONS: nine tenths run on a store in RAM, one tenth on a store with a disk. KILLS: kill -9.
# SEEDS: runs of the crash test, a few seconds each, from HEARTH_CRASH_FIRST_SEED (default: 1).
# FLIPS: single bits to flip in a data folder. MOMENTS: moments at which the disk is full (as root
# also on small file systems).
# SIMULATED: seconds to simulate a store and three workers with all faults mixed
# (docs/dev/building.md), one process for each seed. The first seed is random, or
# HEARTH_SIM_FIRST_SEED. Progress is printed each minute. A seed that fails is printed, its history
# is in build/soak/, and the other seeds still run. This part needs the worker: ./hearth setup.
# 0 skips a part. All parts take hours on a small machine; the run stops after the first part that
# fails. HEARTH_SOAK_KINDS="address" or "thread" runs the operations under one sanitizer only.
set -euo pipefail
cd "$(dirname "$0")/.."
if [[ ${1-} == --help || ${1-} == -h ]]; then
  sed -n '2,/^set /s/^# \{0,1\}//p' scripts/soak.sh
  exit
fi
operations=${1:-10000000}
kills=${2:-500}
seeds=${3:-300}
flips=${4:-5000}
moments=${5:-1000}
simulated=${6:-7200}
# The simulation stops after this many seeds have failed.
MOST_FAILED=20

# simulate SECONDS: runs one seed after the other until the time is up. The history of a failed seed
# is kept and the seed is printed; the next seeds still run. Fails if a seed failed.
simulate() {
  local seed=${HEARTH_SIM_FIRST_SEED:-$((RANDOM << 30 | RANDOM << 15 | RANDOM))} keep=build/soak
  local first=$seed began=$SECONDS said=$SECONDS failed=() status log
  mkdir -p "$keep"
  echo "simulation: $1 s of seeds from $first"
  while ((SECONDS - began < $1 && ${#failed[@]} < MOST_FAILED)); do
    log=$keep/seed-$seed.log status=0
    # The timeout stops a seed that hangs; most seeds take one or two seconds.
    HEARTH_SIM_SEED=$seed timeout 300 build/tests/hearth_simulation_test \
      --gtest_filter='Simulation.InvariantsHoldForAllSeeds' >"$log" 2>&1 || status=$?
    grep -q '^\[  PASSED  \] 1 test' "$log" || ((status)) || status=1
    if ((status == 0)); then
      rm -f "$log"
    else
      failed+=("$seed")
      grep -m 1 '^invariant ' "$log" || tail -n 5 "$log"
      echo "simulation: HEARTH_SIM_SEED=$seed failed with status $status; its history is in $log"
    fi
    seed=$((seed + 1))
    if ((SECONDS - said >= 60)); then
      said=$SECONDS
      echo "simulation: $((SECONDS - began)) of $1 s, $((seed - first)) seeds, ${#failed[@]} failed"
    fi
  done
  if ((${#failed[@]} == 0)); then
    echo "simulation: $((seed - first)) seeds from $first in $((SECONDS - began)) s, no violation"
    return
  fi
  echo "simulation: ${#failed[@]} of $((seed - first)) seeds failed: ${failed[*]}"
  echo "to repeat: HEARTH_SIM_SEED=${failed[0]} build/tests/hearth_simulation_test"
  return 1
}

kinds=${HEARTH_SOAK_KINDS-address thread}
((operations > 0)) || kinds=
for kind in $kinds; do
  folder=build-soak-$kind
  cmake -S . -B "$folder" -G Ninja -DHEARTH_WITH_WORKER=OFF -DHEARTH_SANITIZE="$kind" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O1 -g1" >/dev/null
  ninja -C "$folder" hearth_soak
  # ASan keeps freed memory in a quarantine, to catch late uses. A small quarantine lets a test see
  # memory growth.
  export ASAN_OPTIONS=quarantine_size_mb=16 LSAN_OPTIONS=suppressions=$PWD/scripts/lsan.supp
  export TSAN_OPTIONS=halt_on_error=1:suppressions=$PWD/scripts/tsan.supp
  echo "$kind: RAM only"
  "$folder/tests/hearth_soak" ram $((operations * 9 / 10))
  echo "$kind: RAM and disk"
  "$folder/tests/hearth_soak" $((operations / 10))
done
if ((kills > 0)); then
  cmake -S . -B build -G Ninja -DHEARTH_WITH_WORKER=OFF >/dev/null
  ninja -C build hearth_kill_nine_test
  HEARTH_KILLS=$kills build/tests/hearth_kill_nine_test
fi
if ((seeds > 0)); then
  cmake -S . -B build -G Ninja -DHEARTH_WITH_WORKER=OFF >/dev/null
  ninja -C build hearth_store_test
  HEARTH_CRASH_SEEDS=$seeds build/tests/hearth_store_test --gtest_filter='StoreCrash*'
fi
if ((flips + moments > 0)); then
  cmake -S . -B build -G Ninja -DHEARTH_WITH_WORKER=OFF >/dev/null
  ninja -C build hearth_flip_test hearth_store_test
  if ((flips > 0)); then
    HEARTH_FLIPS=$flips build/tests/hearth_flip_test
  fi
  if ((moments > 0)); then
    HEARTH_FULL_MOMENTS=$moments build/tests/hearth_store_test --gtest_filter='*FullMo*'
  fi
fi
if ((simulated > 0)); then
  cmake -S . -B build -G Ninja -DHEARTH_WITH_WORKER=ON >/dev/null
  ninja -C build hearth_simulation_test
  simulate "$simulated"
fi
