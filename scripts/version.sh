#!/usr/bin/env bash
# Prints the version or the commit of this source tree.
#
#   scripts/version.sh version   the newest tag vX.Y.Z: 1.2.0; 3 commits after it
#                                1.2.0+3.g1a2b3c4d5e6f; without a tag: the version in CMakeLists.txt
#   scripts/version.sh commit    1a2b3c4d5e6f; with uncommitted changes 1a2b3c4d5e6f-dirty; unknown
#
# HEARTH_VERSION and HEARTH_COMMIT take precedence, for trees without git, such as the build context
# of an image.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# described OPTION...: runs `git describe`; fails if this folder is not the root of a git tree.
described() { [[ -e .git ]] && git describe --abbrev=12 "$@" 2>/dev/null; }

case ${1:-} in
  version)
    if [[ ${HEARTH_VERSION:-} ]]; then
      echo "$HEARTH_VERSION"
    elif tag=$(described --tags --match 'v[0-9]*'); then
      sed -E 's/^v//; s/-([0-9]+)-(g[0-9a-f]+)$/+\1.\2/' <<<"$tag"
    else
      sed -n 's/^project(hearth VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt
    fi
    ;;
  commit)
    echo "${HEARTH_COMMIT:-$(described --always --dirty --exclude '*' || echo unknown)}"
    ;;
  *)
    echo "usage: version.sh version|commit" >&2
    exit 2
    ;;
esac
