"""Rules about the software environment, variables and secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from slurmgpu.errors import nearest
from slurmgpu.lines.container import PROGRAMS, read_container
from slurmgpu.script.known_names import FORMER, READ, in_address, is_known_key, looks_random, names_secret
from slurmgpu.script.rules.base import Hit, View, is_placeholder, rule
from slurmgpu.script.rules.calls import expanded
from slurmgpu.script.shell import SETS_UP, Simple, pieces

# One of these stands in every line in which a secret is found: most scripts have none, and need no pattern.
_OF_SECRETS = ("_KEY=", "APIKEY=", "TOKEN=", "SECRET=", "PASSWORD=", "PASSWD=", "_PAT=", "wandb login", "hf_", "sk-",
               "AKIA", "xox", "glpat-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "://")  # fmt: skip
# What may define conda's function, when it is loaded or sourced.
_MAY_DEFINE_CONDA = SETS_UP | {"conda_setup", "__conda_setup"}


@rule("warning")
def source_activate(view: View) -> Iterator[Hit]:
    """`source activate` is conda's way of old, and misses in many installations."""
    by_module = False
    for simple in view.simple:
        by_module |= any(re.search(r"(?i)conda|mamba|forge|python", name) for name in _loaded(simple))
        by_module |= any(word.startswith("PATH=") for word in (*simple.assignments, *simple.raw[1:]))
        by_module |= simple.name in {"source", ".", "eval", "spack"} and simple.words[1:2] != ("activate",)
        if simple.name in {"source", "."} and simple.words[1:2] == ("activate",):
            name = simple.words[2] if len(simple.words) > 2 else "NAME"
            yield Hit(
                simple.line,
                "`source activate` works only where conda's own folder is on PATH, and conda has replaced it by `conda activate`",
                f'eval "$(conda shell.bash hook)" and then: conda activate {name}',
                "hint" if by_module else None,  # its folder may well be there
            )


@rule("warning")
def conda_not_ready(view: View) -> Iterator[Hit]:
    """`conda activate` in a shell that has no conda function."""
    if " -" in (view.script.shebang or "") and re.search(
        r"\s-(\w*[li]\w*)\b|--login", view.script.shebang or ""
    ):
        return
    for simple in view.simple:
        if simple.name in _MAY_DEFINE_CONDA or (
            simple.name == "bash" and simple.words[1:2] and simple.words[1].startswith("-")
        ):
            return  # (`bash FILE` defines nothing here)
        if simple.name == "conda" and simple.words[1:2] == ("activate",):
            yield Hit(
                simple.line,
                "a batch shell does not read ~/.bashrc, so there is no `conda activate` yet",
                'put eval "$(conda shell.bash hook)" before it',
            )
            return


@rule("hint")
def module_in_sh(view: View) -> Iterator[Hit]:
    """`module` in a #!/bin/sh script: the function does not come over."""
    if view.script.interpreter not in {"sh", "dash"}:
        return
    for simple in view.simple:
        if simple.name in {"source", ".", "eval"}:
            return
        if simple.name in {"module", "ml"}:
            yield Hit(
                simple.line,
                "`module` is a function of bash, which sh does not inherit where it is another shell, as on Debian",
                "start the script with #!/bin/bash",
            )
            return


@rule("warning")
def unknown_module(view: View) -> Iterator[Hit]:
    """A module that this machine does not have."""
    known = view.facts.modules
    if not known or re.search(r"\b(?:module|ml)\s+(?:--\S+\s+)*use\b|\bMODULEPATH\b", view.body):
        return
    for simple in view.simple:
        if simple.name in {"source", ".", "eval"}:
            return  # which may know further folders of modules
        for name in _loaded(simple):
            if re.search(r"[$`*]", name) or is_placeholder(name):
                continue
            if any(one.startswith(name) for one in known):
                continue  # Lmod takes the beginning of a version, too
            near = nearest(name, known, cutoff=0.75)
            yield Hit(
                simple.line,
                f"there is no module {name!r} on this machine",
                f"did you mean {near}?"
                if near
                else f"`module avail {name.partition('/')[0]}` lists what is here; "
                "compute nodes may have other modules",
            )


def _loaded(simple: Simple) -> tuple[str, ...]:
    words = tuple(word for word in simple.words[1:] if not word.startswith("-"))
    if simple.name == "module" and words[:1] in {("load",), ("add",), ("switch",), ("swap",)}:
        return words[-1:] if words[0] in {"switch", "swap"} else words[1:]
    return (words[1:] if words[:1] == ("load",) else words) if simple.name == "ml" else ()


# What dash, the sh of Debian and Ubuntu, does not have: a pattern of a word as written, and what it is called.
_OF_BASH = tuple((re.compile(pattern), name) for pattern, name in (
    (r"\[\[(?:\s|\Z)", "[[ ]]"),
    (r"\(\(", "(( ))"),
    (r"[A-Za-z_]\w*\+?=\(", "arrays"),
    (r"[^']*\$\{[A-Za-z_]\w*\[", "arrays"),
    (r"[^']*\$\{[A-Za-z_]\w*(?:/|:\d)", "${name/a/b} and ${name:1}"),
    (r"<<<\Z", "<<<"),
    (r"&>>?\Z", "&>"),
    (r"[<>]\(", "<( )"),
))  # fmt: skip


@rule("hint")
def bash_in_sh(view: View) -> Iterator[Hit]:
    """Something that only bash understands, in a #!/bin/sh script."""
    if view.script.interpreter not in {"sh", "dash"}:
        return
    found: dict[str, int] = {}
    for command in view.script.commands():
        for word, line in zip(command.words or (), command.word_lines, strict=False):
            for pattern, name in _OF_BASH:
                if pattern.match(word):
                    found.setdefault(name, line)
    for simple in view.simple:
        if simple.name in {"source", "function", "shopt"} or simple.words[:3] == ("set", "-o", "pipefail"):
            found.setdefault("pipefail" if simple.name == "set" else simple.name, simple.line)
    if found:
        yield Hit(
            min(found.values()),
            f"{', '.join(sorted(found, key=lambda name: found[name]))}: sh is dash on Debian and Ubuntu, which has no such "
            "thing: there the script fails, or goes on without it",
            "start the script with #!/bin/bash",
            "error" if view.script.interpreter == "dash" else None,
        )


@rule("warning")
def secret_in_script(view: View) -> Iterator[Hit]:
    """A key or password stands in the script."""
    for number, text in enumerate(view.script.lines, 1):
        if not any(part in text for part in _OF_SECRETS):
            continue
        what = "a key" if is_known_key(text) else _set_here(text)
        if not what and re.search(r"\bwandb login\s+(?:--\S+\s+)*([0-9a-f]{40})\b", text):
            what = "the key of wandb"
        password = in_address(text)
        if not what and password and not _is_no_secret(password) and "://" in text.split("#")[0]:
            what = "the password of an address"
        if what:
            public = text.startswith("#SBATCH") and number < view.script.body_start
            who = (
                "every user can read it in squeue or sacct"
                if public
                else "it goes wherever the script goes: git, backups, a colleague's copy"
            )
            yield Hit(
                number,
                f"{what} is here in plain text: {who}",
                "treat the key as leaked: replace it, and keep the new one in a file that only you can read",
            )


def _set_here(text: str) -> str | None:
    """Return the variable that is given a secret in a line."""
    for match in re.finditer(r"\b([A-Z]\w*)=(['\"]?)([^\s'\"$`]{12,})\2(?=[\s;,]|$)", text):
        name, value = match[1], match[3]
        if names_secret(name) and looks_random(value) and not _is_no_secret(value):
            return name
    return None


def _is_no_secret(value: str) -> bool:
    return is_placeholder(value) or re.search(r"[/\\]|xxx|your|\.\.\.|\*\*", value, re.IGNORECASE) is not None


@rule("warning")
def steps_without_environment(view: View) -> Iterator[Hit]:
    """--export=NONE reaches the steps: srun's tasks lose what the script sets."""
    if (view.asked.value("export") or "").upper() != "NONE" or view.sets("SLURM_EXPORT_ENV"):
        return
    if re.search(r"\bunset\s+([\w\s]*\s)?SLURM_EXPORT_ENV", view.body):
        return
    for call in view.calls:
        if call.srun is not None and "export" not in call.srun and not call.nested and not call.open_options:
            yield Hit(
                call.line,
                "with --export=NONE srun hands the tasks nothing of what the script has loaded and set",
                "export SLURM_EXPORT_ENV=ALL before srun",
            )
            return


def _all_gpus_of_a_node(view: View) -> int | None:
    """Return the GPUs of a node, where the job has all of them by what the profile says of the partition."""
    cluster, asked = view.facts.cluster, view.asked
    if cluster is None:
        return None
    names = (asked.value("partition") or cluster.default_partition or "").split(",")
    kinds = [kind for name in names if name in cluster.partitions for kind in cluster.partitions[name].kinds]
    counts = {kind.gpu_count for kind in kinds if kind.gpu_count != 0}
    return asked.gpus_per_node if counts == {asked.gpus_per_node} else None


@rule("warning")
def visible_devices(view: View) -> Iterator[Hit]:
    """CUDA_VISIBLE_DEVICES is overwritten: Slurm has set it to the job's GPUs."""
    if "exclusive" in view.asked.options or not view.asked.gpu_options:
        return
    # srun sets it anew for its tasks (tried: 22.05).
    if any(call.srun is not None for call in view.calls) and all(
        call.srun is not None for call in view.calls if call.trains
    ):
        return
    all_there = _all_gpus_of_a_node(view)
    beside = any("_DEVICES=" in "".join(one.assignments) for one in view.simple if one.ender == "&")
    for simple in () if re.search(r'-z "?\$\{?CUDA_VISIBLE', view.body) else view.simple:
        for word in (*simple.assignments, *(simple.words[1:] if simple.name == "export" else ())):
            if re.fullmatch(r"(?:CUDA|ROCR)_VISIBLE_DEVICES=[\"']?\d+(,\d+)*[\"']?", word):
                numbers = [int(one) for one in re.findall(r"\d+", word)]
                if all_there and all(number < all_there for number in numbers):
                    continue
                here = list(range(view.asked.gpus_per_node or 0))
                spread = {*numbers} <= {*here} and beside  # each of several programs has its own
                if spread or (sorted(numbers) == here and (len(here) >= 4 or numbers != here)):
                    continue  # mostly all of a node's; or another order, on purpose
                yield Hit(
                    simple.line,
                    f"{word}: Slurm has set this to the job's GPUs; these may be another job's",
                    "remove it",
                )


# Variables that Slurm sets only for a request with their option (sbatch(1), OUTPUT ENVIRONMENT VARIABLES; seen on
# 20.11 to 26.05), and what is there instead.
_SET_BY = {
    "SLURM_GPUS": ("gpus", "SLURM_GPUS_ON_NODE has the GPUs of a node; or ask by --gpus"),
    "SLURM_GPUS_PER_NODE": ("gpus-per-node", "SLURM_GPUS_ON_NODE has the GPUs of a node; or ask by --gpus-per-node"),
    "SLURM_GPUS_PER_TASK": ("gpus-per-task", "SLURM_GPUS_ON_NODE has the GPUs of a node; or ask by --gpus-per-task"),
    "SLURM_NTASKS": ("ntasks ntasks-per-node", "add #SBATCH --ntasks=N, or --ntasks-per-node=N"),
    "SLURM_NTASKS_PER_NODE": ("ntasks-per-node", "add #SBATCH --ntasks-per-node=N"),
    "SLURM_CPUS_PER_TASK": ("cpus-per-task", "add #SBATCH --cpus-per-task=N; SLURM_CPUS_ON_NODE has the CPUs of a node"),
    "SLURM_CPUS_PER_GPU": ("cpus-per-gpu", "add #SBATCH --cpus-per-gpu=N; SLURM_CPUS_ON_NODE has the CPUs of a node"),
    "SLURM_MEM_PER_GPU": ("mem-per-gpu", "add #SBATCH --mem-per-gpu=SIZE"),
}  # fmt: skip
_ASKED_FIRST = r"\$\{{{name}[:+=?-]|(?:\[|test)\s+(?:!\s+)?-[nzv]\s+\"?\$?\{{?{name}\b|\b{name}="


def _counted(word: str) -> set[str]:
    """Return the variables of Slurm's in a word's ``$((...))``, where they need no $."""
    live = "".join(text for quote, text in pieces(word) if quote != "'")
    return {
        name for text in re.findall(r"\$\(\((.*?)\)\)", live) for name in re.findall(r"\bSLURM_\w+", text)
    }


# Where a launcher or the shell takes a number.
_NUMBER = (
    r"(?:--nproc[-_]per[-_]node|--num[-_](?:processes|gpus)|\$\(\([^)]*)[= (]\"?\$?\{{?{name}(?![\w#%:/])"
)


def _with_a_type(view: View, simple: Simple) -> Iterator[Hit]:
    """SLURM_GPUS_PER_NODE under --gpus-per-node=a100:4 is the option's own text (seen on 22.05)."""
    text = " ".join((*simple.assignments, *simple.raw))
    for name in ("SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK"):
        value = view.asked.value(_SET_BY[name][0]) or ""
        if ":" in value and not view.sets(name) and re.search(_NUMBER.format(name=name), text):
            yield Hit(
                simple.line,
                f"{name} is {value!r} here, the option's own text with the type, and a number is needed",
                f"SLURM_GPUS_ON_NODE has the GPUs of a node; or ${{{name}##*:}}",
            )


@rule("warning")
def unset_variable(view: View) -> Iterator[Hit]:
    """A variable of Slurm's that this request leaves unset, or gives a type where a number is needed."""
    if view.script.components > 1 or "SLURM_" not in view.body:
        return
    seen: set[str] = set()
    for simple in view.simple:
        yield from _with_a_type(view, simple)
        if simple.name in {"echo", "printf"} and not simple.redirected and simple.ender != "|":
            continue  # an empty word there harms nothing
        for word in (*simple.assignments, *simple.raw):
            counted = _counted(word) if "$((" in word else set()
            for name in sorted((expanded(word) | counted) & set(_SET_BY) - seen):
                if name not in counted and not re.search(rf"\$\{{?{name}\b", word):
                    continue  # "${!SLURM_GPUS@}" lists names
                seen.add(name)
                options, instead = _SET_BY[name][0].split(), _SET_BY[name][1]
                if {*options, "ntasks-per-gpu"} & set(view.asked.options) or re.search(
                    _ASKED_FIRST.format(name=name), view.body
                ):
                    continue
                letters = "|".join(f"--{one}" for one in options) + (
                    r"|sbatch .*\s-n\b" if "ntasks" in options else ""
                )
                if re.search(rf"(?:{letters})(?![\w-])", view.comments):
                    continue  # it is to be given on the command line
                asks = next((f", and this one asks by --{one}" for one in view.asked.gpu_options), "")
                with_one = " or ".join(f"--{one}" for one in options)
                yield Hit(
                    simple.line,
                    f"Slurm sets {name} only in a job with {with_one}"
                    + (asks if "GPUS" in name else ", and this one has none")
                    + ": it is empty here",
                    instead,
                )


_AMD = re.compile(r"(?:amd[_-]?)?(?:instinct[_-]?)?mi\d", re.IGNORECASE)


@rule("warning")
def container_without_gpus(view: View) -> Iterator[Hit]:
    """Apptainer without --nv (or --rocm) in a job with GPUs: the programs in the image find none."""
    none = view.asked.gpu_options and not any(map(view.asked.gpus_in, view.asked.gpu_options))
    if not view.asked.gpu_options or none or re.search(r"_(?:NV|ROCM|NVCCLI)=", view.body):
        return
    if re.search(r"(?i)rocm|\bROCR_|\bHIP_|\bHSA_|miopen|\blumi\b|/appl/lumi|gpu:mi\d", view.script.text):
        return  # as of a cluster with AMD's
    cluster = view.facts.cluster
    if cluster is not None and cluster.gpu_types and all(map(_AMD.match, cluster.gpu_types)):
        return  # AMD's devices are among those of /dev, and ROCm's images bring their libraries
    for call in view.calls:
        if call.name not in PROGRAMS or call.nested or not call.trains:
            continue
        line = read_container(call.words[1:])
        if line.action not in {"exec", "run", "shell"} or "device" in line.line.given:
            continue
        if line.image.startswith("$") and line.command[:1] and line.command[0].startswith("$"):
            continue  # options may stand in the first of them
        late = line.command[:1] if line.command[:1] in {("--nv",), ("--rocm",), ("--nvccli",)} else ()
        hidden = (
            re.fullmatch(r"\$\w+|\$\{\w+\}", line.image) and line.image in call.raw[1 + line.line.end :][:1]
        )
        seen = hidden or not late or {"nv", "rocm", "nvccli"} & set(line.line.given)
        if seen and re.search(r"--(?:nv|rocm|nvccli)(?![\w-])", view.body):
            continue  # it may be among the options in a variable
        behind = f" ({late[0]} behind the image belongs to the command)" if late else ""
        yield Hit(
            call.line,
            f"{call.name} {line.action} without --nv{behind}: the image has no driver, so that programs in it find no GPU "
            "unless the site binds it by itself",
            f"{call.name} {line.action} --nv IMAGE ... for NVIDIA's GPUs, --rocm for AMD's",
        )
        return


def _settings(view: View, name: str) -> Iterator[tuple[int, str, str]]:
    """Yield where variables whose names match are set, with the line, in the body as anywhere in a line: ``srun --export=``."""
    pattern = rf"(?<![\w$]){name}=(['\"]?)([^\s'\";]*)"
    for number, text in view.body_lines:
        if "CCL" in text or "GLOO" in text:
            for match in re.finditer(pattern, text):
                yield number, match[1], match[3]


_FREE = {
    "NCCL": "leave it out, for NCCL looks for ib* first and takes docker* and lo last; or exclude: NCCL_SOCKET_IFNAME=^docker,lo",
    "GLOO": "leave it out, for Gloo takes the interface of the node's own address",
}


@rule("error", taken=True)
def export_without_all(view: View) -> Iterator[Hit]:
    """srun --export with a list and without ALL: the tasks have no PATH."""
    for call in view.calls:
        value = (call.srun or {}).get("export")
        if not value or call.open_options or call.nested or not call.words or "/" in call.words[0]:
            continue  # a program with a path needs no PATH
        if "container-image" in (call.srun or {}) or "container-image" in view.asked.options:
            continue  # pyxis brings the image's PATH
        names = {one.partition("=")[0] for one in value.split(",")}
        if (
            value.upper() not in {"ALL", "NONE", "NIL"}
            and not names & {"ALL", "NONE", "NIL", "PATH"}
            and "$" not in value.split("=")[0]
        ):
            yield Hit(
                call.line,
                f"with --export={value} the tasks get these variables alone, and no PATH: {call.name} is not found",
                f"write --export=ALL,{value}",
            )


@rule("hint")
def fixed_interface(view: View) -> Iterator[Hit]:
    """NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names an interface that the profile does not."""
    cluster = view.facts.cluster
    known = cluster.software.network_interface if cluster is not None else None
    for line, name, value in _settings(view, "((?:NCCL|GLOO)_SOCKET_IFNAME)"):
        # ^ leaves interfaces out; what the shell works out is not fixed; lo is all that a single node needs.
        if not value or value[0] == "^" or "$" in value or "`" in value or is_placeholder(value):
            continue
        if value == "lo" and (view.asked.nodes or 1) == 1:
            continue
        if value == "lo":
            said = f"{name}=lo is each node's way to itself: the job's {view.asked.nodes} nodes cannot reach one another by it"
            yield Hit(line, said, _FREE[name[:4]], "warning")
        elif known is None:
            yield Hit(
                line,
                f"{name}={value} fails on every node without an interface whose name begins so",
                _FREE[name[:4]],
            )
        elif not _is_named(
            known, value.removeprefix("="), by_start=name.startswith("NCCL") and value[0] != "="
        ):
            yield Hit(
                line,
                f"{name}={value}: the profile of {cluster.name if cluster else ''} names {known} as its network interface",
                f"write {name}={known}, or leave it out",
                "warning",
            )


def _is_named(known: str, value: str, *, by_start: bool) -> bool:
    """Return True if one of the interfaces that are listed is the known one; NCCL takes the start of a name, too."""
    listed = takewhile(lambda one: "=" not in one, value.split(","))  # --export=A=eth0,B=1
    return any(known.startswith(one) if by_start else known == one for one in listed)


@rule("warning")
def image_without_slash(view: View) -> Iterator[Hit]:
    """A squashfs file for pyxis without a folder: it is taken for an image of a registry."""
    values = [(one.line, one.value or "") for one in view.script.directives if one.name == "container-image"]
    values += [(call.line, (call.srun or {}).get("container-image") or "") for call in view.calls]
    for line, value in values:
        if re.fullmatch(r"[\w.-]+\.(?:sqsh|squashfs|sqfs)", value):
            yield Hit(
                line,
                f"--container-image={value} has no slash, so pyxis asks a registry for it",
                f"write --container-image=./{value}, or its whole path",
            )


@rule("warning")
def nccl_variable(view: View) -> Iterator[Hit]:
    """A variable that NCCL does not read: misspelled, given up, or called something else by now."""
    for line, name, _ in _settings(view, "(NCCL_[A-Z0-9_]+)"):
        alone = re.fullmatch(rf"\s*{name}=(?:\"[^\"]*\"|'[^']*'|\S*)\s*(?:#.*)?", view.script.lines[line - 1])
        if alone and not re.search(
            rf"(?:export|declare -x)\b.*\b{name}\b|set -a|set -o allexport", view.body
        ):
            continue  # a variable of the script's own
        former = FORMER.get(name)
        if former is not None:
            yield Hit(
                line,
                f"{name} {former.said}",
                f"write {former.instead}, or leave it out",
                "hint" if former.still_read else None,
            )
        elif name not in READ:
            near = nearest(name, READ, cutoff=0.86)
            if near is not None:
                yield Hit(
                    line, f"NCCL reads no {name}, and says nothing of it", f"write {near}, if that is meant"
                )
