# shellcheck shell=bash
# Read by the batch script at its beginning: at its end, the whole exit code is kept, and what failed first is found.
at_end="$SLURMGPU_RUN_DIR/code/at_end.sh"
trap 'set -- "$?"; trap "" TERM; sh "$at_end" "$1" $$ 2>/dev/null || :' EXIT
