# shellcheck shell=bash
# Shared by all commands of ./hearth: pieces of work that run in parallel (work.sh), their display
# (progress.sh), the plan that is printed before them (plan.sh), and stamps, which skip a step that
# is already done.
#
# A stamp is a file with the digest of everything that a step depends on. A step is done if its
# stamp holds the current digest. The stamp is removed before the step begins and written after the
# step has succeeded, so an interrupted step runs again.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
LOG_DIR=$ROOT/build/log
LOG_TAIL_LINES=40

say() { printf '%s\n' "$*"; }

die() {
  printf 'hearth: %s\n' "$*" >&2
  exit 1
}

# digest FILE... [-- WORD...]: prints one hash of the files' content and of the words.
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

# stamped STAMP DIGEST COMMAND...: runs the command; writes the stamp if it succeeds.
stamped() {
  local stamp=$1 want=$2
  shift 2
  rm -f "$stamp"
  "$@"
  write_stamp "$stamp" "$want"
}

# step NAME TEXT COMMAND...: runs one piece of work and waits for it.
step() {
  local name=$1 text=$2
  shift 2
  piece "$name" "$text" 0 '' "$@"
  run_work
}

# shellcheck source=scripts/progress.sh
. "$ROOT/scripts/progress.sh"
# shellcheck source=scripts/work.sh
. "$ROOT/scripts/work.sh"
# shellcheck source=scripts/plan.sh
. "$ROOT/scripts/plan.sh"
