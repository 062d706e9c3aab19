"""Patterns of log lines: the prefixes of programs, tracebacks, remarks, progress, and complaints."""

from __future__ import annotations

import re

__all__ = [
    "ANY_EXCEPTION", "BOX", "CHAINED", "COMPLAINT", "EXCEPTION", "FRAME", "GROUP_MARGIN", "GROUP_MEMBER",
    "HOST_LABEL", "IGNORED", "KNOWN_PREFIX", "LAUNCHER_CODE", "LIBRARY_CODE", "NOISE", "OF_ANOTHER_PROCESS", "OF_CHILD",
    "OF_RANK", "ON_ONE_LINE", "OTHER_OUTPUT", "PREFIXES", "PROGRESS", "RANKS_IN_NAMES", "REMARK", "TASK_LABEL",
    "TRACEBACK_BEHIND", "VLLM_ERROR",
]  # fmt: skip

PREFIXES = (
    re.compile(r"\[rank(?P<rank>\d+)\]:? ?"),  # torch, of an exception and of its log
    re.compile(r"\[rank (?P<rank>\d+) on (?P<host>[\w.-]+)\] ?"),  # slurmgpu.training
    re.compile(r"\[rank: (?P<rank>\d+)\] ?"),  # Lightning
    re.compile(r"\[(?:[\w.-]+@)?\d+,(?P<rank>\d+)\]<(?:stdout|stderr|stddiag)>: ?"),  # mpirun --tag-output
    # torchrun --tee: role and local rank
    re.compile(r"\[[A-Za-z_]\w*?(?P<local>\d+)(?:\|(?P<rank>\d+))?\]: ?"),
    # Ray's actors, vLLM's processes
    re.compile(
        r"\((?=[^)]*(?:pid|ip)=)[A-Za-z_][\w.:]*(?: [A-Z]+\d+)*(?: rank=(?P<rank>\d+))?(?: pid=\d+)?"
        r"(?:, ip=(?P<host>[\d.]+))?\)(?: |$)"
    ),
)
VLLM_ERROR = re.compile(r"(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w./-]+:\d+\](?: |$)")
TASK_LABEL = re.compile(r" *(?P<rank>\d+): ?")  # srun --label
HOST_LABEL = re.compile(r"(?P<host>[a-z][\w.-]*\d[\w.-]*): ?")  # pdsh, clush
RANKS_IN_NAMES = (
    re.compile(r"^\d+_(?P<rank>\d+)_log\.(?:out|err)$"),  # submitit
    re.compile(r"(?:^|[._-])(?:rank|task|proc)[._-]?(?P<rank>\d+)(?:\D|$)"),
)
KNOWN_PREFIX = re.compile(r"\[(?:rank:? ?)?\d+[\]:]|\[rank\d+\]|\[[A-Za-z_]\w*\d+\]:|(?:Original |Group )$")
# Behind a progress bar, which ends without a newline; a worker's "Original Traceback" is a line of its own.
TRACEBACK_BEHIND = re.compile(
    r"(?:\[(?:rank:? ?)?[\w|,]+(?: on [\w.-]+)?\](?:<std\w+>)?:? ?)*"
    r"(?<!Original )(?<!Group )Traceback \(most recent call last\):?\s*$"
)
# An exception group draws its traceback, and those in it, beside lines: "  | ValueError: one", "  + Exception Group Traceback".
GROUP_MARGIN = re.compile(r" {2,}(?:\| |\+ (?=Exception Group Traceback))")
EXCEPTION = re.compile(
    r"^(?:[a-zA-Z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Warning|Interrupt|Exit|Iteration|Timeout|Expired|Group|NotFound|Failed"
    r"|Killed|Refused|Lost|Stop|Fault|timeout)(?::\s.*|:?)$"
)
# Right below a traceback's frames; elsewhere it may be any line.
ANY_EXCEPTION = re.compile(r"^(?:[a-zA-Z_]\w*\.)*[a-zA-Z_]\w*(?::\s.*|:?)$")
LIBRARY_CODE = re.compile(
    r"(?:site-packages|dist-packages|/lib(?:64)?/python[\d.]+/|<frozen |slurmgpu_training/|slurmgpu/training/|\.p(?:yx|xi)\b)"
)
FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
# mp.spawn's in its own error's message, and torch.distributed.checkpoint's
OF_ANOTHER_PROCESS = re.compile(r"-- Process \d+ terminated with the following error:")
OF_RANK = re.compile(r"Traceback \(most recent call last\): \(RANK (?P<rank>\d+)\)")
GROUP_MEMBER = re.compile(r"\+-[-+]+ \d+ -+")
BOX = tuple("│╭╰┃┏┗|")  # rich, as accelerate prints it
NOISE = re.compile(
    r"^\s*$|^wandb: |"
    r"^\s*\d+%\||\d+%\|.*\||it/s\]|s/it\]|^(?:srun|slurmstepd|mpirun|prterun|torchrun)\b|^slurmgpu: |^\*{3,}|^[=-]{5,}"
    r"|^Set(?:ting)? OMP_NUM_THREADS|^W\d{4} |^I\d{4} |^E(?!0000)\d{4} |^frame #\d|^\S+ FAILED$|sitecustomize"
    r"|Unable to register cu\w+ factory"
    r"|^\[[WIE]\d{3,4} | NCCL INFO |FutureWarning|UserWarning"
    r"|DeprecationWarning|warnings\.warn|^(?:root_|other_)?(?:Failures|NO_OTHER_FAILURES|Root Cause)|^\s*<NO_OTHER_FAILURES>"
    r"|^\[\d+\]:$|^\s+(?:time|host|rank|exitcode|error_file|traceback) *:"
)
# What a launcher raises for a process that failed; its other exceptions are refusals of its own.
OF_CHILD = re.compile(
    r"(?:\w+\.)*(?:ChildFailedError|CalledProcessError|SignalException|ProcessExitedException|SystemExit|KeyboardInterrupt"
    r"|Rendezvous\w+|DistStoreError(?!: Timed out after \d+ seconds waiting for clients))\b"
)
# Frames of a launcher's own: its exception says that a process failed, and no more.
LAUNCHER_CODE = (
    "torch/distributed/run.py",
    "torch/distributed/launcher",
    "accelerate/commands/",
    "deepspeed/launcher",
)
REMARK = re.compile(
    r"\bNCCL INFO\b|^\[[WI] \w+\.cpp:\d+\]|^\s*\[(?:WARNING|INFO)\]|more processes have sent help message"
    r"|^(?:[\d:. -]+: |\S+ )?[WI] \w+/|^(?:DEBUG|INFO|WARN(?:ING)?|NOTE)\b|^\[?[WI]\d{3,4} "
    r"|\b\w*Warning: |^wandb: (?!ERROR)"
    r"|\(sitecustomize\.py, line \d+\)$"  # Python goes on without it
    r"|\b(?:going on|carrying on|continuing|falling back|skipping (?:it|this)|ignoring (?:it|this)|will retry)\b"
    r"|^\S+ +\d\d:\d\d:\d\d[.,\d]* +(?:\S+ +)?(?:DEBUG|INFO|WARN(?:ING)?)\b"
    r"|^\[?\d{4}-\d\d-\d\d[ T][\d:.,]+\]?[ |-]+(?:\S+ [|-] )?\[?(?:DEBUG|INFO|WARN(?:ING)?)\b"
)
PROGRESS = re.compile(
    r"(?i)\b(?:step|epoch|iter(?:ation)?|batch|round|update)s?\b[^\w\n]{0,3}\d|\bloss\b\W{0,3}[\d.]|\d+%\||\bit/s\b|s/it\b"
    r"|\bTrial \d+ finished\b|\b(?:processed|finished|wrote|saved|loaded)\b.{0,60}\b\d+ ?(?:of|/) ?\d+"
)
# A program says so of an exception that it prints and gets over.
IGNORED = re.compile(r"\((?:ignor(?:ed|ing)|skipp(?:ed|ing)|handled|non-fatal)\b")
ON_ONE_LINE = re.compile(
    r"(?:Key|Index|Attribute|Name|ZeroDivision|FileNotFound|Permission|ModuleNotFound)Error: \S"
)
# A JSON record, a time, another process's report, the end of an interpreter: no message goes on with these.
OTHER_OUTPUT = re.compile(
    r"\{\"|\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d|Exception ignored in|Process \S+:$|Exception in thread|During handling|\+[ -]"
    r"|(?:cp|mv|rm|ls|cat|mkdir|rmdir|tar|rsync|grep|sed|chmod|ln|find): |\S+: line \d+: |srun: |slurmstepd: "
)
COMPLAINT = re.compile(
    r"(?i)\b(?:errors?|fatal|fail(?:ed|ures?)|can ?not|can't|could ?n[o']t|unable|not found|no such|denied|invalid|unknown"
    r"|corrupt\w*|refused|timed? ?out|exceeded|no space|killed|panic|critical|missing|lost|busy|stuck|retrying|waiting"
    r"|out of memory|do(?:es)? not exist|assertion"
    r"|nan|not converged|diverged|stopping|giving up|abort\w*|exit(?:ing|ed)?)\b"
)
