"""Programs in other languages than Python, and MPI: the error that they end with, in their own words."""

from __future__ import annotations

from ..row import Row

__all__ = ["ROWS"]

_OWN = "this is the program's own message: its documentation, or its authors, say what it means"


_BELOW = (3, r"^(?!note: )(?P<detail>[^\s-].*)")


def _error(
    language: str, seen: str, pattern: str, what: str = "{message}", nearby: tuple[int, str] = _BELOW
) -> Row:
    what = f"an error in {language}: {what}"
    return Row("program-error", seen, pattern, what, _OWN, where="line", nearby=nearby)


ROWS = (
    _error(
        "R",
        "Execution halted",
        r"^Execution halted",
        "<{detail}>",
        (-12, r"^(?P<detail>Error(?: in .*)?: .*|Error in .*)"),
    ),
    _error(
        "Julia",
        "ERROR: LoadError: ",
        r"^ERROR: LoadError: (?P<message>.*)",
        "{message}<: {detail}>",
        (8, r"^\s+(?:nested task error: )?(?P<detail>(?!On worker|Stacktrace)[A-Z]\w+: .*)"),
    ),
    _error(
        "Java",
        'Exception in thread "',
        r"^Exception in thread \"[^\"]*\" (?P<message>[\w.]+(?:Error|Exception).*)",
    ),
    _error(
        "Rust",
        "panicked at",
        r"^thread '[^']*'.* panicked at (?P<place>\S+:\d+:\d+|.+)",
        "panicked at {place}<: {detail}>",
    ),
    _error("Go", "panic: ", r"^panic: (?P<message>.*)"),
    _error("Perl", "Can't locate ", r"(?P<message>Can't locate \S+\.pm in @INC.*)"),
    _error("Fortran", "Fortran runtime error", r"(?P<message>Fortran runtime error:.*)"),
    Row(
        "licence",
        "License checkout failed|Licensed number of users already reached|FlexNet Licensing error",
        r"(?P<message>License checkout failed.*|Licensed number of users already reached.*|FlexNet Licensing error.*)",
        "the program got no licence: {message}<: {detail}>",
        "wait for a free one (lmutil lmstat -a shows who has them), or have Slurm wait: --licenses, where the site counts them",
        where="line",
        nearby=(3, r"^(?:Feature: +)?(?P<detail>[^\s-].*)"),
    ),
    _error(
        "the workflow",
        "Error in rule ",
        r"(?P<message>Error in rule \w+)",
        "{message}<: {detail}>",
        (
            -30,
            r"^(?P<detail>(?!\[\w{3} \w{3}| ).*(?:\[E::|(?i:\berror\b|truncated|fatal|exception|no such file|cannot)).*)",
        ),
    ),
    _error(
        "the workflow",
        "Error executing process >",
        r"(?P<message>Error executing process >.*)",
        "{message}<: {detail}>",
        (
            60,
            r"^ {2,}(?P<detail>(?!Process `)(?:.* )?(?:\[E::|(?i:error\b|fatal|exception|killed|invalid|no such file|"
            r"cannot)).*)",
        ),
    ),
    _error(
        "the workflow",
        "MissingOutputException in ",
        r"(?P<message>MissingOutputException in rule \w+)",
        "{message}: its command made no such file<: {detail}>",
        (6, r"^(?!Job |Waiting|Missing files)(?P<detail>\S+)$"),
    ),
    _error(
        "the program",
        "Error in routine ",
        r"^\s*(?P<message>Error in routine .*)",
        "{message}<: {detail}>",
        (2, r"^\s+(?P<detail>\w.*)"),
    ),
    _error("GATK", "A USER ERROR has occurred: ", r"A USER ERROR has occurred: (?P<message>.*)", "{message}"),
    _error(
        "MATLAB",
        "Error in ",
        r"^(?P<message>Error in \S+ \(line \d+\))",
        "<{detail} >({message})",
        (-4, r"^(?P<detail>[A-Z].{8,}\.)$"),
    ),
    _error(
        "the program",
        "FATAL CALLED FROM",
        r"^FATAL CALLED FROM FILE",
        "<{detail}>",
        (2, r"^-* ?(?P<detail>\w.*)"),
    ),
    _error(
        "VASP", "ZBRENT: fatal error|VERY BAD NEWS", r"(?P<message>ZBRENT: fatal error.*|VERY BAD NEWS.*)"
    ),
    _error("OpenFOAM", "FOAM FATAL ", r"FOAM FATAL (?:IO )?ERROR", "<{detail}>"),
    _error("the program", "Fatal error:", r"^Fatal error:$", "<{detail}>"),
    Row(
        "mpi-abort",
        "MPI_ABORT was invoked on rank",
        r"MPI_ABORT was invoked on rank (?P<rank>\d+)",
        "rank {rank} ended all processes by MPI_Abort<: {detail}>",
        _OWN,
        where="line",
        nearby=(-40, r"^(?P<detail>(?:ERROR|FATAL|Error|Fatal error)\b.{4,})"),
    ),
    Row(
        "mpi-slots",
        "There are not enough slots available|--use-hwthread-cpus option.",
        r"(?:There are not enough slots available|--use-hwthread-cpus option\.)",
        "mpirun was to start more processes than the job has tasks (slots)",
        "ask for as many tasks as there are processes (--ntasks, or tasks_per_node); mpirun --oversubscribe shares the CPUs",
        where="line",
    ),
    Row(
        "mpi-init",
        "Fatal error in PMPI_|Fatal error in internal_|Fatal error in MPI",
        r"(?:\(rank (?P<rank>\d+) in comm[^)]*\): )?Fatal error in (?P<name>\w+): (?P<message>[^,]*)",
        "MPI failed in {name}<: {detail}>",
        "start the program with the MPI that it was built with, and srun with the --mpi of it (srun --mpi=list); of the network, "
        "FI_PROVIDER (Intel MPI, libfabric) or UCX_TLS names another way",
        where="line",
        nearby=(9, r"^\w+\(\d+\)\.*: (?P<detail>\S.*)"),
    ),
    Row(
        "own-error",
        "ERROR: |Error: |CRITICAL|FATAL: ",
        r"^(?:\S+ )?(?:ERROR|Error|CRITICAL|FATAL)(?: [\w.]+)?: (?P<message>\S.*)$",
        "the program ended with a message of its own: {message}",
        "the message says what to change; the lines above it say more",
        "symptom",
        "last",
    ),
)
