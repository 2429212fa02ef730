#!/usr/bin/env bash
# Installs the clients that docs/clients.md names into .clients, each in an environment of its own,
# from PyPI as they are: some 2 GB. `ctest -L clients` then runs them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

declare -A packages=(
  [openai]="openai==3.54.*"
  [langchain]="langchain-openai==1.7.*"
  [llamaindex]="llama-index-llms-openai-like==0.8.*"
  [litellm]="litellm==1.109.*"
  [lm_eval]="lm-eval[api]==0.4.13"
  [aiperf]="aiperf==0.13.*"
)
for name in "${!packages[@]}"; do
  [[ -f .clients/$name/installed ]] && continue
  rm -rf ".clients/$name"
  /usr/bin/python3 -m venv ".clients/$name"
  ".clients/$name/bin/pip" install --quiet --upgrade pip
  ".clients/$name/bin/pip" install --quiet "${packages[$name]}"
  touch ".clients/$name/installed"
  echo "$name: ${packages[$name]}"
done
