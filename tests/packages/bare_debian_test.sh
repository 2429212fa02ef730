#!/usr/bin/env bash
# Installs the files of a release on a bare Debian 12, runs the demonstration and the Python package
# there, removes them, and checks that nothing is left.
#
# The bare Debian is made by debootstrap in a folder and entered by chroot. The programs run in a
# network of their own. Takes minutes and downloads 200 MB, so it needs HEARTH_PACKAGES=1.
#
# usage: bare_debian_test.sh MODEL INTO
set -euo pipefail
skip() { echo "skipped: $*"; exit 77; }
[[ ${HEARTH_PACKAGES:-} ]] || skip "set HEARTH_PACKAGES=1 to test the packages on a bare Debian 12"
((EUID == 0)) || skip "chroot needs root"
for program in debootstrap patchelf dpkg-shlibdeps ip; do
  command -v "$program" >/dev/null || skip "there is no $program (apt-get install debootstrap" \
    "patchelf dpkg-dev iproute2)"
done
if [[ ${1:-} != --in-namespaces ]]; then # ends all processes and mounts with this script
  exec unshare --mount --pid --fork --kill-child bash "$0" --in-namespaces "$@"
fi
model=$(realpath "$2") into=$(realpath -m "$3")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mkdir -p "$into"
root=$into/root base=$into/debian.tar
said() { echo "[$((SECONDS / 60))m$((SECONDS % 60))s] $*"; }

if [[ ! -f $base ]]; then # kept for the next run
  rm -rf --one-file-system "$root"
  debootstrap --variant=minbase bookworm "$root" http://deb.debian.org/debian >"$into.debootstrap.log"
  tar -C "$root" -cf "$base.part" .
  mv "$base.part" "$base"
  said "debootstrap"
fi
rm -rf --one-file-system "$root"
mkdir -p "$root"
tar -C "$root" -xf "$base"
scripts/release.sh "$root/pkg"
.venv/bin/python -m pip download --disable-pip-version-check --quiet --dest "$root/pkg/wheels" \
  --constraint scripts/constraints.txt "$root"/pkg/*.whl
cp -r scripts LICENSE "$root/pkg"
ln "$model" "$root/pkg/model.gguf" 2>/dev/null || cp "$model" "$root/pkg/model.gguf"
cp /etc/resolv.conf "$root/etc/"
said "release"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
mkdir -p "$into/archives/partial" # downloaded packages are kept for the next run
mount --bind "$into/archives" "$root/var/cache/apt/archives"

inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LC_ALL=C.UTF-8 \
  DEBIAN_FRONTEND=noninteractive bash -euo pipefail -c "$1"; }
files() { inside 'find / -xdev \( -path /pkg -o -path /tmp -o -path /proc -o -path /dev \
  -o -path "/var/cache/*" -o -path "/var/lib/apt/*" -o -path "/var/lib/dpkg/*" \
  -o -path "/var/log/*" \) -prune -o -print' | grep -i -e hearth -e libtorch || true; }

[[ -z $(files) ]] || { echo "FAILED: the bare Debian has $(files)"; exit 1; }
inside 'apt-get update -q
  apt-get install -q -y --no-install-recommends python3-venv systemd
  cd /pkg && apt install -q -y ./hearth*.deb' >"$into.apt.log" 2>&1 ||
  { tail -20 "$into.apt.log"; exit 1; }
said "installed $(du -ch "$root"/pkg/*.deb "$root"/pkg/*.whl | tail -1 | cut -f1) of packages"

awk '/^```/ { on = /ini$/; next } on' docs/deploy.md >"$root/pkg/hearth-store.service"
inside 'systemd-analyze verify --man=no /pkg/hearth-store.service'
said "the unit of docs/deploy.md is valid"

export -f inside
export root
# shellcheck disable=SC2016
# The programs see no network but their own loopback.
unshare --net bash -euo pipefail -c 'ip link set lo up; inside "$1"' _ '
  hearth-worker --version
  python3 -B /pkg/scripts/demo.py --bin-dir /usr/bin --model /pkg/model.gguf --out-dir /tmp \
    --min-speedup 2
  python3 -m venv /opt/venv
  /opt/venv/bin/pip install --quiet --no-index --find-links /pkg/wheels hearth-cache
  hearth-store --data-dir /tmp/data >/tmp/store.log 2>&1 &
  hearth-worker --model /pkg/model.gguf >/tmp/worker.log 2>&1 &
  hearthctl generate --wait 2m --max-new-tokens 4 --prompt-file /pkg/LICENSE --wait-published
  /opt/venv/bin/python -c "
from hearth_cache import Worker
with Worker(\"127.0.0.1:7070\") as worker:
    answer = worker.generate(open(\"/pkg/LICENSE\").read(), max_new_tokens=4)
    print(answer.cached_tokens, \"tokens restored\")
    assert answer.cached_tokens > 2000
"
  kill %1 %2
  wait'
said "ran the demonstration and the Python package"

inside 'apt-get purge -q -y hearth hearth-worker && rm -r /opt/venv' >>"$into.apt.log" 2>&1
[[ -z $(files) ]] || { echo "FAILED: apt-get purge leaves $(files)"; exit 1; }
said "ok: removed"
umount --recursive --lazy "$root/dev" "$root/proc" "$root/var/cache/apt/archives"
rm -rf --one-file-system "$root" # must never follow a mount into the machine's /dev
