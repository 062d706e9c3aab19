"""The options of sbatch that are fields of a job, one row each: everything that knows such options derives from here."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["OTHER_NAMES", "OWN_OPTIONS", "PASSED_ON", "ROWS", "Row"]

Kind = Literal["text", "count", "amount", "list", "flag"]


class Row(NamedTuple):
    """One thing that a job can say, and its names."""

    key: str
    """The field of the job file."""
    option: str | None
    """sbatch's long name; None: sbatch has none, or hands it on to no step."""
    kind: Kind = "text"
    """Kind of its value: a count is a number; an amount (2, a100:2, 64G, 12:00:00) may be written as one."""
    flags: tuple[str, ...] = ()
    """Of the command line; none: only the job file has it."""
    metavar: str | None = None
    help: str = ""
    passed: bool = False
    """True if the planner passes it on as it was given; the others it puts into the form that the cluster wants."""
    instead: str = ""
    """Of what only an exact job may say: what to write elsewhere."""


# In the order in which an exact job's script names them.
ROWS: tuple[Row, ...] = (
    Row("name", "job-name", "text", ("-J", "--job-name"), "NAME", "The job's name."),
    Row("resources.account", "account", "text", ("-A", "--account"), "NAME", "The account (allocation, project) to charge."),
    Row("resources.partition", "partition", "text", ("-p", "--partition"), "NAME", "The partition; chosen when not given."),
    Row("resources.qos", "qos", "text", ("-q", "--qos"), "NAME", "The quality of service."),
    Row("resources.reservation", "reservation", "text", ("--reservation",), "NAME", "A reservation to run in."),
    Row("resources.constraint", "constraint", "text", ("-C", "--constraint"), "LIST", "Features that the nodes must have."),
    Row("resources.nodes", "nodes", "count", ("-N", "--nodes"), None, "Nodes."),
    Row("resources.tasks", "ntasks", "count", instead="resources.tasks_per_node"),
    Row(
        "resources.tasks_per_node", "ntasks-per-node", "count", ("--ntasks-per-node",), None,
        "Tasks on each node (launcher srun).",
    ),
    Row("resources.gpus", "gpus", "amount", ("-G", "--gpus"), "[TYPE:]N", "GPUs in all: 2 or a100:2."),
    Row(
        "resources.gpus_per_node", "gpus-per-node", "amount", ("--gpus-per-node",), "[TYPE:]N",
        "GPUs on each node: 4 or a100:4.",
    ),
    Row("resources.gpus_per_task", "gpus-per-task", "amount", instead="resources.gpus or resources.gpus_per_node"),
    Row("resources.gpu_type", None, "text", ("--gpu-type",), "TYPE", "The type of GPU."),
    Row("resources.gpu_memory", None, "amount", ("--gpu-memory",), "SIZE", "The least memory of one GPU: 40G."),
    Row("resources.gres", "gres", "list", ("--gres",), "LIST", "Generic resources per node: gpu:a100:1,lscratch:100."),
    Row("resources.cpus_per_task", "cpus-per-task", "count", ("-c", "--cpus-per-task"), None, "CPUs of each task."),
    Row("resources.cpus_per_gpu", "cpus-per-gpu", "count", ("--cpus-per-gpu",), None, "CPUs for each GPU."),
    Row("resources.memory", "mem", "amount", ("--mem",), "SIZE", "Memory on each node: 64G; 0 is all."),
    Row("resources.memory_per_cpu", "mem-per-cpu", "amount", ("--mem-per-cpu",), "SIZE", "Memory for each CPU."),
    Row("resources.memory_per_gpu", "mem-per-gpu", "amount", ("--mem-per-gpu",), "SIZE", "Memory for each GPU."),
    Row("resources.exclusive", "exclusive", "flag", ("--exclusive",), None, "Whole nodes."),
    Row("resources.cpu_bind", None, "text", ("--cpu-bind",), "TYPE", "What srun binds tasks to: cores, map_cpu:0,8."),
    Row(
        "resources.gpu_bind", "gpu-bind", "text", ("--gpu-bind",), "TYPE",
        "Which GPUs each task gets: closest, single:1.", passed=True,
    ),
    Row("resources.mem_bind", None, "text", ("--mem-bind",), "TYPE", "Which memory tasks use: local."),
    Row(
        "resources.hint", "hint", "text", ("--hint",), "TYPE",
        "How CPUs are counted and bound: nomultithread.", passed=True,
    ),
    Row(
        "resources.distribution", "distribution", "text", ("-m", "--distribution"), "TYPE",
        "How tasks are spread over nodes and sockets: block:cyclic.", passed=True,
    ),
    Row(
        "resources.segment", "segment", "count", ("--segment",), None,
        "Nodes that are to share a block of the network, such as a rack.",
    ),
    Row("resources.time", "time", "amount", ("-t", "--time"), "TIME", "The time limit: 90 (minutes), 12:00:00, 2-12:30."),
    Row("array", "array", "text", ("-a", "--array"), "INDICES", "A job array: 0-9, 1,3,5 or 0-30:10, %4 for 4 at once."),
    Row("dependency", "dependency", "text", ("-d", "--dependency"), "LIST", "What must have happened before: afterok:123."),
    Row("output", "output", "text", ("-o", "--output"), "PATTERN", "The log file, a pattern of Slurm's."),
    Row("error", "error", "text", ("-e", "--error"), "PATTERN", "The log of standard error, when apart."),
    Row("mail.type", "mail-type", "list", ("--mail-type",), "LIST", "On which events Slurm writes: END,FAIL."),
    Row("mail.user", "mail-user", "text", ("--mail-user",), "ADDRESS", "To whom Slurm writes."),
    Row("comment", "comment", "text", ("--comment",), "TEXT", "A comment that Slurm keeps.", passed=True),
    Row("work_dir", "chdir", "text", ("-D", "--chdir"), "FOLDER", "The work folder."),
    Row("environment", None, "text", ("--environment",), "NAME", "A named environment."),
    Row("debug", None, "flag", ("--debug",), None, "Tell more when it fails: NCCL, torch, stacks, core dumps."),
    Row("sample", None, "flag", ("--sample/--no-sample",), None, "Whether what it uses is sampled on its nodes, as it runs."),
    Row("profile.with", None, "text", ("--profile",), "NAME", "The profiler to run it under: nsys or rocprofv3."),
    Row("profile.ranks", None, "text", ("--profile-ranks",), "WHICH", "Which tasks are profiled: one (the first) or all."),
    Row("launch.launcher", None, "text", ("--launch",), "NAME", "Who starts the processes: auto, or a launcher, such as srun."),
)  # fmt: skip

OTHER_NAMES = {
    "queue": "resources.partition",
    "walltime": "resources.time",
    "runtime": "resources.time",
    "cpus": "resources.cpus_per_task",
    "ncpus": "resources.cpus_per_task",
    "num-gpus": "resources.gpus",
    "ngpus": "resources.gpus",
    "num-nodes": "resources.nodes",
    "select": "resources.nodes",
    "project": "resources.account",
    "env": "variables",
    "learning-rate": "train.lr",
    "num-workers": "train.workers",
    "email": "mail.user",
    "mail.on": "mail.type",
    "depends-on": "dependency",
    "after": "dependency",
    "mail.events": "mail.type",
    "log": "output",
    "workdir": "work_dir",
}
"""Names of fields in other systems."""

OWN_OPTIONS = {row.option: row.key for row in ROWS if row.option is not None} | {
    "requeue": "restart.on",
    "no-requeue": "restart.on",
}
"""sbatch's long names that a field of the job stands for."""
PASSED_ON = {row.option for row in ROWS if row.passed and row.option is not None}
"""Those of them that a job asks for as it is written there: a cluster may ask for the same of all its jobs."""
