#!/usr/bin/env bash
# Makes the files of a release in INTO from the programs in build/bin: Debian packages, the Python
# wheel and SHA256SUMS. INTO must be absent, empty, or an earlier release, which is removed. Needs
# ./hearth build, and patchelf and dpkg-dev from Debian.
#
# usage: release.sh INTO
set -euo pipefail
(($# == 1)) || { echo "usage: release.sh INTO" >&2; exit 2; }
into=$(realpath -m "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ ! -e $into || -f $into/SHA256SUMS || (-d $into && -z $(ls -A "$into")) ]] ||
  { echo "release.sh: $into is not an earlier release; remove it or name another" >&2; exit 1; }
built=$(build/bin/hearth-store --version | head -1) wanted=$(scripts/version.sh version)
[[ $built == "$wanted" ]] ||
  { echo "release.sh: build/bin has $built, must have $wanted: run ./hearth build" >&2; exit 1; }
rm -rf "$into"
scripts/deb.sh build/bin "$into" "$(echo .venv/lib/*/site-packages/torch)"
.venv/bin/python -m pip wheel --disable-pip-version-check --quiet --no-deps --wheel-dir "$into" \
  ./python
(cd "$into" && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
