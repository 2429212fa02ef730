# shellcheck shell=bash
# The display of pieces of work. On a terminal: one line, redrawn, with the elapsed and the expected
# time. Otherwise: a line for each finished piece, and a line every HEARTBEAT_S seconds, to show
# that a long piece does not hang. Sourced by lib.sh.
#
# The expected time: Each piece has a weight, its share in seconds of a run on the measured machine
# (two cores, empty caches). The credit of a finished piece is its weight. The credit of a running
# compilation is the share that ninja prints ([52/163]), and of any other running piece the elapsed
# time. The pace of this machine is elapsed time / credit; the remaining weight is assumed to take
# that pace. At the beginning the credit is small, and ninja's first steps are its shortest, so the
# pace is held near 1, as if a tenth of all work had already been done at pace 1 (prior_ms).

declare -gA PIECE_WEIGHT_MS PIECE_CREDIT_MS PIECE_COUNT
PRIOR_MS_MIN=30000
# The highest credit of an unfinished piece without a count, in percent of its weight.
CREDIT_PERCENT_MAX=95
HEARTBEAT_S=15

# weigh_piece NAME SECONDS: sets the piece's weight.
weigh_piece() {
  PIECE_WEIGHT_MS["$1"]=$(($2 * 1000))
  PIECE_CREDIT_MS["$1"]=0
  PIECE_COUNT["$1"]=
}

# Sets WEIGHT_MS to the sum of the weights of all pieces.
sum_weights() {
  local name
  WEIGHT_MS=0
  for name in "${PIECES[@]}"; do
    WEIGHT_MS=$((WEIGHT_MS + ${PIECE_WEIGHT_MS[$name]}))
  done
}

begin_progress() {
  sum_weights
  read_clock
  WORK_BEGAN_MS=$NOW_MS
  MEASURED_MS=$NOW_MS
  NEXT_HEARTBEAT_MS=$((NOW_MS + HEARTBEAT_S * 1000))
  SHOWN_S=-1
  SHOWN_WIDTH=0
}

# read_count NAME: sets the piece's count to "n of m" from ninja's last "[n/m]", and its credit.
# Does nothing for a piece that is not a compilation.
read_count() {
  local text pattern='.*\[([0-9]+)/([0-9]+)\]'
  [[ $1 == build-* ]] || return 0
  text=$(tail -c 4000 "$LOG_DIR/$1.log" 2>/dev/null | tr -d '\0') || return 0
  [[ $text =~ $pattern ]] || return 0
  PIECE_COUNT[$1]="${BASH_REMATCH[1]} of ${BASH_REMATCH[2]}"
  PIECE_CREDIT_MS[$1]=$((PIECE_WEIGHT_MS[$1] * BASH_REMATCH[1] / BASH_REMATCH[2]))
}

# Updates the credit of running pieces, and sets ELAPSED_MS and EXPECTED_MS.
measure_progress() {
  local name running=0 credited=0 passed most
  for name in "${PIECES[@]}"; do
    credited=$((credited + PIECE_CREDIT_MS[$name]))
    [[ ${PIECE_STATE[$name]} != running ]] || running=$((running + 1))
  done
  read_clock
  ELAPSED_MS=$((NOW_MS - WORK_BEGAN_MS))
  local prior_ms=$((WEIGHT_MS / 10 > PRIOR_MS_MIN ? WEIGHT_MS / 10 : PRIOR_MS_MIN))
  local pace=$(((ELAPSED_MS + prior_ms) * 1000 / (credited + prior_ms)))
  passed=$((NOW_MS - MEASURED_MS))
  MEASURED_MS=$NOW_MS
  for name in "${PIECES[@]}"; do
    [[ ${PIECE_STATE[$name]} == running ]] || continue
    read_count "$name"
    [[ -z ${PIECE_COUNT[$name]} ]] || continue
    most=$((PIECE_WEIGHT_MS[$name] * CREDIT_PERCENT_MAX / 100))
    # Divides by the number of running pieces, because they share the processors.
    PIECE_CREDIT_MS[$name]=$((PIECE_CREDIT_MS[$name] + passed * 1000 / pace / running))
    ((PIECE_CREDIT_MS[$name] <= most)) || PIECE_CREDIT_MS[$name]=$most
  done
  EXPECTED_MS=0
  ((WEIGHT_MS == 0)) || EXPECTED_MS=$((ELAPSED_MS + (WEIGHT_MS - credited) * pace / 1000))
}

# Sets RUNNING_TEXTS to the running pieces, compilations first: "compile, 52 of 163; PyTorch".
running_texts() {
  local name counted='' others=''
  for name in "${PIECES[@]}"; do
    [[ ${PIECE_STATE[$name]} == running ]] || continue
    if [[ -n ${PIECE_COUNT[$name]} ]]; then
      counted+="; ${PIECE_TEXT[$name]}, ${PIECE_COUNT[$name]}"
    else
      others+="; ${PIECE_TEXT[$name]}"
    fi
  done
  RUNNING_TEXTS=$counted$others
  RUNNING_TEXTS=${RUNNING_TEXTS#; }
}

# minutes NAME MS: sets NAME to "1:24".
minutes() { printf -v "$1" '%d:%02d' $(($2 / 60000)) $(($2 / 1000 % 60)); }

# Updates the display at most once a second, because it reads the log of each running compilation.
show_progress() {
  read_clock
  local second=$(((NOW_MS - WORK_BEGAN_MS) / 1000))
  ((second != SHOWN_S)) || return 0
  SHOWN_S=$second
  measure_progress
  if [[ -t 1 ]]; then
    running_texts
    [[ -z $RUNNING_TEXTS ]] || draw_line
  elif ((NOW_MS >= NEXT_HEARTBEAT_MS)); then
    NEXT_HEARTBEAT_MS=$((NOW_MS + HEARTBEAT_S * 1000))
    running_texts
    [[ -z $RUNNING_TEXTS ]] || print_heartbeat
  fi
}

# Sets EXPECTED_TEXT to " of about 5:40 min", rounded up to ten seconds; empty if it is unknown.
expected_text() {
  local text
  EXPECTED_TEXT=
  ((EXPECTED_MS > 0)) || return 0
  minutes text $(((EXPECTED_MS / 10000 + 1) * 10000))
  EXPECTED_TEXT=" of about $text min"
}

draw_line() {
  local elapsed line width=0
  # Reads the window's width each time, because the window may be resized.
  { read -r _ width < <(stty size <&7 2>/dev/null) || true; } 7>&1
  ((width > 1)) || width=80
  width=$((width - 1))
  minutes elapsed "$ELAPSED_MS"
  expected_text
  line="  $elapsed$EXPECTED_TEXT  $RUNNING_TEXTS"
  # Pads the line to erase a longer line before it. Cuts it to the width, because \r cannot return
  # over a line break.
  printf '\r%-*s' "$width" "${line:0:width}"
  SHOWN_WIDTH=$width
}

clear_progress() {
  [[ -t 1 ]] && ((${SHOWN_WIDTH:-0})) || return 0
  printf '\r%*s\r' "$SHOWN_WIDTH" ''
  SHOWN_WIDTH=0
}

print_heartbeat() {
  local seconds=$((ELAPSED_MS / 1000))
  if ((${#PIECES[@]} == 1)); then
    printf '  ... %s: %d s%s\n' "${PIECE_TEXT[${PIECES[0]}]}" "$seconds" \
      "$(last_progress "$LOG_DIR/${PIECES[0]}.log")"
  else
    printf '  ... %d s of about %d s: %s\n' "$seconds" $(((EXPECTED_MS / 10000 + 1) * 10)) \
      "$RUNNING_TEXTS"
  fi
}

# last_progress LOG: prints the start of a log's last line in brackets, at most 60 characters.
last_progress() {
  local line
  line=$(tail -n 1 "$1" 2>/dev/null | tr '\r' '\n' | tail -n 1 | cut -c1-60)
  [[ -z $line ]] || printf ' (%s)' "$line"
}

# show_finished NAME: prints the time of a finished piece; on a terminal only if it is the only one.
show_finished() {
  PIECE_CREDIT_MS[$1]=${PIECE_WEIGHT_MS[$1]}
  if [[ -t 1 ]] && ((${#PIECES[@]} > 1)); then
    return
  fi
  clear_progress
  printf '  %-58s %4d s\n' "${PIECE_TEXT[$1]}" "$(seconds_of "$1")"
}

end_progress() {
  clear_progress
  ((${#PIECES[@]} > 1)) || return 0
  read_clock
  printf '  %-58s %4d s\n' "together" $(((NOW_MS - WORK_BEGAN_MS + 500) / 1000))
}
