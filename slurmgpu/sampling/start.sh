#!/bin/bash
# start.sh SECONDS [GPUS [OPTION...]]: samples what a job of Slurm's uses, on each of its nodes, as long as it runs.
# A batch script starts it in the background. GPUS: how many the job has on each node; OPTIONs: of srun, to see them.
# It writes to samples/ in the run directory, and nothing to the job's log; the job never waits for it.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 0
run_dir=${here%/code/*}

find_python() { # the first on this node that is 3.9 or newer; the last is the one that submitted the job
    local each
    for each in python3 python3.13 python3.12 python3.11 python3.10 python3.9 /usr/bin/python3 "$(cat "$here/python" 2>/dev/null)"; do
        [ -n "$each" ] && "$each" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 9))' && echo "$each" && return
    done 2>/dev/null
}

sample_here() { # JOB SECONDS GPUS PARENT: becomes the sampler of this node
    local python
    [ "$4" -gt 1 ] || exit 0 # what started it has gone already, and nothing would end it
    python=$(find_python)
    [ -n "$python" ] || exit 0
    exec "$python" -I -S -c 'import sys; sys.path.insert(0, sys.argv.pop(1)); from slurmgpu_sampling.__main__ import main
main(sys.argv[1:])' "$run_dir/code" "$run_dir/samples" "$@"
}

if [ "$1" = --node ]; then # in a step, on a node that the batch script is not on
    shift
    sample_here "$1" "$2" "${3:-}" "$PPID"
fi

if [ -z "${SLURM_JOB_ID:-}" ] || [ "${SLURMGPU_LOCAL_JOB:-}" = "$SLURM_JOB_ID" ]; then exit 0; fi
job=$SLURM_JOB_ID seconds=$1 gpus=${2:-} options=("${@:3}")

knows_overlap() { # before 21.08, a step that did not say it, too, would have to wait for one that did
    local release
    release=$(srun --version 2>/dev/null) || return
    [[ "${release##* }" =~ ^([0-9]+)\.([0-9]+) ]] && ((BASH_REMATCH[1] * 100 + 10#${BASH_REMATCH[2]} >= 2108))
}

sample_group() { # NODES FIRST OPTION...: the nodes of a component from number FIRST on, in a step beside all others
    local nodes=$(($1 - $2)) first=$2
    shift 2
    [ "$nodes" -gt 0 ] || return 0
    srun --job-name=slurmgpu-sampler --overlap --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --relative="$first" \
        --cpus-per-task=1 --mem=0 --cpu-bind=none --mpi=none --export=ALL --quiet --immediate=60 --kill-on-bad-exit=0 --wait=0 \
        --input=none --output=none --error=none "$@" bash "$here/start.sh" --node "$job" "$seconds" "$gpus" &
}

components=${SLURM_HET_SIZE:-1}
if { [ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ] || [ "$components" -gt 1 ]; } && knows_overlap; then
    # srun takes what the job was asked for as options, and this step has no share of its own.
    unset "${!SLURM_GPU@}" "${!SLURM_CPUS_PER@}" "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_@}" "${!SLURM_NTASKS@}" \
        "${!SLURM_TASKS_PER@}" "${!SLURM_TRES_@}" "${!SRUN_@}" SLURM_NPROCS SLURM_HINT SLURM_EXACT SLURM_EXCLUSIVE \
        SLURM_DISTRIBUTION SLURM_THREADS_PER_CORE
    if [ "$components" -eq 1 ]; then
        sample_group "$SLURM_JOB_NUM_NODES" 1 "${options[@]}"
    else
        export SLURMGPU_SAMPLED_NODES=0
        for ((one = 0; one < components; one++)); do
            of=SLURM_JOB_NUM_NODES_HET_GROUP_$one
            SLURMGPU_SAMPLED_NODES=$((SLURMGPU_SAMPLED_NODES + ${!of:-0}))
        done
        for ((one = 0; one < components; one++)); do
            of=SLURM_JOB_NUM_NODES_HET_GROUP_$one
            sample_group "${!of:-0}" $((one == 0)) --het-group="$one" "${options[@]}"
        done
    fi
fi
sample_here "$job" "$seconds" "$gpus" "$PPID"
