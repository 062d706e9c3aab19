"""Programs that do not start: what shells, Python, argparse and container runtimes say; and any other exception."""

from __future__ import annotations

from ..row import Row

__all__ = ["ROWS"]

_SHELL = r"(?:^|[\s/])(?:(?:ba|z|da|k)?sh: (?:line \d+: |\d+: )?|[\w.+-]+: (?:line|Zeile|ligne|línea|第) ?\d+ ?行?: )"
_OTHER_MODULE = (
    "the versions do not fit, or a file of yours has the name of a package: print(module.__file__)"
)

ROWS = (
    Row(
        "module-missing",
        "No module named|ModuleNotFoundError",
        r"No module named ['\"]?(?P<name>[\w.]+)",
        "Python has no module {name}",
        "install it in the job's environment, or name one that has it (environment:); for a module of your own, set PYTHONPATH",
    ),
    Row(
        "import-error",
        "circular import",
        r"cannot import name '(?P<name>\w+)' from partially initialized module '(?P<module>[\w.]+)' "
        r"\(most likely due to a circular import\)(?: \((?P<file>/[^)\n]+)\))?",
        "modules import each other: {module}< ({file})> does not have {name} yet (circular import)",
        "move one of the two imports into the function that needs it, or what both need into a third module",
        where="exception",
    ),
    Row(
        "import-error",
        "cannot import name|ImportError",
        r"(?:cannot import name '(?P<name>\w+)' from (?:partially initialized module )?'(?P<module>[\w.]+)'"
        r"(?: \((?:most likely due to a circular import\) \()?(?P<file>/[^)\n]+)\))?"
        r"|ImportError: (?!cannot import name)(?P<message>[^\n]+))",
        "an import failed<: {module} has no {name}>< (it is {file})><: {message}>",
        _OTHER_MODULE,
        where="exception",
    ),
    Row(
        "import-error",
        "module '",
        r"AttributeError: (?:partially initialized )?module '(?P<module>[\w.]+)' (?:from '(?P<file>[^'\n]+)' )?"
        r"has no attribute '(?P<name>\w+)'",
        "the module {module}< (it is {file})> has no {name}",
        _OTHER_MODULE,
        where="exception",
    ),
    Row(
        "syntax",
        "SyntaxError|IndentationError|TabError",
        r"(?P<kind>SyntaxError|IndentationError|TabError): (?P<message>[^\n]+)",
        "the program is not valid Python for this version: {message}",
        "correct the line, or use the Python it was written for",
    ),
    Row(
        "script-missing",
        "can't open file",
        r"can't open file '?(?P<file>[^':]+)'?: \[Errno \d+\] (?P<why>[^\n]+)",
        "there is no script {file}",
        "relative paths start in the work folder (work_dir:), which the nodes must see",
        where="line",
    ),
    Row(
        "shell-file",
        ": No such file or directory",
        _SHELL + r"(?:cd: |source: |\.: )?(?P<file>[^\s:][^:]*): No such file or directory(?: \([^)]*\))?$",
        "the script names {file}, which is not there",
        "relative paths start in the work folder (work_dir:, or where sbatch was called); the nodes must see it",
        "symptom",
        "line",
    ),
    Row(
        "shell-variable",
        "unbound variable",
        _SHELL + r"(?P<name>\w+): unbound variable",
        "the script uses the variable {name}, which is not set (set -u)",
        "set it, export it where you submit (variables:), or give a default: ${{name}:-}",
        "symptom",
        "line",
    ),
    Row(
        "shell-syntax",
        "syntax error|unexpected EOF while looking for matching",
        _SHELL
        + r"(?P<message>syntax error near unexpected token [^\n]*|syntax error: [^\n]*|unexpected EOF while looking for "
        r"matching [^\n]*)",
        "the shell cannot read the script: {message}",
        "bash -n FILE names the line; most often a done, fi, then, quote or bracket is missing above it",
        where="line",
    ),
    Row(
        "git",
        "fatal: ",
        r"^fatal: (?P<message>detected dubious ownership[^\n]*|not a git repository[^\n]*|unable to access [^\n]*|could not read "
        r"[^\n]*|repository [^\n]*|[Aa]uthentication failed[^\n]*|destination path [^\n]*|Could not [^\n]*)",
        "git failed: {message}",
        "get the code on a login node, before the job; git config --global --add safe.directory FOLDER trusts another's folder",
        "symptom",
        "line",
    ),
    Row(
        "carriage-return",
        "\\r': |\\r\u2019: |^M: bad interpreter|\\r: bad interpreter",
        r"(?:\$?['\u2018](?P<name>[^'\u2019]*)\\r['\u2019]: (?:command not found|No such file)|(?:\^M|\\r): bad interpreter)",
        "a script has the line ends of Windows (CRLF)",
        "dos2unix FILE, or sed -i 's/\\r$//' FILE",
        where="line",
    ),
    Row(
        "arguments",
        ": error: ",
        r"^(?P<program>[\w./-]+): error: (?P<message>(?:unrecognized arguments|the following arguments are required|argument |"
        r"ambiguous option|too few arguments|one of the arguments|invalid choice|No such option|Missing ).*)$",
        "{program} does not take its arguments: {message}",
        "{program} --help lists them",
        where="line",
    ),
    Row(
        "module",
        "command not found",
        r"(?P<name>module|ml|conda|mamba|micromamba): command not found",
        "{name}: command not found: this shell does not define it",
        "begin the script with #!/bin/bash -l, or source what defines {name} (/etc/profile.d/*.sh, etc/profile.d/conda.sh)",
        where="line",
    ),
    Row(
        "program-missing",
        "execve():|error: execve",
        r"execve\(\): (?P<name>[^\s:]+): No such file or directory",
        "there is no command {name}, or not the interpreter that its first line names (execve: No such file or directory)",
        "load the module or activate the environment that has it (environment:), or give its path",
        where="line",
    ),
    Row(
        "command-missing",
        "command not found|: not found|executable file not found",
        r"(?:(?P<name>[^\s:]+) ?: command not found|" + _SHELL + r"(?P<name2>[^\s:]+): not found"
        r"|\"(?P<name4>[^\"]+)\": executable file not found)",
        "there is no command <{name}><{name2}><{name4}>",
        "load the module or activate the environment that has it (environment:), or give its path",
        where="line",
    ),
    Row(
        "not-executable",
        "Permission denied|Exec format error|cannot execute|bad interpreter",
        r"(?:"
        + _SHELL
        + r"(?P<name>\S+): (?:Permission denied|cannot execute.*|(?P<inner>.*bad interpreter).*)"
        r"|execve\(\): (?P<name2>\S+): (?:Permission denied|Exec format error)|(?P<name3>\S+): Exec format error)",
        "<{name}><{name2}><{name3}> cannot be executed",
        "chmod +x, a first line such as #!/usr/bin/env python3, and a program for this kind of CPU",
        where="line",
    ),
    Row(
        "container-mount",
        "while mounting image|bad superblock|squashfuse",
        r"(?P<message>squashfuse\w* failed to mount[^\n]* in \w+|kernel reported a bad superblock[^\n,]*|while mounting "
        r"image[^\n]*)",
        "the container's image could not be mounted: {message}",
        "start it again, with the image on a disk of the node or on scratch; a bad superblock is most often a damaged "
        "image: pull "
        "or build it again",
        where="line",
    ),
    Row(
        "container-hook",
        "nvidia-container-cli|98-nvidia.sh",
        r"(?P<message>Command not found: nvidia-container-cli|nvidia-container-cli: [^\n]*|\S*98-nvidia\.sh exited[^\n]*)",
        "the node could not give the container its GPUs: {message}",
        "the image is well: start it again without this node (exclude:), and tell the site, whose nvidia-container-cli or hook "
        "is not well there",
        where="line",
    ),
    Row(
        "mpi-no-pmi",
        "PMI support|PMI2_Init failed|PMI_Init|PMIX ERROR|OPAL ERROR: Unreachable",
        r"(?P<message>OMPI was not built with SLURM's PMI support|PMI2?_Init[^\n]*failed[^\n]*|PMIX ERROR(?![^\n]* server/)[^\n]*"
        r"|OPAL ERROR: Unreach\w+)",
        "MPI was started by srun and found no PMI: {message}",
        "srun --mpi=pmix or --mpi=pmi2 (srun --mpi=list shows them), an MPI that is built for this Slurm, or mpirun",
        where="line",
    ),
    Row(
        "mpi-gtl",
        "GTL library is not linked",
        r"GPU_SUPPORT_ENABLED is requested, but GTL library is not linked",
        "Cray MPICH was asked for GPUs, and the program is not linked with its GTL library",
        "load the craype-accel module and build again, or unset MPICH_GPU_SUPPORT_ENABLED",
        where="line",
    ),
    Row(
        "mpi-daemons",
        "ORTE was unable to|PRTE was unable to|An ORTE daemon has unexpectedly failed|unable to reliably start",
        r"(?P<message>(?:ORTE|PRTE|PRRTE) was unable to [^\n.]*|An ORTE daemon has unexpectedly failed[^\n.]*)",
        "mpirun could not start its daemons on the other nodes: {message}",
        "start the program with srun --mpi=pmix in place of mpirun; ssh between nodes is closed at many sites",
        where="line",
    ),
    Row(
        "container-user",
        "user namespace",
        r"(?P<message>[^\n]*(?:failed to create|could not create|cannot create|no) user namespace[^\n]*)",
        "the node does not let the container be started without privileges: {message}",
        "user namespaces are off there: use the site's own apptainer module or wrapper, or ask the site",
        where="line",
    ),
    Row(
        "image-missing",
        "could not open image|no such file or directory: unknown image|manifest unknown|No such image|image does not exist"
        "|FATAL:|[ERROR] No such file or directory: |pyxis: ",
        r"(?:FATAL: +(?P<message>.*(?:could not open image|image format not recognized|unable to pull|while loading|not found).*)"
        r"|pyxis: (?P<message2>(?!container start failed|couldn't start).*(?:failed|No such file|not found|couldn't).*)"
        r"|(?P<message3>manifest unknown.*|No such image.*))",
        "the container's image could not be used: <{message}><{message2}><{message3}>",
        "an image's file must be on a file system of the nodes; slurmgpu submit pulls images that have an address, once, before "
        "the job; 401 or denied: log in to the registry first (apptainer registry login, enroot's .credentials)",
        where="line",
        nearby=(
            16,
            r"^.*pyxis: +(?:\[ERROR\] |FATAL ERROR: ?)?(?P<message2>Write failed .*|.*No space left on device|(?<=\] )\S.*)",
        ),
    ),
    Row(
        "container-start",
        "container start failed|container creation failed|couldn't start container",
        r"(?P<message>container (?:start|creation) failed[^\n]*|couldn't start container)",
        "the container could not be started: {message}",
        "the lines above it say why; slurmgpu doctor --on-gpu starts one in a job",
        "symptom",
        "line",
    ),
    Row(
        "child-failed",
        "CalledProcessError",
        r"CalledProcessError: (?P<message>Command [^\n]*)",
        "a command that the program had started failed: {message}",
        "run that command by hand; its own words stand above",
        "symptom",
        "exception",
    ),
    Row(
        "ssh",
        "Host key verification failed|Permission denied (publickey",
        r"(?P<message>Host key verification failed|Permission denied \(publickey[^)]*\))",
        "ssh to another node was refused: {message}",
        "start processes with srun: many sites let nobody in by ssh, or only to nodes of an own job",
        "symptom",
        "line",
    ),
    Row(
        "fortran",
        "Fortran runtime error|forrtl: severe",
        r"(?P<message>Fortran runtime error: .*|forrtl: severe .*)",
        "{message}",
        "the line above it names the place in the source",
        where="last",
    ),
    Row(
        "openmp-twice",
        "OMP: Error #15",
        r"OMP: Error #15: (?P<message>[^\n]*)",
        "OpenMP is there twice: {message}",
        "one of both libraries must go: install torch and numpy from the same channel (conda) or both with pip",
        where="line",
    ),
    Row(
        "too-slow",
        "Timeout (",
        r"^Timeout \((?P<time>[\d:.]+)\)!$",
        "the process did not end within {time}: faulthandler ended it (Timeout)",
        "the lines below show where each thread was",
        where="line",
    ),
    Row(
        "tool-file",
        "No such file or directory|annot stat|annot open|annot access",
        r"^(?P<tool>tar|cp|mv|cat|ls|rsync|unzip|dd|head|wc|find|ln|stat|chmod|du|md5sum): (?P<message>[^\n]*(?:No such "
        r"file|[Cc]annot)[^\n]*)",
        "{tool} failed: {message}",
        "see that the file is there, and that the nodes see its folder",
        "symptom",
        "line",
    ),
    Row(
        "permission",
        "Permission denied|PermissionError|Operation not permitted",
        r"(?:Permission denied|Operation not permitted)(?:: ?['\"]?(?P<file>[^'\"\n]+))?",
        "permission was denied<: {file}>",
        "ls -ld shows who may use it and its folders; write to a folder of your own",
        where="exception",
    ),
    Row(
        "file-missing",
        "No such file or directory|FileNotFoundError",
        r"(?:No such file or directory(?:: ?['\"]?(?P<file>[^'\"\n]+))?|FileNotFoundError: (?!\[Errno)(?P<message>[^\n]+))",
        "a file is missing<: {file}><: {message}>",
        "relative paths start in the work folder (work_dir:); check the spelling, and that the nodes see the folder",
        where="exception",
    ),
    Row(
        "pickling",
        "PicklingError|Can't pickle|cannot pickle|Can't get local object|Can't get attribute",
        r"(?P<message>(?:Can't|cannot) pickle [^\n]*|Can't get (?:local object|attribute) [^\n]*)",
        "an object cannot be pickled: {message}",
        "for spawn and data-loader workers: functions and classes at a module's top level, no lambda, no open file or lock; to "
        "load one, its class must be where it was when it was saved",
        where="exception",
    ),
    Row(
        "config-key",
        "Could not override '|is not in struct|Could not find '|Error merging |Could not append to config",
        r"^(?:\S+: )?(?P<message>(?:Could not override '|Key '[^']+' is not in struct|(?:In '[^']+': )?Could not find '"
        r"|Error merging |Could not append to config).*)",
        "Hydra does not take its configuration: {message}",
        "correct the name; +NAME=VALUE adds one that the configuration does not have, and --cfg job shows those that it has",
        where="line",
    ),
    Row(
        "not-parsed",
        "JSONDecodeError|TOMLDecodeError|ScannerError|ParserError|MissingSectionHeaderError",
        r"(?P<kind>JSON|TOML)DecodeError: (?P<message>[^\n]+)"
        r"|(?P<kind2>yaml)\.(?:scanner\.Scanner|parser\.Parser|ruamel\.\w+\.\w+)Error: (?P<message2>[^\n]+(?:\n[^\n:]+)?)"
        r"|MissingSectionHeaderError: (?P<message3>[^\n]+)",
        "a text cannot be read as <{kind}><{kind2}><: {message}><: {message2}><: {message3}>",
        "correct that line and column of the file that is read there; 'line 1 column 1' is most often an empty or half-written "
        "file",
        where="exception",
    ),
    Row(
        "tests-failed",
        " failed, | failed in | error in | errors in ",
        r"^=+ (?P<message>\d+ (?:failed|errors?)\b[^=]*?) in [\d.:]+ ?s",
        "tests failed: {message}",
        "the lines below `short test summary info` name them",
        where="last",
    ),
    Row(
        "assertion",
        "AssertionError",
        r"AssertionError(?:: (?P<message>[^\n]+))?",
        "an assert failed<: {message}>",
        "the traceback shows the line",
        where="exception",
    ),
    Row(
        "python-exception",
        "",
        r"^(?P<name>[\w.]+)(?:: (?P<message>[^\n]*(?:\n[^\n]+:(?=\n))*(?:\n[^\n]+)?))?",
        "{name}<: {message}>",
        "this is an error in the program itself: the traceback shows the line",
        where="exception",
    ),
)
