#!/usr/bin/env bash
# Tests scripts/version.sh in a git tree with and without tags, and without git.
# Usage: bash tests/scripts/version_test.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
FOLDER=$(mktemp -d)
trap 'rm -rf "$FOLDER"' EXIT
mkdir "$FOLDER/scripts"
cp CMakeLists.txt "$FOLDER"
cp scripts/version.sh "$FOLDER/scripts"
cd "$FOLDER"
unset HEARTH_VERSION HEARTH_COMMIT
export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a \
  GIT_COMMITTER_EMAIL=a@b

# expect WHAT PATTERN: compares the printed version or commit with a regular expression.
expect() {
  local got
  got=$(scripts/version.sh "$1")
  [[ $got =~ ^$2$ ]] || { echo "FAILED: $1 is \"$got\", expected $2"; exit 1; }
}
commit() { git commit -q --allow-empty -m "$1"; }

number='[0-9]+\.[0-9]+\.[0-9]+'
expect version "$number"
expect commit unknown
HEARTH_VERSION=3.2.1 expect version '3\.2\.1'
HEARTH_COMMIT=abc expect commit abc

git init -q
git add .
commit one
expect version "$number"
expect commit '[0-9a-f]{12}'
git tag experiment
git tag v7.8.9
expect version '7\.8\.9'
commit two
expect version '7\.8\.9\+1\.g[0-9a-f]{12}'
expect commit '[0-9a-f]{12}'
echo >>CMakeLists.txt
expect commit '[0-9a-f]{12}-dirty'

mkdir inner # a source archive unpacked inside another git tree
cp -r CMakeLists.txt scripts inner
cd inner
expect version "$number"
expect commit unknown
echo "ok"
