#!/usr/bin/env bash
# Tests the Debian package: its programs run, it has their manual pages, and Depends names the
# packages of all libraries that they load.
#
# usage: deb_test.sh BIN INTO
set -euo pipefail
bin=$1 into=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
fail() { echo "deb_test: $*" >&2; exit 1; }
if ! command -v dpkg-deb >/dev/null; then
  echo "skipped, there is no dpkg-deb"
  exit 77
fi
rm -rf "$into"
"$here/../../scripts/deb.sh" "$bin" "$into"
packages=("$into"/hearth_*.deb)
if ((${#packages[@]} != 1)) || [[ ! -f ${packages[0]} ]]; then fail "found ${packages[*]}"; fi
package=${packages[0]}
root=$into/root
dpkg-deb -x "$package" "$root"
version=$(dpkg-deb -f "$package" Version)
for program in hearth-store hearthctl; do
  said=$("$root/usr/bin/$program" --version)
  [[ $said == *"$version"* ]] || fail "$program --version says $said, the package $version"
  # Not grep -q: grep could end before gzip has written everything; gzip's SIGPIPE would then fail
  # the pipeline.
  gzip -dc "$root/usr/share/man/man1/$program.1.gz" | grep '^\.TH ' >/dev/null ||
    fail "no page of $program"
done
bash -n "$root/usr/share/bash-completion/completions/hearthctl"
grep -q 'Apache License' "$root/usr/share/doc/hearth/copyright" || fail "no licence"

# For each library that a program needs, Depends must name a package that contains it.
depends=" $(dpkg-deb -f "$package" Depends | sed 's/([^)]*)//g; s/[,|]/ /g') "
loaded=$(for program in "$root"/usr/bin/*; do objdump -p "$program"; done |
  awk '$1 == "NEEDED" { print $2 }' | sort -u)
for library in librocksdb libgrpc++ libxxhash; do
  grep -qF "$library" <<<"$loaded" || fail "no program loads $library: what does this test compare?"
done
for library in $loaded; do
  case $library in
    libc.so.* | libm.so.* | libgcc_s.* | libstdc++.* | ld-linux*) continue ;;
  esac
  owner=$(dpkg-query -S "*/$library" 2>/dev/null | cut -d: -f1 | sort -u | head -1) || true
  [[ -n $owner ]] || fail "$library is of no package"
  names=$owner\ $(dpkg-query -W -f '${Provides}' "$owner" | sed 's/([^)]*)//g; s/,/ /g')
  found=
  for name in $names; do [[ $depends != *" $name "* ]] || found=$name; done
  [[ -n $found ]] || fail "$library is of $names, which Depends lacks: $depends"
done
owners=$(dpkg-deb -c "$package" | awk '{ print $2 }' | sort -u)
[[ $owners == root/root ]] || fail "files are of $owners"
echo "$package: $(du -h "$package" | cut -f1), Depends:$depends"
