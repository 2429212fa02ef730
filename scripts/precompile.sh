#!/bin/sh
# Runs a compiler; removes an old precompiled header before a new one is made. Otherwise GCC's
# preprocessor would read the old one, and ccache would return an old result although headers have
# changed.
#
#   precompile.sh COMPILER ARGUMENT...
for argument in "$@"; do
  case $argument in
  *.gch) rm -f "$argument" ;;
  esac
done
exec "$@"
