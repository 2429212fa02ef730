# shellcheck shell=bash
# Pieces of work that run in parallel. Sourced by lib.sh.
#
# `piece` adds a piece, `run_work` runs all added pieces. A piece starts when the pieces in its
# AFTER are done. It runs in its own process group, with its full output in build/log/NAME.log. If a
# piece fails, the others are ended, the tail of its log is shown, and the shell exits.

# PIECES: the names in the order of `piece` calls. The other arrays: {name: property}.
PIECES=()
declare -gA PIECE_TEXT PIECE_AFTER PIECE_COMMAND PIECE_STATE PIECE_PID PIECE_BEGAN_MS
POLL_S=0.2
# Polls to wait after INT and after TERM, so that a piece can clean up before KILL.
END_POLLS=25

# Sets NOW_MS to the current time, without starting a process.
read_clock() {
  local microseconds=${EPOCHREALTIME/[^0-9]/}
  NOW_MS=$((microseconds / 1000))
}

# piece NAME TEXT SECONDS AFTER COMMAND...: adds a piece. SECONDS is its time on the machine that
# scripts/progress.sh describes. AFTER names pieces, separated by spaces; a piece that was not added
# counts as done. COMMAND runs in a subshell of this shell with set -e.
piece() {
  local name=$1
  PIECES+=("$name")
  PIECE_TEXT[$name]=$2 PIECE_AFTER[$name]=$4 PIECE_STATE[$name]=waiting
  weigh_piece "$name" "$3"
  shift 4
  PIECE_COMMAND[$name]=$(printf '%q ' "$@")
}

has_piece() { [[ -n ${PIECE_STATE[$1]:-} ]]; }

run_work() {
  ((${#PIECES[@]})) || return 0
  mkdir -p "$LOG_DIR"
  begin_progress
  # A plain command: inside a condition, bash would ignore `set -e`, also in the subshells of the
  # pieces.
  begin_ready_pieces
  while ((UNFINISHED)); do
    sleep "$POLL_S"
    reap_pieces
    show_progress
    begin_ready_pieces
  done
  end_progress
  forget_work
}

forget_work() {
  PIECES=()
  PIECE_STATE=() PIECE_PID=()
}

# Starts all pieces that can start, and sets UNFINISHED to the number of unfinished pieces.
begin_ready_pieces() {
  local name before
  UNFINISHED=0
  for name in "${PIECES[@]}"; do
    [[ ${PIECE_STATE[$name]} != finished ]] || continue
    UNFINISHED=$((UNFINISHED + 1))
    [[ ${PIECE_STATE[$name]} == waiting ]] || continue
    for before in ${PIECE_AFTER[$name]}; do
      [[ ${PIECE_STATE[$before]:-finished} == finished ]] || continue 2
    done
    begin_piece "$name"
  done
}

begin_piece() {
  local name=$1 log=$LOG_DIR/$1.log
  : >"$log"
  # set -m gives the piece its own process group, so that signals reach its children too. The trap
  # ends the subshell on INT: otherwise bash would run the next command if a command handles INT and
  # exits normally.
  set -m
  (
    set -euo pipefail
    trap 'exit 130' INT
    trap 'exit 143' TERM
    eval "${PIECE_COMMAND[$name]}"
  ) >"$log" 2>&1 </dev/null &
  set +m
  PIECE_PID[$name]=$!
  PIECE_STATE[$name]=running
  read_clock
  PIECE_BEGAN_MS[$name]=$NOW_MS
}

reap_pieces() {
  local name status
  for name in "${PIECES[@]}"; do
    [[ ${PIECE_STATE[$name]} == running ]] || continue
    ! kill -0 "${PIECE_PID[$name]}" 2>/dev/null || continue
    status=0
    wait "${PIECE_PID[$name]}" || status=$?
    ((status == 0)) || fail_piece "$name"
    PIECE_STATE[$name]=finished
    show_finished "$name"
  done
}

fail_piece() {
  local name=$1 log=$LOG_DIR/$1.log seconds
  seconds=$(seconds_of "$name")
  end_work
  clear_progress
  printf '  %-58s FAILED after %d s\n' "${PIECE_TEXT[$name]}" "$seconds"
  tail -n "$LOG_TAIL_LINES" "$log" | sed 's/^/    | /'
  die "${PIECE_TEXT[$name]} failed; the full output is in ${log#"$ROOT"/}"
}

# seconds_of NAME: prints how long the piece has run.
seconds_of() {
  read_clock
  echo $(((NOW_MS - ${PIECE_BEGAN_MS[$1]} + 500) / 1000))
}

# --- the end -----------------------------------------------------------------------------------

signal_work() {
  local name status=1
  for name in "${PIECES[@]}"; do
    [[ ${PIECE_STATE[$name]} == running ]] || continue
    ! kill "-$1" -- "-${PIECE_PID[$name]}" 2>/dev/null || status=0
  done
  return "$status"
}

# Ends the running pieces and waits until they are gone. SIGINT comes first, because pip, ninja and
# fetch_model.py then remove unfinished files, which SIGKILL would leave behind.
end_work() {
  local signal poll
  for signal in INT TERM KILL; do
    signal_work "$signal" || return 0
    for ((poll = 0; poll < END_POLLS; ++poll)); do
      signal_work 0 || return 0
      sleep "$POLL_S"
    done
  done
}

end_work_on_exit() {
  trap '' INT TERM
  ((${#PIECES[@]})) || return 0
  clear_progress
  end_work
}
