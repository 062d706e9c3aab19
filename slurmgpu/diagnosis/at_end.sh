# shellcheck shell=sh
# At the end of a batch script. $1: its exit code; $2: its process, whose files are the job's logs.
# Accounting may cut exit codes above 127; the run directory keeps the whole one.
[ -d "${SLURMGPU_RUN_DIR-}" ] || exit 0
kept="$SLURMGPU_RUN_DIR/exit_code.${SLURM_JOB_ID-}"
echo "$1" >"$kept" || rm -f "$kept" # a full disk is no reason to say nothing of the end

# How it ended. Of a local run nothing is said; without notify, nor of one that went well or stopped in good order (75).
[ -n "${SLURM_JOB_ID-}" ] && [ -z "${SLURMGPU_LOCAL_JOB-}" ] || exit 0
settings="${0%/*}/notify.json"
[ -s "$settings" ] || settings=''
[ "$1" -ne 75 ] || [ -n "$settings" ] || exit 0
log="/proc/$2/fd/2"
[ -f "$log" ] || { [ -n "$settings" ] && log=/dev/null || exit 0; }
case $1 in 0) end=completed ;; 75) end=stopped ;; *) end=failed ;; esac
said="\*\*\* JOB $SLURM_JOB_ID ON .* CANCELLED AT "
if [ "$1" -eq 0 ] && [ -z "$settings" ]; then # most jobs are done here
    tail -c 4096 "$log" | grep "$said" >/dev/null || exit 0
fi
# Slurm's own word on the end of this start: in an appended log that of an earlier one may still be near the end.
cancelled=''
if [ "$end" != stopped ]; then
    cancelled=$(tail -c 4096 "$log" | grep "$said" | tail -n 1)
    if [ -n "$cancelled" ] && [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then
        at=${cancelled#* CANCELLED AT }
        at=$(date -d "${at%% *}" +%s) && ran=$(ps -o etimes= -p "$2") &&
            [ "$at" -lt $(($(date +%s) - ran)) ] && cancelled=''
    fi
fi
if [ "$1" -eq 0 ]; then # so it looks, too, where a signal of Slurm's has ended the script
    if [ -n "$cancelled" ]; then
        end=failed
        set -- 143 "$2"
    elif [ -z "$settings" ]; then
        exit 0
    fi
fi
# A job that is put back into the queue must not wait long, and nothing of it has failed.
again='^slurmgpu: .*; \(requeueing, restart\|not requeued: \|preempted: Slurm starts it again\)'
if [ "$end" != completed ]; then
    again=$(tail -c 4096 "$log" | grep "$again" | tail -n 1)
    case $again in
        *'; requeueing, restart '*) # an earlier start's words may still be near the end of an appended log
            number=${again#*; requeueing, restart }
            [ "${number%% *}" -gt "${SLURM_RESTART_COUNT:-0}" ] || again=''
            ;;
    esac
    case $again in
        '') case $cancelled in *'DUE TO JOB REQUEUE'*) end=requeued ;; esac ;;
        *'stopped by hang at '* | *'stopped by nonfinite at '*) ;; # no end in good order
        *'; not requeued: '*) end=stopped ;;
        *) end=requeued ;;
    esac
fi
# torchrun ends with 1 where its processes stopped in good order: their mark of this start tells.
stop="$SLURMGPU_RUN_DIR/state/stop.json"
if [ "$end" = failed ] && grep -q "\"job_id\": \"$SLURM_JOB_ID\"" "$stop" &&
    grep -q '"reason": "\(time\|SIG[A-Z0-9]*\)"' "$stop"; then
    end=stopped
fi
here=$(cd "$(dirname "$0")" && pwd) || exit 0

by_python() { # by_python_once, again where TERM came before it was ignored: it comes once
    ended=0
    by_python_once "$@" || ended=$?
    [ "$ended" -eq 143 ] || return "$ended"
    by_python_once "$@"
}

by_python_once() { # SECONDS MODULE ARGUMENT...: a function of the reader of logs, by whatever Python there is; 3: by none
    seconds=$1
    shift
    # The system's own Python first: it lies on the node's disk, and needs no module.
    for python in /usr/bin/python3 python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9 python; do
        command -v "$python" >/dev/null 2>&1 || continue
        ended=0
        # TERM comes with a new start, and timeout gives its command the default of it again.
        timeout -s KILL "$seconds" sh -c 'trap "" TERM; exec "$@"' sh "$python" -I -S -B -c '
import sys
if sys.version_info < (3, 9):
    sys.exit(3)
sys.path.insert(0, sys.argv[1] + "/slurmgpu_diagnosis.zip")
name = sys.argv[2]
try:
    module = __import__("slurmgpu_diagnosis." + name, fromlist=[name])
except ImportError: # a small Python has no ssl
    sys.exit(3)
getattr(module, name)(sys.argv[3:])
' "$here" "$@" </dev/null || ended=$?
        case $ended in 3 | 126 | 127) ;; *) return "$ended" ;; esac # 127: pyenv's word for one that is not there
    done
    return 3
}

# What failed first, and never for long; it comes back only where the run directory cannot take it.
SLURMGPU_CAUSE=''
[ "$end" != failed ] || SLURMGPU_CAUSE=$(by_python 8 at_end "$1" "$2" 2>>"$log") || SLURMGPU_CAUSE=''
export SLURMGPU_CAUSE

# What it asks to be told: one message, or one line on why there is none. No error is shown: it could tell the address.
# A busy node may need seconds to start Python; the request itself has 4.
[ -n "$settings" ] || exit 0
ended=0
by_python 15 notify "$settings" "$end" "$1" "$2" >>"$log" 2>/dev/null || ended=$?
case $ended in
    0) exit 0 ;;
    3) why="no Python 3.9 or newer here can send it" ;;
    137) why="no answer within 15 s" ;;
    *) why="Python ended with exit code $ended" ;;
esac
echo "slurmgpu: no notification was sent: $why" >>"$log"
