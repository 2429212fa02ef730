#!/bin/bash
# install-downloader.sh PREFIX: installs hearth-model, which downloads models, as
# PREFIX/bin/hearth-model, and its Python packages in PREFIX/lib/python.
# REQUIRES: runs in the root of the source tree, which has .venv.
set -euo pipefail
prefix=$1

install -D -m 0755 scripts/hub_model.py "$prefix/bin/hearth-model"
.venv/bin/python -m pip install --disable-pip-version-check --quiet --no-compile \
  --constraint scripts/constraints.txt --requirement scripts/requirements-hub.txt \
  --target "$prefix/lib/python"
rm -rf "$prefix"/lib/python/hf_xet*  # files of the hub also come by HTTP, without its 11 MB
