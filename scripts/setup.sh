# shellcheck shell=bash
# The set-up steps of ./hearth, each idempotent, each guarded by a stamp. Sourced after lib.sh.

VENV=$ROOT/.venv
PYTHON=$VENV/bin/python
SENTENCEPIECE=$ROOT/.deps/sentencepiece
STAMPS=$ROOT/.deps/stamps

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
