"""Why Slurm refuses a submission, in plain words, and what to do next. Slurm's own text is shown, too."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Advice", "advise"]


@dataclass(frozen=True)
class Advice:
    """What a refusal means, and the next act."""

    meaning: str
    act: str


# (what Slurm writes, what it means, what to do). The first that is found counts: particular before general.
_TABLE = [
    (
        r"Invalid accounting frequency|Invalid --acctg-freq",
        "Slurm is asked to look at the job's use less often than this cluster does, or the interval cannot be read",
        "Look up the cluster's interval with: scontrol show config | grep JobAcctGatherFrequency  then give a shorter "
        "acctg-freq: (--acctg-freq=task=SECONDS), or leave it out",
    ),
    (
        r"Invalid account",
        "this account is not yours on this cluster, or may not use this partition",
        "List yours: sacctmgr show assoc user=$USER format=account,partition,qos  Then give account: (-A)",
    ),
    (
        r"[Ii]nvalid partition",
        "the cluster has no partition of this name",
        "List them with: sinfo -s  then give partition: (-p)",
    ),
    (
        r"User's group not permitted|not allowed to use this partition|Access denied to .*partition",
        "this partition is not open to you or your account",
        "Choose another partition (sinfo -s), or ask the site for access",
    ),
    (
        r"Required partition not available|partition configuration not available now",
        "the partition is closed or drained at the moment",
        "Choose another partition (sinfo -s), or wait",
    ),
    (
        r"Invalid qos",
        "this QOS does not exist, or is not yours with this account and partition",
        "List yours: sacctmgr show assoc user=$USER format=account,partition,qos  Then give qos: (-q)",
    ),
    (
        r"[Ii]nvalid (?:generic resource|gres)|Invalid GRES|Invalid Trackable RESource",
        "the cluster knows no such resource (a GPU type, or the spelling of the request)",
        "List what the nodes have with: sinfo -o '%P %G'  then give gpu_type: or gres:",
    ),
    (
        r"Invalid --time|Requested time limit is invalid|time limit exceeds|Time limit",
        "the time limit cannot be read, is missing, or is longer than this partition or QOS allows",
        "Look up the limits with: sinfo -o '%P %l'  then give time: (-t), such as 4:00:00 or 1-00:00:00",
    ),
    (
        r"Invalid --mem|mutually exclusive.*mem|--mem.*mutually exclusive",
        "the memory request cannot be read, or is asked for in two ways",
        "Give one of mem, mem-per-cpu and mem-per-gpu, as whole M or G (1536G, not 1.5T)",
    ),
    (
        r"Memory specification can not be satisfied|Memory required by task is not available",
        "no node of this partition has that much memory",
        "Ask for less memory, or for more nodes; sinfo -o '%P %m' shows the nodes' memory in MB",
    ),
    (
        r"Invalid feature",
        "no node has this feature",
        "List the features with: sinfo -o '%P %f'  then give constraint: (-C)",
    ),
    (
        r"reservation is invalid|Access denied to requested reservation|reservation",
        "this reservation does not exist, has ended, or is not yours",
        "List them with: scontrol show reservation",
    ),
    (
        r"[Dd]ependency",
        "the dependency cannot be read, or names a job that does not exist",
        "Write it as afterok:JOBID, and check the id with: slurmgpu status JOBID",
    ),
    (
        r"Invalid job array",
        "the array's indices cannot be read, or the largest is beyond the cluster's limit",
        "Look up the limit with: scontrol show config | grep MaxArraySize",
    ),
    (
        r"Invalid node name",
        "the node list names a node that this cluster does not have",
        "List the nodes with: sinfo -N",
    ),
    (r"Invalid license", "the cluster has no such licence", "List them with: scontrol show licenses"),
    (
        r"QOS ?[Mm]ax|MaxSubmit|job submit limit|accounting/QOS policy|AssocMax|AssocGrp",
        "a limit of your account or QOS holds this job back: jobs at a time, size, or time",
        "Ask for less, or wait until others of your jobs have ended; "
        "sacctmgr show qos format=name,maxwall,maxtrespu,maxsubmitpu shows the limits",
    ),
    (
        r"More processors requested|CPU count per node can not be satisfied|Node count specification",
        "no node of this partition has that many CPUs, or the partition allows fewer nodes",
        "Ask for fewer CPUs or nodes; sinfo -o '%P %D %c' shows nodes and CPUs per node",
    ),
    (
        r"Requested node configuration is not available",
        "no node of this partition could ever run this: GPUs per node, GPU type, CPUs or memory do not fit",
        "See what the nodes have: sinfo -o '%P %D %G %c %m'  and what the job asks for: slurmgpu plan",
    ),
    (
        r"DOS line breaks",
        "the script was saved with Windows line ends",
        "Convert it with: dos2unix SCRIPT  (or sed -i 's/\\r$//' SCRIPT)",
    ),
    (
        r"does not look like a batch script|Batch script is empty",
        "the script has no first line such as #!/bin/bash",
        "Add the line #!/bin/bash as the very first",
    ),
    (r"Unable to open file", "sbatch cannot read the script", "Check its path and its permissions"),
    (
        r"unrecognized option|[Ii]nvalid (?:option|directive)|Invalid --|Invalid numeric value|ambiguous",
        "sbatch does not know this option, or cannot read its value",
        "Look it up in: man sbatch  (sbatch --version says which release this cluster runs)",
    ),
    (
        r"Pathname of a file, directory or other parameter too long",
        "a path or another value is longer than Slurm takes (a comment: 1024 bytes)",
        "Shorten it",
    ),
    (
        r"Access/permission denied|Invalid user id",
        "the controller does not let you submit: an expired account, or a user it does not know",
        "Ask the site's support, with the text above",
    ),
    (
        r"Unspecified error|job_submit|lua:|cli_filter",
        "the site's own rules (a submit plugin) refuse this job; the text above may say why",
        "Follow that text, or look up the site's documentation on what a job must and must not ask for",
    ),
]
_COMPILED = [(re.compile(pattern, re.DOTALL), Advice(meaning, act)) for pattern, meaning, act in _TABLE]


def advise(text: str) -> Advice | None:
    """Return what a refusal means and what to do; None for a text that is not known."""
    return next((advice for pattern, advice in _COMPILED if pattern.search(text)), None)
