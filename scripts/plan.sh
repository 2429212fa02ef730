# shellcheck shell=bash
# The plan of a command: the downloads and compilations that it needs, printed before they begin.
# Sourced by lib.sh. plan_PART in setup.sh and build.sh adds to the plan.

declare -ga PLAN_LINES=()
PLAN_FETCH_MB=0
PLAN_DISK_MB=0

# plan_fetch WHAT TEXT FETCH_MB DISK_MB
plan_fetch() {
  plan_line "$1" "$2" "$4"
  PLAN_FETCH_MB=$((PLAN_FETCH_MB + $3))
}

# plan_line WHAT TEXT DISK_MB
plan_line() {
  local line
  printf -v line '    %-18s %s' "$1" "$2"
  PLAN_LINES+=("$line")
  PLAN_DISK_MB=$((PLAN_DISK_MB + $3))
}

# run_plan: prints the plan, unless it is an ordinary build, and runs it.
run_plan() {
  ((${#PIECES[@]})) || return 0
  check_disk
  ((${#PLAN_LINES[@]} == 0)) || announce_plan
  ask_for_root
  run_work
  PLAN_LINES=() PLAN_FETCH_MB=0 PLAN_DISK_MB=0
}

check_disk() {
  local free_kb
  free_kb=$(df -Pk "$ROOT" | awk 'NR == 2 { print $4 }')
  ((free_kb / 1000 >= PLAN_DISK_MB)) ||
    die "disk: $PLAN_DISK_MB MB must be free in $ROOT; got $((free_kb / 1000)) MB"
}

announce_plan() {
  local took
  sum_weights
  if ((WEIGHT_MS < 90000)); then
    took="a minute"
  else
    took="$(((WEIGHT_MS + 30000) / 60000)) minutes"
  fi
  say "Installed and compiled once, before the start:"
  printf '%s\n' "${PLAN_LINES[@]}"
  say "  Total: $PLAN_FETCH_MB MB to download, $(gigabytes "$PLAN_DISK_MB") GB of disk," \
    "and about $took on these $(nproc) processors."
}

# gigabytes MB: prints GB, rounded up to a tenth.
gigabytes() { echo "$((($1 + 99) / 1000)).$((($1 + 99) / 100 % 10))"; }
