# shellcheck shell=bash
# The set-up of ./hearth: Debian packages, Python packages, the model. Sourced after lib.sh.
#
# Each part is idempotent and guarded by a stamp. plan_PART adds missing work to the plan, and
# run_plan (plan.sh) does the work. setup_PART calls both.

VENV=$ROOT/.venv
PYTHON=$VENV/bin/python
MODEL=$ROOT/models/gemma-3-270m.gguf
CHECKPOINT=$ROOT/models/gemma-3-270m
STAMPS=$ROOT/.deps/stamps
BUILD_PACKAGES=$ROOT/scripts/apt-packages.txt
TORCH_INDEX=https://download.pytorch.org/whl/cpu
# --- the system ------------------------------------------------------------------------------

os_release() { sed -n "s/^$1=//p" /etc/os-release | tr -d '"'; }

# Ends with an error unless this is Debian 12 on x86-64. HEARTH_ANY_SYSTEM=1 allows other systems.
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

# missing_packages FILE...: prints the Debian packages of these lists that are not installed.
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

# plan_packages FILE...: plans to install the missing packages of these lists.
plan_packages() {
  command -v dpkg-query >/dev/null || die "unsupported system: dpkg and apt-get are needed"
  mapfile -t MISSING_PACKAGES < <(missing_packages "$@")
  ((${#MISSING_PACKAGES[@]})) || return 0
  measure_packages "${MISSING_PACKAGES[@]}"
  plan_fetch "Debian packages" "$APT_TEXT" "$APT_FETCH_MB" "$APT_DISK_MB"
  piece apt "Debian packages" $((5 + APT_COUNT / 2)) '' install_packages "${MISSING_PACKAGES[@]}"
}

# measure_packages PACKAGE...: sets APT_TEXT, APT_COUNT, APT_FETCH_MB and APT_DISK_MB from a dry run
# of apt-get, which needs no root and downloads nothing. If apt has no package lists, as in a new
# container, the figures are those of a new Debian 12.
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

# megabytes_after WORDS: reads apt's output; prints the size after WORDS ("8034 kB", "15.6 MB") in
# MB, rounded up; 0 if there is none.
megabytes_after() {
  sed -n "s/^$1\([0-9.]*\) \([kMG]\?\)B.*/\1 \2/p" | awk '
    { mb = $1 * ($2 == "G" ? 1000 : $2 == "M" ? 1 : $2 == "k" ? 0.001 : 0.000001) }
    END { print int(mb + 0.999) }'
}

# Asks for sudo's password before the work begins: a later prompt would be hidden by the display.
ask_for_root() {
  has_piece apt && ((EUID != 0)) || return 0
  command -v sudo >/dev/null ||
    die "install these packages as root (sudo is not installed): ${MISSING_PACKAGES[*]}"
  sudo -v || die "sudo failed; install these packages as root: ${MISSING_PACKAGES[*]}"
}

has_browser() {
  command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null
}

# A failed installation of the browser is no error, because only one test needs it.
install_browser() {
  install_packages chromium-headless-shell || echo "the status page is not tested in a browser"
}

plan_browser() {
  ! has_browser || return 0
  ((EUID == 0)) || sudo -n true 2>/dev/null || return 0
  plan_fetch "a browser" "for the test of the status page: apt-get fetches 96 MB" 96 450
  piece browser "a browser" 10 apt install_browser
}

# Prints that the test that needs a browser will be skipped.
say_without_browser() {
  has_browser || say "  NO BROWSER: the status page is not tested in a browser" \
    "(apt-get install chromium-headless-shell)"
}

# --- Python ----------------------------------------------------------------------------------

PINS=(-c "$ROOT/scripts/constraints.txt")

# --no-compile: most modules of the packages are never imported, so their bytecode is not needed.
pip_install() {
  "$PYTHON" -m pip install --disable-pip-version-check --progress-bar off --no-compile \
    "${PINS[@]}" "$@"
}

# Succeeds if the virtual environment is complete: pip writes its RECORD file last. Does not start
# Python, to be fast, because each run of ./hearth calls this.
has_venv() { [[ -x $PYTHON ]] && compgen -G "$VENV/lib/*/site-packages/pip-*/RECORD" >/dev/null; }

make_venv() {
  rm -rf "$VENV"
  /usr/bin/python3 -m venv "$VENV"
}

# Installs the CPU wheel of torch from pip's configured index, if it has one, else from TORCH_INDEX;
# PyPI's wheel would need 3 GB more for CUDA. The build uses only torch's libraries and headers. The
# packages needed to import torch are in requirements-test.txt.
install_torch() {
  local torch=(--no-deps -r "$ROOT/scripts/torch-cpu.txt")
  pip_install "${torch[@]}" || pip_install "${torch[@]}" --extra-index-url "$TORCH_INDEX"
}

# Its library alone is used, so it needs no other package.
install_llguidance() {
  pip_install --no-deps --require-hashes -r "$ROOT/scripts/llguidance.txt"
}

install_test_requirements() {
  pip_install -r "$ROOT/scripts/requirements-test.txt"
  pip_install --no-deps -r "$ROOT/scripts/requirements-peft.txt"
}

# python_holds NAME FILE...: sets WANT to the digest of the files; succeeds if NAME's stamp in the
# virtual environment holds it.
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
  if ! python_holds llguidance llguidance.txt; then
    plan_fetch "llguidance" "for answers in JSON, into .venv: 3 MB" 3 8
    piece llguidance "llguidance" 2 "apt python torch" \
      stamped "$VENV/llguidance.stamp" "$WANT" install_llguidance
  fi
}

# Plans the additional Python packages for tests, lint and benchmarks. They are installed after
# torch, because only one pip may change the virtual environment at a time.
plan_test_python() {
  plan_venv
  python_holds requirements-test requirements-test.txt requirements-peft.txt && return
  plan_fetch "for tests" "transformers, kubectl, hadolint and others, into .venv: 68 MB" 68 430
  piece python-test "Python packages for tests" 8 "apt python torch llguidance" \
    stamped "$VENV/requirements-test.stamp" "$WANT" install_test_requirements
}

# Plans huggingface_hub for scripts/hub_model.py.
plan_hub() {
  plan_venv
  python_holds requirements-hub requirements-hub.txt && return
  plan_fetch "huggingface_hub" "for downloads of models, into .venv: 7 MB" 7 30
  piece hub "huggingface_hub" 5 "apt python" stamped "$VENV/requirements-hub.stamp" "$WANT" \
    pip_install -r "$ROOT/scripts/requirements-hub.txt"
}

fetch_schema_suite() {
  local folder
  folder=$(mktemp -d)
  "$PYTHON" -m pip download --disable-pip-version-check --quiet --no-deps --require-hashes \
    --no-binary jsonschema -r "$ROOT/scripts/schema-suite.txt" -d "$folder"
  mkdir -p "$ROOT/.deps"
  tar -C "$ROOT/.deps" -xzf "$folder"/jsonschema-*.tar.gz
  rm -r "$folder"
}

# Plans to fetch the JSON-Schema-Test-Suite for schema_suite_test.py.
plan_schema_suite() {
  local want
  want=$(digest "$ROOT/scripts/schema-suite.txt")
  ! stamp_holds "$STAMPS/schema-suite" "$want" || return 0
  plan_venv
  plan_fetch "JSON-Schema-Test-Suite" "for a test, into .deps: 1 MB" 1 4
  piece schema-suite "the JSON-Schema-Test-Suite" 6 "apt python python-test" \
    stamped "$STAMPS/schema-suite" "$want" fetch_schema_suite
}

# Writes the bytecode of the modules that tests import. Tests run with -B, which writes no bytecode,
# so without this each test would compile these modules for 3.5 s.
write_bytecode() {
  env -u PYTHONDONTWRITEBYTECODE "$PYTHON" \
    -c 'import torch, transformers; transformers.Gemma3ForCausalLM'
}

plan_bytecode() {
  has_piece torch || has_piece python-test || return 0
  piece bytecode "Python bytecode" 4 "torch python-test" write_bytecode
}

# --- the model -------------------------------------------------------------------------------

# Removes files of an interrupted download or conversion.
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

# Plans the model as a folder for transformers. Tests and benchmarks compare with transformers.
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

# Plans everything that a build needs. A build does not need the model, which is planned separately.
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
