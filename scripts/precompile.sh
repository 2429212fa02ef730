#!/bin/sh
# Runs a compiler, and before it makes a precompiled header takes the old one away. GCC's
# preprocessor would read that in the new one's place, and ccache would then take what was once
# compiled beside the same old one for what is to be compiled now, whatever the headers say.
#
#   precompile.sh COMPILER ARGUMENT...
for argument in "$@"; do
  case $argument in
  *.gch) rm -f "$argument" ;;
  esac
done
exec "$@"
