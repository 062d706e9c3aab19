# shellcheck shell=sh
# At the end of a batch script. $1: its exit code; $2: its process, whose files are the job's logs.
# Accounting may cut exit codes above 127; the run directory keeps the whole one.
[ -d "${SLURMGPU_RUN_DIR-}" ] && echo "$1" >"$SLURMGPU_RUN_DIR/exit_code.${SLURM_JOB_ID-}" || exit 0

# Of one that failed: what failed first, found by whatever Python there is, and never for long. Not of a local run, nor
# of one that stopped in good order (75).
[ -n "${SLURM_JOB_ID-}" ] && [ -z "${SLURMGPU_LOCAL_JOB-}" ] && [ "$1" -ne 75 ] || exit 0
log="/proc/$2/fd/2"
[ -f "$log" ] || exit 0
if [ "$1" -eq 0 ]; then # so it looks, too, where a signal of Slurm's has ended the script
    tail -c 4096 "$log" | grep "\*\*\* JOB $SLURM_JOB_ID ON .* CANCELLED AT " >/dev/null || exit 0
    set -- 143 "$2"
fi
# A job that is put back into the queue must not wait for this, and nothing of it has failed.
again='^slurmgpu: .*; \(requeueing, restart\|not requeued: \|preempted: Slurm starts it again\)\|DUE TO JOB REQUEUE'
! tail -c 4096 "$log" | grep "$again" >/dev/null || exit 0
here=$(cd "$(dirname "$0")" && pwd) || exit 0
# The system's own Python first: it lies on the node's disk, and needs no module.
for python in /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python; do
    command -v "$python" >/dev/null 2>&1 || continue
    timeout -s KILL 8 "$python" -I -S -B -c '
import sys
if sys.version_info < (3, 9):
    sys.exit(3)
sys.path.insert(0, sys.argv[1] + "/slurmgpu_diagnosis.zip")
from slurmgpu_diagnosis.at_end import at_end
at_end(sys.argv[2:])
' "$here" "$1" "$2" </dev/null >/dev/null 2>>"$log"
    [ $? -eq 3 ] || exit 0
done
