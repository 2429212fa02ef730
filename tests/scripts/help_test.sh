#!/usr/bin/env bash
# Tests that each command of ./hearth has --help without side effects.
# Usage: bash tests/scripts/help_test.sh
set -euo pipefail
ROOT_OF_TEST=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
FOLDER=$(mktemp -d)
trap 'rm -rf "$FOLDER"' EXIT
# Runs in a copy of the tree, with few programs on PATH: a command that does more than print help
# fails.
cp -r "$ROOT_OF_TEST/hearth" "$ROOT_OF_TEST/scripts" "$FOLDER"
mkdir "$FOLDER/bin"
for program in bash cat dirname flock mkdir; do
  ln -s "$(command -v "$program")" "$FOLDER/bin/"
done
before=$(cd "$FOLDER" && find . | sort)

fail() { printf 'FAILED: %s\noutput:\n%s\n' "$1" "${OUTPUT:-}" && exit 1; }

# hearth WORD...: runs ./hearth and stores its output in OUTPUT.
hearth() { OUTPUT=$(PATH=$FOLDER/bin "$FOLDER/hearth" "$@" 2>&1); }

hearth help || fail "help"
usage=$OUTPUT
# Reads the name and the options of each command in the list.
mapfile -t commands < <(sed -n 's/^  \([a-z]\+\)\b.*/\1/p' <<<"$usage")
((${#commands[@]} >= 6)) || fail "the list of commands is short"

for name in "${commands[@]}"; do
  [[ $name != help ]] || continue
  # Reads the command's lines in the list, up to the next command.
  options=$(sed -n "/^  $name\b/,/^  [a-z]/{/^  $name\b/p;/^  [a-z]/!p}" <<<"$usage" |
    grep -oE -- '--[a-z]+' | sort -u || true)
  for words in "$name --help" "$name -h" "help $name"; do
    read -ra words <<<"$words"
    hearth "${words[@]}" || fail "${words[*]} fails"
    [[ $OUTPUT == "usage: ./hearth $name"* ]] || fail "${words[*]} does not say how to use it"
    for option in $options; do
      [[ $OUTPUT == *"$option"* ]] || fail "${words[*]} does not say what $option is"
    done
  done
  echo "ok: $name"
done

! hearth gone --help || fail "an unknown command has help"
[[ $OUTPUT == *"no command gone"* ]] || fail "the message does not name the unknown command"
[[ $(cd "$FOLDER" && find . | sort) == "$before" ]] || fail "help made files"
echo "ok: help makes no file"

for name in build clean setup test; do
  ! hearth "$name" --gone || fail "$name accepts an unknown option"
  [[ $OUTPUT == *"unknown option --gone"* ]] || fail "$name does not name the unknown option"
done
echo "ok: unknown options are refused"
