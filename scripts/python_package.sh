#!/usr/bin/env bash
# Builds the Python package and installs it into INTO, for tests, if python/ or proto/ has changed.
# pip downloads the build's packages from PyPI (12 MB the first time). If it cannot, the exit code
# is 77, which ctest shows as skipped.
#
# usage: python_package.sh PYTHON INTO
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$1 into=$2
mkdir -p "$into"
exec 9>"$into.lock"
flock 9
want=$(find python proto -type f -not -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum |
  sha256sum)
[[ ! -f $into/stamp || $(<"$into/stamp") != "$want" ]] || exit 0
if ! "$python" -c 'import google.rpc.status_pb2, grpc, xxhash' 2>/dev/null; then
  echo "skipped, the packages of scripts/requirements-test.txt are not installed"
  exit 77
fi
rm -rf "$into"
pip=("$python" -m pip --disable-pip-version-check --quiet)
if ! "${pip[@]}" download --no-deps --dest "$into" hatchling 'grpcio-tools==1.71.*'; then
  echo "skipped, pip cannot download hatchling and grpcio-tools"
  exit 77
fi
rm -rf "$into"
"${pip[@]}" install --no-deps --no-compile --target "$into" ./python
echo "$want" >"$into/stamp"
