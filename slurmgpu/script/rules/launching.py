"""Rules about how processes are started: srun, torchrun, ranks and addresses."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurmgpu.launchers import RENDEZVOUS, TORCHRUN, launch_line, torchrun_processes
from slurmgpu.models.gpu_models import names_a_slice
from slurmgpu.script.rules.base import Hit, View, rule
from slurmgpu.script.rules.calls import Call, expanded
from slurmgpu.script.rules.counting import launcher_numbers
from slurmgpu.script.shell import pieces

_TASK_VARIABLES = {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"}
_RENDEZVOUS = r"--?(?:rdzv[-_]endpoint|master[-_]addr)\b|\bPET_(?:RDZV_ENDPOINT|MASTER_ADDR)="

_PORT = (
    r"(?:(?:MASTER|RDZV|MAIN_PROCESS)_PORT=|--?master[-_]port[= ]|--main_process_port[= ]"
    r"|--?rdzv[-_]endpoint[= ]\S*:)['\"]?(\d{4,5})\b"
)


def _trainings(view: View) -> Iterator[Call]:
    return (call for call in view.calls if call.trains)


def _starts_others(view: View, call: Call) -> bool:
    """Return True if a program is told by its arguments, or says in its text, how it starts processes on other CPUs or nodes."""
    facts = view.facts.python.get(call.script or "")
    if any(word.startswith("$") for word in (call.python or ())[:1]):
        return True  # python $script: who knows
    text = " ".join(call.words[1:])
    told = re.search(r"(?:\A|[\s=])(?:srun|mpirun|mpiexec|--hosts?|--hostfile|scoop)\b", text) is not None
    return told or (facts is not None and facts.launches)


def _tasks_on_a_node(view: View, call: Call) -> int | None:
    """Return how many tasks of an srun run on a node; None where it does not follow from the options."""
    options = call.srun or {}
    if "ntasks-per-node" in options and ("ntasks" in options or not view.asked.sets_tasks):
        own = options["ntasks-per-node"] or ""
        return int(own) if own.isdigit() else None
    if {"ntasks", "nodes"} & set(options) or call.open_options:
        tasks, nodes = options.get("ntasks") or "", options.get("nodes") or ""
        if "nodes" not in options and view.asked.nodes == 1 and not call.open_options:
            nodes = "1"
        if tasks.isdigit() and (nodes.isdigit() or tasks == "1"):
            return int(tasks) // int(nodes or 1)
        return None
    return view.asked.tasks_per_node


def _stays_here(call: Call) -> bool:
    """Return True if a launcher starts its processes on its own node alone: deepspeed and ray may reach others."""
    own = call.torchrun is not None or "accelerate" in {word.rsplit("/", 1)[-1] for word in call.words}
    return own and not re.search(r"hostfile|multinode_launcher", " ".join(call.words))


@rule("warning")
def nodes_unused(view: View) -> Iterator[Hit]:
    """Several nodes, and nothing starts a process on the others."""
    nodes = view.asked.nodes
    if view.script.components > 1 or not nodes or nodes < 2 or not view.sure:
        return
    if (view.asked.number("ntasks") or nodes) < nodes:
        return  # Slurm gives fewer nodes then
    for call in _trainings(view):
        if any(one.srun is not None or (one.by_launcher and not _stays_here(one)) for one in view.calls):
            return
        if _starts_others(view, call):
            return
        facts = view.facts.python.get(call.script or "")
        program = "torchrun" if facts and facts.distributed else call.name
        tasks = view.asked.tasks_per_node or 1
        yield Hit(
            call.line,
            f"the batch script runs on the first of {nodes} nodes only, and so does this command",
            f"write srun before it, which starts the {tasks} tasks of each node: srun {call.name} ..."
            if tasks > 1
            else f"start one on each node: srun --ntasks=$SLURM_NNODES --ntasks-per-node=1 {program} ...",
        )
        return


@rule("hint")
def tasks_unused(view: View) -> Iterator[Hit]:
    """Several tasks, and no srun that starts them."""
    tasks = view.asked.tasks
    if view.script.components > 1 or not tasks or tasks < 2 or (view.asked.nodes or 1) > 1:
        return
    if not view.sure or view.launches:
        return
    for call in _trainings(view):
        if _starts_others(view, call) or call.simple.ender == "&":
            return
        yield Hit(
            call.line,
            f"{tasks} tasks are asked for, and this command starts 1 process: srun and mpirun start tasks",
            "write srun before it; or ask for --ntasks=1 and --cpus-per-task, if CPUs are what you want",
            "warning" if tasks == view.asked.gpus_per_node else None,  # else CPUs are often meant by it
        )
        return


@rule("hint")
def srun_cpus(view: View) -> Iterator[Hit]:
    """srun without --cpus-per-task: from 22.05 to 23.02 it does not take the job's."""
    cpus = view.asked.number("cpus-per-task")
    if view.script.components > 1 or not cpus or cpus < 2 or "SRUN_CPUS_PER_TASK" in view.body:
        return
    for call in _trainings(view):
        if (
            call.srun is None
            or call.open_options
            or {"cpus-per-task", "exact", "cpus-per-gpu"} & set(call.srun)
        ):
            continue
        yield Hit(
            call.line,
            f"from Slurm 22.05 to 23.02 srun does not take the job's --cpus-per-task={cpus}: each task gets 1 CPU",
            "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK before it",
        )
        return


@rule("error")
def rank_too_early(view: View) -> Iterator[Hit]:
    """$SLURM_PROCID is expanded by the batch shell, where it is always 0."""
    sizes = {"nodes", "ntasks", "ntasks-per-node"}
    if view.asked.tasks == 1 and not any(sizes & set(call.srun or ()) for call in view.calls):
        return  # the one task is number 0
    for call in view.calls:
        if call.srun is None or call.nested:
            continue
        raw = call.simple.raw
        if re.search(r"rdzv[-_]backend[= ]c10d", " ".join(raw)):  # it gives the ranks itself
            of_rank = r"--?node[-_]rank(?:[= ]\S+)?"
            told = {at for at, word in enumerate(raw) if re.fullmatch(of_rank, word)}
            raw = tuple(re.sub(of_rank, "", word) for at, word in enumerate(raw) if not {at, at - 1} & told)
        early = sorted(set().union(*(expanded(word) for word in raw)) & _TASK_VARIABLES)
        if early:
            yield Hit(
                call.line,
                f"${early[0]} is expanded before srun starts anything: every task gets the batch shell's value, 0",
                f"let the task's own shell expand it: srun bash -c '... ${early[0]} ...'",
            )
    yield from _exported_ranks(view)
    yield from _ranks_in_text(view)


def _ranks_in_text(view: View) -> Iterator[Hit]:
    """A rank's option in a variable, an array or a here-document, which the batch shell has expanded before srun uses it."""
    lines = view.script.lines
    ends, started = "", False
    for number, text in view.body_lines:
        ends = "" if text.strip() == ends else ends
        opened = re.search(r"(?<![<(])<<-?\s*([A-Za-z_]\w*)(?!.*\)\))", text)
        option = "" if ends and started else r"rank[= ]+\"?"
        early = re.search(rf"{option}(?<!\\)\$\{{?(SLURM_(?:PROCID|LOCALID|NODEID))\b", text)
        rest = "\n".join(lines[number:]).replace("\\\n", " ") if early or opened else ""
        if early and not re.search(r"rdzv[-_]backend[= ]c10d", view.body):
            set_here = re.match(r"\s*(?:export\s+|declare\s+\S+\s+)?([A-Za-z_]\w*)\+?=[\"(]", text)
            name = set_here[1] if set_here else ""
            if (ends and (started or re.search(r"\bsrun\b", rest))) or (
                name and re.search(rf"\bsrun\b.*\$\{{?{name}\b", rest)
            ):
                yield Hit(
                    number,
                    f"${early[1]} is expanded here, by the batch shell, and not in the task: it is 0 for all of them",
                    f"write it in the task: \\${early[1]} in a here-document, or srun bash -c '... ${early[1]} ...'",
                )
                return
        if opened:
            ends, file = opened[1], re.search(r"(?:>|\btee\s+-?a?)\s*[\"']?(?:[^\s\"']*/)?([^\s\"'/]+)", text)
            of_one = r"(?!.*(?:\s-n\s*|--ntasks[= ])1\b)"
            run = rf"(?m)^[^#\n]*\bsrun\b{of_one}.*[\s/\"']{re.escape(file[1])}(?![\w.])" if file else ""
            of_srun = re.search(run or rf"\bsrun\b{of_one}", rest if run else text)
            started = of_srun is not None and (view.asked.tasks or 2) > 1


_MEETS = r"(?:rdzv[-_](?:id|endpoint|conf)|(?:master|main[-_]process)[-_](?:port|addr|ip)|(?<![-\w])port)"
_RANDOM = r"(?:=|\s+)[\"']?[^\s\"';]*?(?:\$\{?RANDOM\b|\$\(\([^)]*\bRANDOM\b|\$\(shuf\s)"
_TOGETHER = r"SLURM_(?:PROCID|NTASKS|NPROCS)\b|--?(?:nnodes|num[-_]machines)[= ](?!1\b)"
_EARLY = r"\$(?:\(\(.*?\)\)|\([^()]*\)|\{?\w+\}?)"


@rule("error")
def random_in_each_task(view: View) -> Iterator[Hit]:
    """$RANDOM within the tasks: each of them draws another number, and they do not meet."""
    training = {id(one.srun) for one in view.calls if one.trains}
    for call in view.calls:
        if call.srun is None or call.nested or call.srun.get("ntasks") == "1":
            continue
        parts = [part for raw in call.simple.raw for part in (*pieces(raw), ("'", " "))]
        text = "".join(part if quote in ("'", "\\") else re.sub(_EARLY, "", part) for quote, part in parts)
        text += "\n" + view.shells.get(call.shell_script, "")
        if (
            id(call.srun) in training
            and re.search(_MEETS + _RANDOM, text, re.IGNORECASE)
            and re.search(_TOGETHER, text)
        ):
            yield Hit(
                call.line,
                "$RANDOM is another number in each task, so that the processes do not meet",
                "take what all tasks know: $SLURM_JOB_ID, or a variable that is set before srun",
            )


def _exported_ranks(view: View) -> Iterator[Hit]:
    """``export RANK=$SLURM_PROCID`` in the batch shell, and tasks that inherit it; torchrun sets its own."""
    tasks = [call for call in view.calls if call.srun is not None and call.python and call.torchrun is None]
    if not tasks or any(call.nested for call in tasks) or (view.asked.tasks or 1) < 2:
        return
    for simple in view.simple:
        words = (*simple.assignments, *(simple.raw[1:] if simple.name == "export" else ()))
        for word in words:
            rank = word.partition("=")[0]
            early = sorted(expanded(word) & _TASK_VARIABLES)
            if rank in {"RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "MACHINE_RANK"} and early:
                yield Hit(
                    simple.line,
                    f"{rank} gets ${early[0]} of the batch shell, 0, and srun hands it to every task",
                    f"set it within the task: srun bash -c 'export {rank}=${early[0]}; ...'",
                )


@rule("warning")
def fixed_port(view: View) -> Iterator[Hit]:
    """A fixed MASTER_PORT: two jobs on a node take each other's."""
    if "exclusive" in view.asked.options:
        return
    for number, text in view.body_lines:
        match = re.search(_PORT, text)
        if match:
            # Whole nodes are common where several are asked for, or eight GPUs.
            whole = (view.asked.nodes or 1) > 1 or (view.asked.gpus_per_node or 0) > 7
            yield Hit(
                number,
                f"port {match[1]} is fixed: a second job on the same node cannot have it, too",
                "derive it from the job: export MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))",
                "hint" if whole or match[1] != "29500" else None,
            )
            return


@rule("error")
def loopback_address(view: View) -> Iterator[Hit]:
    """MASTER_ADDR is the own machine, and the job has several nodes."""
    if (view.asked.nodes or 1) < 2:
        return
    code = "\n".join(text for _, text in view.body_lines)
    if view.calls and not re.search(r"\b(?:srun|mpirun|mpiexec|ssh|pdsh|clush)\b", code):
        return  # nothing leaves the first node
    local = r"['\"]?(localhost|127\.0\.0\.1|0\.0\.0\.0)\b"
    texts = [(number, rf"(?:MASTER_ADDR=|{_ENDPOINT}[= ]){local}", text) for number, text in view.body_lines]
    calls = (call for call in view.calls if call.srun is not None)  # a variable of another name, expanded
    texts += [(call.line, rf"{_ENDPOINT}[= ]{local}", " ".join(call.words)) for call in calls]
    for line, pattern, text in texts:
        if (match := re.search(pattern, text)) and not _stays_on_a_node(view, line):
            yield Hit(
                line,
                f"{match[1]} is another machine on each node: the ranks never meet",
                'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            )
            return


_ENDPOINT = r"--?(?:master[-_]addr|rdzv[-_]endpoint|main_process_ip)"


def _stays_on_a_node(view: View, line: int) -> bool:
    """Return True if the srun that follows a line starts its tasks on one node: steps side by side, each on its own."""
    following = next((call for call in view.calls if call.srun is not None and call.line >= line), None)
    return following is not None and (following.srun or {}).get("nodes") == "1"


@rule("warning")
def address_by_hostname(view: View) -> Iterator[Hit]:
    """The processes meet at what `hostname -i` or `hostname -I` prints: often 127.0.1.1, or several addresses."""
    for simple in view.simple:
        for word in (*simple.assignments, *simple.raw):
            asked = re.search(r"\bhostname\s+(-i|--ip-address|-I|--all-ip-addresses)(?![\w-])", word)
            if asked is None or not _is_meeting_point(view, word):
                continue
            several = asked[1] in {"-I", "--all-ip-addresses"}
            if several and re.search(r"\|\s*(?:awk|cut|head|sed|tr|grep)\b", word[asked.end() :]):
                continue  # one of them is picked
            if not several and ((view.asked.nodes or 1) < 2 or "SOCKET_IFNAME" in view.script.text):
                continue  # a node reaches itself under any of its addresses, and who names the interface knows them
            prints = (
                "prints all addresses of a node, with blanks between them, and one is needed"
                if several
                else "prints 127.0.1.1 where /etc/hosts has the node's own name (Debian, Ubuntu), and may print several"
            )
            yield Hit(
                simple.line,
                f"hostname {asked[1]} {prints}",
                'use the name: MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            )
            return


def _is_meeting_point(view: View, word: str) -> bool:
    """Return True if a word, or the variable that it sets, is where torch's processes meet."""
    if re.search(rf"\A(?:MASTER_ADDR=|{_RENDEZVOUS})", word):
        return True
    name = re.match(r"([A-Za-z_]\w*)=", word)
    used = (
        rf"(?m)^(?!\s*#).*(?:{_RENDEZVOUS}|\bMASTER_ADDR=|--main_process_ip\b).*\$\{{?{name[1]}\b"
        if name
        else None
    )
    return used is not None and re.search(used, view.script.text.replace("\\\n", " ")) is not None


@rule("error")
def no_rendezvous(view: View) -> Iterator[Hit]:
    """torchrun over several nodes without an address where its processes meet."""
    nodes = view.asked.nodes
    if view.script.components > 1 or not nodes or nodes < 2:
        return
    if re.search(_RENDEZVOUS, "\n".join((view.script.text, *view.shells.values()))):
        yield from _static_without_rank(view)
        return
    for call in view.calls:
        if call.torchrun is None:
            continue
        before_script = call.words[call.torchrun :]
        if any(re.match(r"\$[\w{]", word) for word in before_script[:-1] if not word.startswith("-")):
            return  # options may stand in a variable that we cannot follow
        if call.srun is not None or re.search(r"--?nnodes", " ".join(before_script)):
            yield Hit(
                call.line,
                f"{nodes} nodes, and torchrun has no --rdzv-endpoint: each node trains for itself, or waits for ever",
                f"with srun, add --nnodes=$SLURM_NNODES {RENDEZVOUS}",
            )
            return


def _static_without_rank(view: View) -> Iterator[Hit]:
    """torchrun's own rendezvous is static, and there each node must be told its number (torch/distributed/run.py)."""
    texts = "\n".join((view.script.text, *view.shells.values()))
    if re.search(r"rdzv[-_]backend|RDZV_BACKEND|node[-_]rank|NODE_RANK", texts):
        return
    for call in view.calls:
        if call.torchrun is None or call.srun is None or call.srun.get("nodes") == "1":
            continue
        line, hidden = TORCHRUN.read_unexpanded(call.words, call.torchrun)
        if hidden or "standalone" in line.given or line.given.get("nnodes") == "1":
            continue  # options may stand in a variable that we cannot follow
        yield Hit(
            call.line,
            "without --rdzv-backend=c10d torchrun's rendezvous is static, and every node is node 0: --node-rank is missing",
            f"add {RENDEZVOUS}",
        )
        return


@rule("error")
def address_never_set(view: View) -> Iterator[Hit]:
    """MASTER_ADDR is used, and nothing sets it."""
    if view.script.components > 1 or (view.asked.nodes or 1) < 2:
        return
    yield from _not_exported(view)
    uses = re.compile(r"(?:endpoint|master[-_]addr|main_process_ip)[= ]\S*\$\{?MASTER_ADDR\b(?!:-)")
    used = next((number for number, text in view.body_lines if uses.search(text)), None)
    sets = [
        word
        for simple in view.simple
        for word in (*simple.assignments, *simple.raw)
        if word.startswith("MASTER_ADDR=")
    ]
    others = [word for word in sets if "MASTER_ADDR" not in expanded(word.partition("=")[2])]
    sources = any(simple.name in {"source", ".", "eval"} for simple in view.simple)
    if used and not others and not sources and "read MASTER_ADDR" not in view.body:
        yield Hit(
            used,
            "MASTER_ADDR is used here, and nothing in the script sets it",
            'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        )


def _not_exported(view: View) -> Iterator[Hit]:
    """MASTER_ADDR is set for the batch shell alone, which does nothing with it, and srun starts Python without it."""
    starts = any(call.srun is not None and call.python and call.torchrun is None for call in view.calls)
    lines = (line for line in view.body.splitlines() if not re.match(r"\s*(?:#|echo\b|printf\b)", line))
    handed_on = r"(?:export|declare|typeset|--export)\b[^\n]*\bMASTER_ADDR\b|\bset -\w*a|allexport|\$\{?MASTER_ADDR|env "
    if not starts or re.search(handed_on, "\n".join(lines)):
        return
    for simple in view.simple:
        if not simple.words and any(word.startswith("MASTER_ADDR=") for word in simple.assignments):
            yield Hit(
                simple.line,
                "MASTER_ADDR is not exported: the processes that srun starts do not see it",
                "write export MASTER_ADDR=...; MASTER_PORT needs it, too",
            )
            return


@rule("warning")
def torchrun_in_each_task(view: View) -> Iterator[Hit]:
    """torchrun, accelerate, deepspeed or composer in every task of a node: each of them starts all processes."""
    for call in view.calls:
        numbers = launcher_numbers(view, call)
        if numbers is None or call.srun is None or view.script.components > 1:
            continue
        if call.nested and re.search(r"(?:\[|\btest|\bcase|\(\()[^\n]*SLURM_(?:LOCALID|PROCID)", view.body):
            continue  # perhaps in one of the tasks alone
        tasks = _tasks_on_a_node(view, call)
        processes = str(numbers.processes[0]) if numbers.processes else torchrun_processes(call.words)
        if _one_for_each_gpu(call) and not re.search(r"gpus?-per-task|gpu-bind|_DEVICES", view.script.text):
            processes = str(view.asked.gpus_per_node or 1)
        if tasks and tasks > 1 and processes and processes != "1":
            yield Hit(
                call.line,
                f"srun starts {numbers.name} {tasks} times on each node, and each starts {processes} processes",
                f"start it once on each node: #SBATCH --ntasks-per-node=1, and srun {numbers.name} ...",
            )


@rule("warning")
def spawns_itself(view: View) -> Iterator[Hit]:
    """torchrun or srun around a script that starts its own processes, or uses all GPUs from one."""
    for call in view.calls:
        script = call.script
        if script is None or script not in view.facts.python:
            continue
        words = " ".join((*call.words, *call.simple.raw))
        if re.search(r"SLURM_(?:PROCID|LOCALID|NODEID)\b", words):
            continue  # each process is told to do another share
        several = call.srun is not None and (_tasks_on_a_node(view, call) or 1) > 1
        several |= call.torchrun is not None and (torchrun_processes(call.words) or "1") != "1"
        facts = view.facts.python[script]
        told = facts.spawns and view.sets("WORLD_SIZE")  # by which some choose between their ways
        if several and facts.one_process and not told:
            what, line = facts.one_process
            does = "starts its own processes" if facts.spawns else "uses all GPUs by itself"
            yield Hit(
                call.line,
                f"{script} {does} ({what}, line {line}), once in each that is started here",
                "start it plainly: python " + script,
            )
        elif several and facts.trains_alone:
            yield Hit(
                call.line,
                f"nothing in {script} looks distributed: each process trains the same thing",
                "wrap the model in DistributedDataParallel, or start one process",
            )


@rule("hint")
def one_process(view: View) -> Iterator[Hit]:
    """Several GPUs of a node and one Python process there, started as it is or by srun."""
    gpus = view.asked.gpus_per_node
    if view.script.components > 1 or not gpus or gpus < 2 or not view.sure:
        return
    # Each of several sruns may be a process of its own, beside the others.
    sruns = [call for call in view.calls if call.srun is not None]
    beside = any(call.trains and call.simple.ender == "&" for call in view.calls)
    if any(call.by_launcher for call in view.calls) or len(sruns) > 1 or beside:
        return
    if sruns and (sruns[0].nested or sruns[0].simple.ender == "&" or not _one_on_a_node(view, sruns[0])):
        return
    if sruns and {"gres", "gpus", "gpus-per-node", "gpus-per-task"} & set(sruns[0].srun or ()):
        return  # it says itself which it uses
    for call in _trainings(view):
        facts = view.facts.python.get(call.script or "")
        if facts is not None and (facts.one_process or facts.framework or facts.joins or facts.idle):
            return
        if facts is not None and (facts.launches or (facts.distributed and call.srun is None)):
            return
        unused = facts is not None and facts.parsed and not facts.trains_elsewhere
        yield Hit(
            call.line,
            f"one process{' on each node' if (view.asked.nodes or 1) > 1 else ''}, and {gpus} GPUs"
            + (
                f": nothing in {call.script} uses more than one"
                if unused
                else ": it uses one of them, unless the program starts more processes"
            ),
            f"torchrun --standalone --nproc-per-node={gpus} {call.script or 'SCRIPT'}, or ask for 1 GPU"
            if call.srun is None
            else f"ask for --ntasks-per-node={gpus}, a process for each GPU, or for 1 GPU",
            "warning" if unused else None,
        )
        return


def _one_on_a_node(view: View, call: Call) -> bool:
    """Return True if an srun starts one task on each node, as it does where no number is given."""
    said = any(name.startswith("ntasks") for name in (*view.asked.options, *(call.srun or ())))
    return _tasks_on_a_node(view, call) == 1 if said else not call.open_options


@rule("hint")
def gpus_hidden(view: View) -> Iterator[Hit]:
    """--gpus-per-task hides the tasks' GPUs from each other, which NCCL needs to see."""
    asked = view.asked
    if view.script.components > 1 or "gpus-per-task" not in asked.options or (asked.tasks_per_node or 1) < 2:
        return
    told = f"{asked.value('gres-flags') or ''} {asked.value('gpu-bind') or ''}"
    if re.search(r"allow-task-sharing|none", told):
        return
    for call in _trainings(view):
        options = " ".join(f"{name}={value}" for name, value in (call.srun or {}).items())
        if call.srun is None or call.open_options or re.search(r"allow-task-sharing|gpu-bind=none", options):
            continue
        yield Hit(
            asked.line("gpus-per-task"),
            "each task sees its own GPU only: NCCL cannot copy between them directly, and LOCAL_RANK is not a device number",
            "ask for --gpus-per-node and --ntasks-per-node, and choose the device by LOCAL_RANK",
        )
        return


@rule("error")
def gpu_slices(view: View) -> Iterator[Hit]:
    """Several processes of one training on slices of GPUs (MIG), which cannot work together."""
    asked = view.asked
    kinds = _slices(view)
    if view.script.components > 1 or not kinds or (asked.gpus_per_node or 0) < 2:
        return
    for call in _trainings(view):
        processes = _processes_on_a_node(view, call)
        facts = view.facts.python.get(call.script or "")
        ours = "entrypoint=slurmgpu_training" in view.body and "-m" in call.words
        joins = launcher_numbers(view, call) is not None
        sure = joins or ours or bool(facts and (facts.distributed or facts.framework))
        if (
            facts is not None and facts.spawns and not processes
        ):  # as many as it finds GPUs: one slice, or more
            processes, sure = f"{call.script}'s own", False
        if processes and (sure or facts is None or facts.spawns):
            yield Hit(
                asked.line(*asked.gpu_options),
                f"{processes} processes share slices of GPUs ({', '.join(sorted(kinds))}): a CUDA process sees one "
                "slice, and NCCL does not join slices of a GPU",
                "ask for whole GPUs; or for 1 slice and 1 process, in a job array for several of them",
                None if sure and "gpus-per-task" not in asked.options else "warning",
            )
            return


def _slices(view: View) -> set[str]:
    """Return the types of GPU that the job gets, where all of them are slices."""
    kinds = view.asked.gpu_types
    cluster = view.facts.cluster
    if not kinds and cluster is not None and cluster.known:
        names = (view.asked.value("partition") or cluster.default_partition or "").split(",")
        groups = [
            group for name in names if name in cluster.partitions for group in cluster.partitions[name].kinds
        ]
        kinds = {group.gpu_type or "" for group in groups if group.gpu_count != 0}
    if cluster is not None:
        known = cluster.gpu_types
        kinds = {(known[kind].gres if kind in known else None) or kind for kind in kinds}
    return kinds if kinds and all(map(names_a_slice, kinds)) else set()


def _processes_on_a_node(view: View, call: Call) -> str | None:
    """Return how many processes of one training a command starts on a node, as text; None: one, or it cannot be told."""
    numbers = launcher_numbers(view, call)
    if numbers is not None and numbers.processes is not None:
        count = numbers.processes[0]
        return str(count) if count > 1 else None
    if call.torchrun is not None:
        return None if (torchrun_processes(call.words) or "1") == "1" else "several"
    if _one_for_each_gpu(call):
        gpus = view.asked.gpus_per_node or 0
        return str(gpus) if gpus > 1 else None
    tasks = _tasks_on_a_node(view, call) if call.srun is not None else None
    return str(tasks) if tasks and tasks > 1 else None


def _one_for_each_gpu(call: Call) -> bool:
    """Return True if it starts one process for each GPU that it finds: deepspeed, not told how many to use, nor which."""
    launch = launch_line(call.words)
    return launch is not None and launch.launcher.one_for_each_gpu(launch.line.given)
