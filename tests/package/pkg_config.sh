#!/usr/bin/env bash
# pkg_config.sh COMPILER SOURCE PROGRAM: what a user without CMake types.
set -euo pipefail
flags=$(pkg-config --cflags --libs heed)
# The order of a link line: the source before the libraries it needs.
# shellcheck disable=SC2086
"$1" -Wall -Wextra -Wpedantic -Werror "$2" -o "$3" $flags
"$3"
