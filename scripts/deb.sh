#!/usr/bin/env bash
# Makes INTO/hearth_VERSION_ARCHITECTURE.deb from the store and hearthctl in BIN, with their manual
# pages and completions. The worker is left out, because libtorch is not a Debian package.
#
# usage: deb.sh BIN INTO
set -euo pipefail
(($# == 2)) || { echo "usage: deb.sh BIN INTO" >&2; exit 2; }
bin=$(realpath "$1") into=$(realpath -m "$2")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
programs=(hearth-store hearthctl)
version=$(sed -n 's/.*kVersion\[\] = "\(.*\)";/\1/p' services/cli/version.h)
architecture=$(dpkg --print-architecture)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/tree share=$work/tree/usr/share
install -d "$tree/DEBIAN" "$share/man/man1" "$share/doc/hearth"
for program in "${programs[@]}"; do
  install -D --strip -m 0755 "$bin/$program" "$tree/usr/bin/$program"
done
"$bin/hearth-store" --man | gzip -9n >"$share/man/man1/hearth-store.1.gz"
"$bin/hearthctl" man | gzip -9n >"$share/man/man1/hearthctl.1.gz"
install -d "$share/bash-completion/completions" "$share/zsh/vendor-completions"
"$bin/hearthctl" completion bash >"$share/bash-completion/completions/hearthctl"
"$bin/hearthctl" completion zsh >"$share/zsh/vendor-completions/_hearthctl"
cat NOTICE LICENSE >"$share/doc/hearth/copyright"

# The packages of the libraries that the programs load: from dpkg-shlibdeps or, without dpkg-dev,
# from the list of the images.
if command -v dpkg-shlibdeps >/dev/null; then
  mkdir "$work/debian"
  printf 'Source: hearth\n\nPackage: hearth\nArchitecture: any\n' >"$work/debian/control"
  depends=$(cd "$work" && dpkg-shlibdeps -O "${programs[@]/#/$tree/usr/bin/}")
  depends=${depends#shlibs:Depends=}
else
  depends=$(sed '/^#/d; /of the worker alone/d; /^ca-certificates/d; s/ *#.*//' \
    deploy/docker/runtime-packages.txt | paste -sd, | sed 's/,/, /g')
fi
cat >"$tree/DEBIAN/control" <<TEXT
Package: hearth
Version: $version
Architecture: $architecture
Maintainer: Hearth developers <hearth@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$tree" | cut -f1)
Depends: $depends
Section: database
Priority: optional
Description: cache node for the keys and values of prompt prefixes
 hearth-store keeps the key-value state of language model prompts in RAM and
 on disk for the workers of a fleet. With it comes hearthctl, its command line.
TEXT
mkdir -p "$into"
chmod -R go=rX "$tree"
dpkg-deb --root-owner-group -Zgzip --build "$tree" "$into/hearth_${version}_$architecture.deb"
