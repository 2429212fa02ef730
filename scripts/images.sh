#!/usr/bin/env bash
# Builds the container images of the store, of the CPU worker and of hearthctl around the programs
# in build/bin, and tests them. Needs a container engine with Compose v2, and ./hearth build and
# ./hearth setup.
#
#   scripts/images.sh build    makes hearth-store:dev, hearth-worker:dev and hearthctl:dev, and
#                              their bills of materials, build/images/NAME.cdx.json
#   scripts/images.sh test     makes the images, starts docker-compose.yml and the containers of the
#                              Kubernetes manifests, and checks them
#
# The images differ from images of `docker compose build` only in their programs, which are not
# compiled again: each Dockerfile's final stage is used as it is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[[ $# == 1 && $1 =~ ^(build|test)$ ]] || { sed -n '2,12s/^# \?//p' "$0" >&2; exit 2; }
docker version --format '{{.Server.Version}}' >/dev/null 2>&1 ||
  { echo "images.sh: no container engine answers; see \`docker version\`" >&2; exit 77; }
docker compose version >/dev/null 2>&1 ||
  { echo "images.sh: needs Compose v2; see \`docker compose version\`" >&2; exit 77; }

{ read -r version && read -r _ commit; } < <(build/bin/hearthctl --version)

# image NAME TORCH PROGRAM...: builds deploy/docker/NAME.Dockerfile around these programs.
image() {
  local name=$1 torch=$2 context=build/images/$1 tag
  tag=$(sed -n 's/^#.* -t \(.*\) \.$/\1/p' "deploy/docker/$name.Dockerfile")
  rm -rf "$context"
  mkdir -p "$context"
  mkdir -p "$context/deploy"
  cp -r deploy/docker "$context/deploy/"
  cp LICENSE NOTICE "$context/"
  deploy/docker/install.sh build "$torch" "$context/out" "${@:3}"
  [[ -z $torch ]] || deploy/docker/install-downloader.sh "$context/out"
  { # the first stage is replaced by the installed programs
    printf 'FROM scratch AS build\nCOPY out /out\n'
    awk '/^FROM/ { stage++ } stage == 2' "deploy/docker/$name.Dockerfile"
  } >"$context/Dockerfile"
  docker build --quiet --tag "$tag" --build-arg "VERSION=$version" \
    --build-arg "REVISION=$commit" "$context" >/dev/null
  .venv/bin/python -B scripts/sbom.py "$tag" "build/images/$name.cdx.json"
  echo "$tag: $(docker image inspect --format '{{.Size}}' "$tag" |
    awk '{ printf "%.0f MB", $1 / 1e6 }')"
}

.venv/bin/python -m pip install --disable-pip-version-check --quiet \
  --constraint scripts/constraints.txt --requirement scripts/requirements-sbom.txt
image store "" hearth-store hearthctl
image worker "$(echo .venv/lib/*/site-packages/torch)" hearth-worker hearthctl
image hearthctl "" hearthctl
[[ $1 == build ]] || {
  .venv/bin/python -B tests/images/images_test.py -v
  .venv/bin/python -B tests/images/manifests_test.py -v
}
