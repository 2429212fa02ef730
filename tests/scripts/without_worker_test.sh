#!/usr/bin/env bash
# A first run compiles hearth-store and hearthctl before torch is installed, in a folder that is
# later configured with the worker. Their compile commands must be equal in both configurations;
# otherwise they would be compiled twice. Usage: without_worker_test.sh PYTHON (HEARTH_PYTHON).
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
FOLDER=$(mktemp -d)
trap 'rm -rf "$FOLDER"' EXIT

commands_with_worker() {
  cmake -S "$ROOT" -B "$FOLDER/build" -G Ninja -DHEARTH_PYTHON="$PYTHON" \
    -DHEARTH_WITH_WORKER="$1" >"$FOLDER/log" 2>&1 ||
    { cat "$FOLDER/log"; exit 1; }
  ninja -C "$FOLDER/build" -t commands hearth-store hearthctl >"$FOLDER/$1"
}

PYTHON=/nonexistent/python
commands_with_worker OFF
PYTHON=$1
commands_with_worker ON
diff "$FOLDER/OFF" "$FOLDER/ON" | cut -c1-300
echo "ok: $(wc -l <"$FOLDER/ON") commands are the same without the worker and with it"
