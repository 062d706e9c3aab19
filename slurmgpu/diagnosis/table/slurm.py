"""What Slurm does to a job, and what slurmgpu's own script says before it gives up.

Slurm's words are those of slurmstepd (src/slurmd/slurmstepd/req.c, mgr.c) and srun (src/srun).
"""

from __future__ import annotations

from ..row import Row

__all__ = ["ROWS"]

_EVENT = r"\*\*\* (?P<part>JOB|STEP) (?P<id>\S+) ON (?P<host>\S+) "

ROWS = (
    Row(
        "time-limit",
        "DUE TO TIME LIMIT",
        _EVENT + r"CANCELLED AT (?P<time>\S+) DUE TO TIME LIMIT",
        "the job ran into its time limit<, at {time}>",
        "ask for more time (time:), or save checkpoints and go on in another job: restart.on: [timeout]",
        "job",
        "line",
    ),
    Row(
        "preempted",
        "DUE TO PREEMPTION",
        _EVENT + r"CANCELLED AT (?P<time>\S+) DUE TO PREEMPTION",
        "Slurm took the nodes for a job that comes first<, at {time}>",
        "let it start again by itself: restart.on: [preemption], with checkpoints; or use a QOS that is not preempted",
        "job",
        "line",
    ),
    Row(
        "node-failure",
        "DUE TO NODE FAILURE",
        _EVENT + r"CANCELLED AT (?P<time>\S+) DUE TO NODE FAILURE",
        "a node of the job failed<, at {time}>; nothing in the program did",
        "start it again (restart.on: [node_failure] does so by itself); if it is the same node again, leave it out: exclude",
        "job",
        "line",
    ),
    Row(
        "node-failure",
        "Node failure on |node failure on ",
        r"[Nn]ode failure on (?P<host>[\w.-]+)",
        "node {host} failed; nothing in the program did",
        "start it again (restart.on: [node_failure] does so by itself); if it is the same node again, leave it out: exclude",
        "job",
        "line",
    ),
    Row(
        "requeued",
        "DUE TO JOB REQUEUE",
        _EVENT + r"CANCELLED AT (?P<time>\S+) DUE TO JOB REQUEUE",
        "the job was put back into the queue, at {time}",
        "nothing: Slurm starts it again",
        "job",
        "line",
    ),
    Row(
        "memory-error",
        "UNCORRECTABLE MEMORY ERROR",
        _EVENT + r"UNCORRECTABLE MEMORY ERROR AT (?P<time>\S+)",
        "the memory of node {host} had an error that could not be corrected, at {time}",
        "start it again without this node (exclude: {host}), and tell the site",
        "job",
        "line",
    ),
    Row(
        "cancelled",
        "*** JOB |*** REASON",
        r"\*\*\* JOB (?P<id>\S+) ON (?P<host>\S+) CANCELLED AT (?P<time>\S+) (?:DUE to SIGNAL \w+ )?\*\*\*",
        "the job was cancelled<, at {time}>< by {by}>",
        "nothing, if you did it; some sites cancel jobs that break a rule, such as idle GPUs: ask their support",
        "job",
        "line",
    ),
    Row(
        "host-memory",
        "oom_kill event|oom-kill event|Exceeded job memory limit|Exceeded step memory limit|exceeded memory limit",
        r"(?:Detected (?P<times>\d+) oom[-_]kill events?.* (?:in )?(?:StepId=|step )(?P<step>[\w.+]+)"
        r"|(?:[Ee]xceeded (?:job |step )?memory limit)(?: \((?P<used>\d+) > (?P<limit>\d+)\))?)",
        "the memory that the job asked for was full<, and Slurm ended it at {used} of {limit} bytes>"
        "<, and the system's OOM killer ended a process ({times} in all)>",
        "ask for more memory (memory:); fewer data-loader workers, or data that is not copied into each, need less",
        "host",
        "line",
    ),
    Row(
        "host-memory",
        "Memory cgroup out of memory|Out of memory: Kill",
        r"(?:Memory cgroup out of memory|Out of memory): Kill(?:ed)? process (?P<pid>\d+) \((?P<name>[^)]*)\)",
        "memory was full, and the system's OOM killer ended {name} (process {pid})",
        "ask for more memory (memory:); fewer data-loader workers, or data that is not copied into each, need less",
        "host",
        "line",
    ),
    Row(
        "host-memory",
        "node running low on memory",
        r"node running low on memory[\s\S]*?IP: (?P<ip>[\d.]+)[\s\S]*? was (?P<used>[\d.]+ ?[KMGT]?B) / "
        r"(?P<limit>[\d.]+ ?[KMGT]?B)",
        "the memory of {ip} was nearly full ({used} of {limit}), and Ray ended the worker that began last",
        "ask for more memory (memory:), or fewer workers on a node; RAY_memory_usage_threshold moves Ray's own limit",
        where="exception",
    ),
    Row(
        "host-memory",
        "killed due to memory pressure (OOM)",
        r"(?P<times>\d+) Workers? \(tasks / actors\) killed due to memory pressure \(OOM\)(?:.*IP: (?P<ip>[\d.]+))?",
        "memory<  of {ip}> was nearly full, and Ray ended {times} of its workers",
        "ask for more memory (memory:), or fewer workers on a node; RAY_memory_usage_threshold moves Ray's own limit",
        "host",
        "line",
    ),
    Row(
        "no-launch",
        "task launch failed|Task launch for|Unable to confirm allocation",
        r"(?P<message>(?:task launch failed|Task launch for|Unable to confirm allocation).*)",
        "Slurm could not start the processes: {message}",
        "start it again; if it fails on the same node again, leave that node out (exclude) and tell the site",
        where="line",
    ),
    Row(
        "inherited",
        "are mutually exclusive",
        r"(?P<message>SLURM_MEM_PER_CPU, SLURM_MEM_PER_GPU,? and SLURM_MEM_PER_NODE are mutually exclusive)",
        "srun refused what it was asked for: {message}",
        "sbatch was called within another job, whose variables came over: submit from a login node, or unset SLURM_MEM_PER_CPU "
        "SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE first (slurmgpu submit does so)",
        where="line",
    ),
    Row(
        "step-request",
        "srun: unrecognized option|srun: invalid option|srun: option ",
        r"srun: (?P<message>unrecognized option [^\n]*|invalid option -- [^\n]*|option '?[^\n]* requires an argument[^\n]*)",
        "srun does not know what it was given: {message}",
        "srun --help lists its options; those of the program stand behind it",
        where="line",
    ),
    Row(
        "submission-refused",
        "Batch job submission failed: |Unable to allocate resources: ",
        r"(?:sbatch|srun|salloc): error: (?:Batch job submission failed|Unable to allocate resources): (?P<message>.*)",
        "Slurm refused a job that this one asked for: {message}",
        "compare account, partition, QOS and limits: sacctmgr show assoc user=$USER format=account,partition,qos; a job that is "
        "refused for the number of jobs can be submitted when one has ended",
        "symptom",
        "line",
    ),
    Row(
        "step-request",
        "srun: error: Unable to create step|srun: fatal: |More processors requested"
        "|Requested node configuration",
        r"srun: (?:error|fatal): (?P<message>.*)",
        "srun refused what it was asked for: {message}",
        "the step asks for more than the job has: compare srun's options with those of #SBATCH",
        where="line",
    ),
    Row(
        "mpi-type",
        "Invalid MPI type|cannot find mpi plugin|MPI: Unable to load any plugin|Cannot create context for mpi",
        r"(?:Invalid MPI type '(?P<name>[^']+)'|mpi plugin for (?P<name2>\S+)|Cannot create context for (?P<name3>\S+))",
        "srun has no MPI type <{name}><{name2}><{name3}> here",
        "srun --mpi=list shows the types of this Slurm; without --mpi it takes the site's default",
        where="line",
    ),
    Row(
        "module",
        "Lmod has detected the following error|The following module(s) are unknown|Unable to locate a modulefile"
        "|module(s) exist but",
        r"(?:module\(s\) (?:are unknown|exist but)[^\"]*(?:\"(?P<name>[^\"]+)\")?|Unable to locate a modulefile for "
        r"'(?P<name2>[^']+)')",
        "the module <{name}><{name2}><{detail}> could not be loaded",
        "module spider NAME shows the exact name, and what must be loaded before",
        where="line",
        nearby=(3, r'^\s*"(?P<detail>[^"]+)"'),
    ),
    Row(
        "module",
        "slurmgpu: module |slurmgpu: no module command",
        r"slurmgpu: (?P<message>(?:module .* (?:did not load|failed)|no module command).* on (?P<host>\S+))$",
        "{message}",
        "module spider NAME shows the exact name, and what must be loaded before; the module system's words stand above it",
        where="line",
    ),
    Row(
        "work-folder",
        "chdir to",
        r"(?:couldn't|could not) chdir to [`'](?P<folder>[^']+)'",
        "the work folder {folder} is not there on the node",
        "use a folder that the nodes see (scratch, a project's); sbatch --chdir does not make it",
        "symptom",
        where="line",
    ),
    Row(
        "work-folder",
        "getcwd",
        r"getcwd(?:\(\))? failed: No such file or directory|getcwd: cannot access parent directories",
        "the folder that the script is in is not there any more",
        "do not remove or move the work folder while the job runs; a script that makes a folder of its own must not leave it",
        "symptom",
        where="line",
    ),
    Row(
        "prolog",
        "TaskProlog|task_prolog|task prolog|task-prolog|Prolog ",
        r"(?P<message>(?:TaskProlog|(?:--)?task[ _-]prolog)[^\n]*(?:failed|exit|status)[^\n]*)",
        "a prolog failed before the program began: {message}",
        "if it is the site's, start the job again without this node (exclude:), and tell the site; if it is your own "
        "(--task-prolog), see what it wrote",
        where="line",
    ),
    Row(
        "work-folder",
        "slurmgpu: no work folder",
        r"slurmgpu: no work folder (?P<folder>.*) on (?P<host>\S+)$",
        "the work folder {folder} is not there on {host}",
        "use a folder that the nodes see (scratch, a project's), or start it again without this node: exclude",
        where="line",
    ),
    Row(
        "environment",
        "slurmgpu: no conda|slurmgpu: found no conda|could not activate|slurmgpu: no virtual environment|slurmgpu: no pixi"
        "|slurmgpu: the Python of the virtual|slurmgpu: no interpreter|EnvironmentLocationNotFound"
        "|EnvironmentNameNotFound|CondaError: Run 'conda init'|Could not find conda environment",
        r"(?:slurmgpu: (?P<message>(?:no conda|found no conda|\S+ could not activate|no virtual|no pixi|the Python of the"
        r"|no interpreter).*)|(?P<message2>(?:Environment(?:Location|Name)NotFound|CondaError|Could not find conda).*))",
        "the Python environment is not there: <{message}><{message2}>",
        "correct environment.python in the job file, or make the environment; the nodes must see its folder",
        where="line",
    ),
    Row(
        "environment",
        "ERROR: No matching distribution found for",
        r"ERROR: No matching distribution found for (?P<name>\S+)",
        "pip found no package {name} to install",
        "compute nodes often have no network: install it on a login node, into the environment of the job; see that the name is "
        "spelled exactly",
        where="line",
    ),
    Row(
        "secret",
        "slurmgpu: the secret",
        r"slurmgpu: the secret (?P<name>\S+) is neither set nor in (?P<file>.*)$",
        "the secret {name} is neither set nor in {file}",
        "export {name} where you submit, or write it into {file}",
        where="line",
    ),
    Row(
        "staging",
        "could not be copied|could not be made on all nodes|not all results could be brought back",
        r"slurmgpu: (?P<message>.*(?:could not be copied|could not be made|be brought back).*)$",
        "{message}",
        "look at the line above it: most often the nodes' own disk is full, or a file named under stage: is missing",
        where="line",
    ),
    Row(
        "restart-limit",
        "times already; not once more",
        r"slurmgpu: (?P<message>started again \d+ times already)",
        "it was {message} (restart.limit)",
        "look at why it ended before: slurmgpu logs; then slurmgpu resume",
        where="line",
    ),
    Row(
        "profiler",
        "slurmgpu: no profiler",
        r"slurmgpu: no profiler (?P<name>.*) on (?P<host>\S+)$",
        "the profiler {name} is not on {host}",
        "load its module, or leave profile: out",
        where="line",
    ),
    Row(
        "lost-rank",
        "error: lost another rank|error: ends because evaluate failed on rank",
        r"error: (?:lost another rank|ends because evaluate failed)",
        "the training lost another rank",
        "look at the rank that ended first",
        "consequence",
        "line",
    ),
    Row(
        "hang",
        "(hang_timeout) after step",
        r"error: (?:rank (?P<rank>\d+) on (?P<host>\S+): )?no step for (?P<s>\d+) s \(hang_timeout\) after step (?P<step>\d+)",
        "the training took no step for {s} s after step {step} (hang_timeout)",
        "state/stacks-rank-N.txt in the run directory shows where each thread was; should a step really take so long, a longer "
        "hang_timeout",
        "waiting",
        "line",
    ),
    Row(
        "stopped",
        ": start it again to continue",
        r"stopped by (?P<reason>\w+) at step (?P<step>\d+), saved in (?P<folder>\S+): start it again to continue",
        "the training stopped in good order at step {step} ({reason}), saved in {folder}",
        "start it again, and it continues at step {step}: slurmgpu resume, for a job of slurmgpu's",
        "stop",
        "line",
    ),
    Row(
        "training",
        "error: ",
        r"^error: (?P<message>\S.*)$",
        "{message}",
        "the message says what to change",
        where="last",
    ),
)
