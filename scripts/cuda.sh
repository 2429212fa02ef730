# shellcheck shell=bash
# Fetches nvcc and the CUDA build of torch from PyPI, for gpu_kit.sh and the CUDA worker's image.
# Sourced after setup.sh. Builds for the CPU need neither.

CUDA_TOOLKIT='cuda-toolkit[nvcc]==13.0.3.0'  # nvcc 13.0.88; the CUDA release of torch 2.11 to 2.13

pip_into() {
  rm -rf "$1"
  "$PYTHON" -m pip install --disable-pip-version-check --progress-bar off --no-compile \
    --only-binary=:all: --target "$@"
}

# fetch_cuda DIR TORCH_VERSION [PIP_OPTION...]: installs nvcc into DIR/nvcc, torch into DIR/python.
# The options apply only to torch.
fetch_cuda() {
  local dir=$1 root=$1/nvcc/nvidia/cu13
  pip_into "$dir/nvcc" "$CUDA_TOOLKIT"
  chmod +x "$root"/bin/* "$root"/nvvm/bin/*
  # Makes links with the names under which CMake looks for the libraries of a toolkit.
  ln -sf libcudart.so.13 "$root/lib/libcudart.so"
  ln -sfn lib "$root/lib64"
  mkdir -p "$root/include/cccl"
  pip_into "$dir/python" "torch==$2" "${@:3}"
}

# cuda_options DIR: prints CMake's options for a build with fetch_cuda's DIR, one on each line.
cuda_options() {
  printf '%s\n' -DHEARTH_DEVICE=cuda -DHEARTH_CUDA=on "-DHEARTH_TORCH=$1/python/torch" \
    "-DCUDAToolkit_ROOT=$1/nvcc/nvidia/cu13"
}
