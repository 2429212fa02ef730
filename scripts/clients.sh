#!/usr/bin/env bash
# Installs the clients that docs/clients.md names into .clients, each in an environment of its own,
# from PyPI as they are: `ctest -L clients` then runs them.
#
#   scripts/clients.sh [NAME...]     default: all but open_webui; 2 GB, and open_webui 2.4 GB more
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

declare -A packages=(
  [openai]="openai==3.54.*"
  [langchain]="langchain-openai==1.7.*"
  [llamaindex]="llama-index-llms-openai-like==0.8.*"
  [litellm]="litellm==1.109.*"
  [lm_eval]="lm-eval[api]==0.4.13"
  [aiperf]="aiperf==0.13.*"
  [open_webui]="open-webui==0.12.*"
)
names=("$@")
(($#)) || names=(openai langchain llamaindex litellm lm_eval aiperf)
for name in "${names[@]}"; do
  [[ -n ${packages[$name]:-} ]] || { echo "there is no client $name: ${!packages[*]}" >&2; exit 2; }
  [[ -f .clients/$name/installed ]] && continue
  rm -rf ".clients/$name"
  /usr/bin/python3 -m venv ".clients/$name"
  ".clients/$name/bin/pip" install --quiet --upgrade pip
  # Before it asks for torch: PyPI's own is for GPUs, and brings 3 GB along.
  [[ $name != open_webui ]] || ".clients/$name/bin/pip" install --quiet -r scripts/torch-cpu.txt ||
    ".clients/$name/bin/pip" install --quiet -r scripts/torch-cpu.txt \
      --extra-index-url https://download.pytorch.org/whl/cpu
  ".clients/$name/bin/pip" install --quiet "${packages[$name]}"
  touch ".clients/$name/installed"
  echo "$name: ${packages[$name]}"
done
