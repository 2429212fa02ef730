#!/usr/bin/env bash
# Makes Debian packages from the programs in BIN: INTO/hearth_VERSION_ARCHITECTURE.deb with the
# store and hearthctl; with TORCH, the folder of the Python package torch, also hearth-worker_...
# with the worker and libtorch, which is not a Debian package.
#
# usage: deb.sh BIN INTO [TORCH]
set -euo pipefail
(($# == 2 || $# == 3)) || { echo "usage: deb.sh BIN INTO [TORCH]" >&2; exit 2; }
bin=$(realpath "$1") into=$(realpath -m "$2") torch=${3:+$(realpath "$3")}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$("$bin/hearth-store" --version | head -1)
architecture=$(dpkg --print-architecture)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/debian"
printf 'Source: hearth\n\nPackage: hearth\nArchitecture: any\n' >"$work/debian/control"

# depends_of PROGRAM...: prints the packages of the libraries that the programs load: from
# dpkg-shlibdeps or, without dpkg-dev, from the list of the images.
depends_of() {
  local shown
  if command -v dpkg-shlibdeps >/dev/null; then
    shown=$(cd "$work" && dpkg-shlibdeps -O --ignore-missing-info "-l$private" "$@")
    echo "${shown#shlibs:Depends=}"
  else
    sed '/^#/d; /of the worker alone/d; /^ca-certificates/d; s/ *#.*//' \
      deploy/docker/runtime-packages.txt | paste -sd, | sed 's/,/, /g'
  fi
}

# package NAME SUMMARY DESCRIPTION PROGRAM...: packs the tree of NAME, which has the programs. Each
# line of DESCRIPTION begins with a space. $more: further lines of the control file.
package() {
  local name=$1 summary=$2 description=$3 program depends tree=$work/$1
  shift 3
  install -d "$tree/DEBIAN" "$tree/usr/share/man/man1" "$tree/usr/share/doc/$name"
  for program in "$@"; do
    if [[ $program == hearthctl ]]; then "$bin/$program" man; else "$bin/$program" --man; fi |
      gzip -9n >"$tree/usr/share/man/man1/$program.1.gz"
  done
  cat NOTICE LICENSE >"$tree/usr/share/doc/$name/copyright"
  chmod -R go=rX "$tree"
  depends=$(depends_of "${@/#/$tree/usr/bin/}")
  [[ $depends ]] || { echo "deb.sh: found no dependencies of $name" >&2; exit 1; }
  cat >"$tree/DEBIAN/control" <<TEXT
Package: $name
Version: $version
Architecture: $architecture
Maintainer: Hearth developers <hearth@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f1)
Depends: $depends$more
Section: database
Priority: optional
Description: $summary
$description
TEXT
  dpkg-deb --root-owner-group -Zgzip -z1 --build "$tree" \
    "$into/${name}_${version}_$architecture.deb"
}

mkdir -p "$into"
more=
tree=$work/hearth share=$work/hearth/usr/share private=$work
install -D -t "$tree/usr/bin" --strip -m 0755 "$bin/hearth-store" "$bin/hearthctl"
install -d "$share/bash-completion/completions" "$share/zsh/vendor-completions"
"$bin/hearthctl" completion bash >"$share/bash-completion/completions/hearthctl"
"$bin/hearthctl" completion zsh >"$share/zsh/vendor-completions/_hearthctl"
package hearth "cache node for the keys and values of prompt prefixes" \
  " hearth-store keeps the key-value state of language model prompts in RAM and
 on disk for the workers of a fleet. With it comes hearthctl, its command line." \
  hearth-store hearthctl
[[ $torch ]] || exit 0

more=$'\nRecommends: python3-jinja2'  # for chat templates
tree=$work/hearth-worker private=$work/hearth-worker/usr/lib/hearth/torch/lib
command -v patchelf >/dev/null ||
  { echo "deb.sh: hearth-worker's package needs patchelf: apt-get install patchelf" >&2; exit 1; }
deploy/docker/install.sh "$(dirname "$bin")" "$torch" "$work/worker" hearth-worker
install -d "$tree/usr/lib/hearth"
install -D -t "$tree/usr/bin" "$work/worker/bin/hearth-worker"
mv "$work/worker/lib/torch" "$tree/usr/lib/hearth/"
mv "$work/worker"/lib/*.so "$tree/usr/lib/hearth/"
# Replaces the folders of the build machine.
# shellcheck disable=SC2016
patchelf --set-rpath '$ORIGIN/../lib/hearth/torch/lib:$ORIGIN/../lib/hearth' \
  "$tree/usr/bin/hearth-worker"
package hearth-worker "serves Gemma 3, with prompt prefixes from a hearth-store" \
  " hearth-worker computes the key-value state of language model prompts on a CPU,
 or restores it from a hearth-store. It serves OpenAI's HTTP API and gRPC." hearth-worker
