#!/usr/bin/env bash
# Processor time of a first run: `./hearth demo`'s set-up and build, then `.ci/run`, each
# from nothing in a fresh clone, without a compiler cache. With two revisions, one after the other:
# the ratio is of the second to the first.
#
#   bench/build_cost.sh [--parts demo|ci|edits] [REVISION...]     default: all parts of 6a816a7 HEAD
#
# Figures are user + system time of the whole process tree, as the kernel counted it. Debian's
# packages are installed before the clock, by root. Clones go to $TMPDIR, 5 GB
# each. All of it takes about two hours on two cores; nothing else should run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
REPO=$PWD
parts=(demo ci edits)
if [[ ${1:-} == --parts ]]; then
  IFS=, read -ra parts <<<"${2:?--parts needs demo, ci or edits}"
  shift 2
fi
revisions=("${@:-}")
[[ -n ${revisions[0]} ]] || revisions=(6a816a7 HEAD)
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
export CCACHE_DISABLE=1
declare -A seconds

# cost KEY COMMAND...: runs the command in the current folder and stores its processor seconds in
# seconds[KEY]. The wrapper is a subreaper, so that orphaned processes count too. If the command
# fails, its time and the end of its log are printed, and the script ends.
cost() {
  local key=$1
  shift
  seconds[$key]=$(python3 - "$WORK/$key.log" "$@" <<'PY'
import ctypes, os, resource, subprocess, sys
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
with open(sys.argv[1], "wb") as log:
    first = subprocess.Popen(sys.argv[2:], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
status = None
while True:
    try:
        pid, ended = os.wait()
    except ChildProcessError:
        break
    if pid == first.pid:
        status = os.waitstatus_to_exitcode(ended)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
spent = f"{used.ru_utime + used.ru_stime:.0f}"
print(spent)
if status != 0:
    sys.exit(f"{sys.argv[2:]} ended with {status} after {spent} s; its last lines:")
PY
  ) || {
    tail -n 30 "$WORK/$key.log" >&2
    exit 1
  }
  printf '%-10s %-34s %6d s\n' "$revision" "${key#*_}" "${seconds[$key]}"
}

# in_hearth COMMANDS: prints a script that runs COMMANDS with the functions of ./hearth.
in_hearth() {
  printf '%s\n' 'set -euo pipefail; . scripts/lib.sh; . scripts/setup.sh; . scripts/build.sh;' "$1"
}

wants() { [[ " ${parts[*]} " == *" $1 "* ]]; }

# touch_line FILE: appends a random comment to the first line.
touch_line() { sed -i "1s|\$| // $RANDOM|" "$1"; }

# Measures the cost of an edit: changes one line, then compiles and links everything that depends on
# it, tests included. In the .proto file, the changed line is a comment.
measure_edits() {
  local name file
  cost "${revision}_all-targets" bash -c "$(in_hearth 'build_release')"
  # The header that all parts of the store include has another name in old revisions.
  for name in cache_store/store_impl.h cache_store/store/store_core.h worker/model/torch/gemma.cc \
    proto/cache_store.proto; do
    [[ -f $name ]] || continue
    file=$(basename "$name")
    [[ $name != cache_store/store* ]] || file=the-store
    touch_line "$name"
    cost "${revision}_after-a-line-in-$file" bash -c "$(in_hearth 'build_release')"
  done
  git checkout -q -- .
}

measure() {
  local revision=$1
  git clone -q "$REPO" "$WORK/$revision"
  cd "$WORK/$revision"
  git checkout -q --detach "$revision"
  cost "${revision}_set-up" bash -c "$(in_hearth 'setup_tools; setup_model')"
  cost "${revision}_build-of-the-demo" \
    bash -c "$(in_hearth 'build_release hearth-store hearth-worker hearthctl')"
  # Measures .ci/run after the demo: it builds and tests what the demo did not need.
  if wants ci; then
    cost "${revision}_rest-of-ci" bash .ci/run
    seconds[${revision}_ci]=$((seconds[${revision}_set-up] + \
      seconds[${revision}_build-of-the-demo] + seconds[${revision}_rest-of-ci]))
  fi
  ! wants edits || measure_edits
  cd "$REPO"
  rm -rf "${WORK:?}/$revision"
}

# Installs the Debian packages of all revisions.
install_packages_of_all() {
  local wanted revision
  wanted=$(for revision in "${revisions[@]}"; do
    git show "$revision:scripts/apt-packages.txt"
    git show "$revision:scripts/apt-packages-lint.txt" 2>/dev/null || true
  done | grep -v '^#' | sort -u)
  apt-get update -q
  # shellcheck disable=SC2086
  apt-get install -q -y --no-install-recommends $wanted chromium-headless-shell
}

((EUID != 0)) || install_packages_of_all >"$WORK/apt.log" 2>&1
for revision in "${revisions[@]}"; do
  measure "$revision"
done
((${#revisions[@]} == 2)) || exit 0
for key in set-up build-of-the-demo ci after-a-line-in-the-store after-a-line-in-gemma.cc \
  after-a-line-in-cache_store.proto; do
  before=${seconds[${revisions[0]}_$key]:-} after=${seconds[${revisions[1]}_$key]:-}
  [[ -n $before && -n $after ]] || continue
  printf '%-34s %6d s -> %6d s: %s\n' "$key" "$before" "$after" \
    "$(awk -v a="$after" -v b="$before" 'BEGIN { printf "%.2f x", a / b }')"
done
