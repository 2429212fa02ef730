#!/bin/bash
# apt-install.sh FILE...: installs the Debian packages that the files list (one a line, with
# comments after #), and removes the downloaded packages and package lists.
set -euo pipefail
mapfile -t packages < <(sed -e 's/#.*//' -e 's/[[:space:]]//g' "$@" | grep -v '^$')
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install --yes --no-install-recommends "${packages[@]}"
apt-get clean
rm -rf /var/lib/apt/lists/*
