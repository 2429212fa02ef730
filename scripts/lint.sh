# shellcheck shell=bash
# The checks of ./hearth lint. Sourced after lib.sh, setup.sh and build.sh.

LINT_PACKAGES=$ROOT/scripts/apt-packages-lint.txt
SOURCE_FOLDERS=(proto cache_store worker services tests bench)

cpp_files() {
  local folder
  for folder in "${SOURCE_FOLDERS[@]}"; do
    [[ ! -d $ROOT/$folder ]] || find "$ROOT/$folder" -name '*.cc' -o -name '*.h'
  done | sort
}

python_files() {
  find "$ROOT/scripts" "$ROOT/tests" "$ROOT/bench" "$ROOT/python" "$ROOT/examples" \
    -name '*.py' -not -path '*/__pycache__/*' 2>/dev/null | sort
}

check_format() { cpp_files | xargs -r clang-format --dry-run -Werror --ferror-limit=1; }

check_python() { python_files | xargs -r "$PYTHON" -m pyflakes; }

check_shell() {
  shellcheck -x -P "$ROOT" "$ROOT/hearth" "$ROOT/.ci/run"
  shellcheck "$ROOT"/scripts/*.sh "$ROOT"/tests/{packages,scripts}/*.sh "$ROOT"/bench/*.sh
}

check_dockerfiles() {
  find "$ROOT/deploy" -name '*Dockerfile*' -not -name '*.dockerignore' -print0 |
    xargs -0 -r "$VENV/bin/hadolint"
}

# Lint needs neither torch nor a build, but it needs Python, which is in BUILD_PACKAGES.
plan_lint() {
  check_system
  plan_packages "$BUILD_PACKAGES" "$LINT_PACKAGES"
  plan_test_python
}

lint() {
  if [[ ${1:-} == --fix ]]; then
    cpp_files | xargs -r clang-format -i
    say "  formatted"
  elif [[ -n ${1:-} ]]; then
    die "lint: unknown option $1"
  fi
  step lint-tidy "house rules (tests/tidy.py)" "$PYTHON" -B "$ROOT/tests/tidy.py" "$ROOT"
  step lint-python "pyflakes" check_python
  step lint-shell "shellcheck" check_shell
  if [[ -d $ROOT/deploy ]]; then
    step lint-docker "hadolint" check_dockerfiles
  fi
  step lint-format "clang-format (./hearth lint --fix corrects it)" check_format
}
