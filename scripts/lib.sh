# shellcheck shell=bash
# What every step of ./hearth shares: one line a step with its elapsed time, full output in a log
# file, the tail of that log on failure, and stamps that make a finished step free the next time.
#
# A stamp is a file that holds the digest of everything a step depends on. A step is done when its
# stamp holds today's digest; it is written only after the step has succeeded, so an interrupted
# step runs again.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
LOG_DIR=$ROOT/build/log
LOG_TAIL_LINES=40
HEARTBEAT_S=15

say() { printf '%s\n' "$*"; }

die() {
  printf 'hearth: %s\n' "$*" >&2
  exit 1
}

# digest FILE... [-- WORD...]: one hash of the files' bytes and of the words.
digest() {
  local files=()
  while (($#)); do
    if [[ $1 == -- ]]; then
      shift
      break
    fi
    files+=("$1")
    shift
  done
  { ((${#files[@]} == 0)) || cat "${files[@]}"; printf '%s\n' "$@"; } | sha256sum | cut -d' ' -f1
}

stamp_holds() { [[ -f $1 && $(<"$1") == "$2" ]]; }

write_stamp() {
  mkdir -p "$(dirname "$1")"
  printf '%s\n' "$2" >"$1.tmp.$$"
  mv "$1.tmp.$$" "$1"
}

# step NAME TEXT COMMAND...: runs COMMAND with its output in build/log/NAME.log and prints one
# line. On a terminal the line shows the elapsed time as it grows; elsewhere a line appears every
# HEARTBEAT_S seconds, so that nobody takes a long step for a hung one.
step() {
  local text=$2 start=$SECONDS status=0 log=$LOG_DIR/$1.log
  shift 2
  mkdir -p "$LOG_DIR"
  # Its own process group, so that an interrupt can end the whole of it, children included.
  set -m
  ("$@") >"$log" 2>&1 </dev/null &
  set +m
  local job=$! next=$HEARTBEAT_S
  STEP_PID=$job
  while kill -0 "$job" 2>/dev/null; do
    local elapsed=$((SECONDS - start))
    if [[ -t 1 ]]; then
      printf '\r  %-58s %4d s' "$text" "$elapsed"
    elif ((elapsed >= next)); then
      printf '  ... %s: %d s%s\n' "$text" "$elapsed" "$(last_progress "$log")"
      next=$((elapsed + HEARTBEAT_S))
    fi
    sleep 0.2
  done
  wait "$job" || status=$?
  STEP_PID=
  [[ -t 1 ]] && printf '\r'
  if ((status != 0)); then
    printf '  %-58s FAILED after %d s\n' "$text" $((SECONDS - start))
    tail -n "$LOG_TAIL_LINES" "$log" | sed 's/^/    | /'
    die "$text failed; the whole output is in ${log#"$ROOT"/}"
  fi
  printf '  %-58s %4d s\n' "$text" $((SECONDS - start))
}

# The last thing a long step said of itself, when that is short enough to show.
last_progress() {
  local line
  line=$(tail -n 1 "$1" 2>/dev/null | tr '\r' '\n' | tail -n 1 | cut -c1-60)
  [[ -z $line ]] || printf ' (%s)' "$line"
}

end_step_on_exit() {
  [[ -z ${STEP_PID:-} ]] || kill -- "-$STEP_PID" 2>/dev/null || true
}
