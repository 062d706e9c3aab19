"""Programs that do not start: what shells, Python, argparse and container runtimes say; and any other exception."""

from __future__ import annotations

from ..row import Row

__all__ = ["ROWS"]

_SHELL = r"(?:^|[\s/])(?:(?:ba|z|da|k)?sh: (?:line \d+: |\d+: )?|[\w.+-]+: line \d+: )"
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
        "arguments",
        ": error: ",
        r"^(?P<program>[\w./-]+): error: (?P<message>(?:unrecognized arguments|the following arguments are required|argument |"
        r"ambiguous option|too few arguments|one of the arguments|invalid choice|No such option|Missing ).*)$",
        "{program} does not take its arguments: {message}",
        "{program} --help lists them",
        where="line",
    ),
    Row(
        "command-missing",
        "command not found|: not found|executable file not found|No such file or directory\\n|execve():"
        "|error: execve",
        r"(?:(?P<name>[^\s:]+): command not found|" + _SHELL + r"(?P<name2>[^\s:]+): not found"
        r"|execve\(\): (?P<name3>[^\s:]+): No such file or directory|\"(?P<name4>[^\"]+)\": executable file not found)",
        "there is no command <{name}><{name2}><{name3}><{name4}>",
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
        "image-missing",
        "could not open image|no such file or directory: unknown image|manifest unknown|No such image|image does not exist"
        "|FATAL:|[ERROR] No such file or directory: |pyxis: ",
        r"(?:FATAL: +(?P<message>.*(?:could not open image|image format not recognized|unable to pull|while loading|not found).*)"
        r"|pyxis: (?P<message2>.*(?:failed|No such file|not found|couldn't).*)|(?P<message3>manifest unknown.*|No such image.*))",
        "the container's image could not be used: <{message}><{message2}><{message3}>",
        "see that the file is there and on a file system of the nodes; slurmgpu submit pulls images that have an address",
        where="line",
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
        "an object cannot be handed to another process, or be saved: {message}",
        "for spawn and data-loader workers: functions and classes at a module's top level, no lambda, no open file or lock, and "
        "if __name__ == '__main__': around the start",
        where="exception",
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
        r"^(?P<name>[\w.]+)(?:: (?P<message>[^\n]*(?:\n[^\n]+)?))?",
        "{name}<: {message}>",
        "this is an error in the program itself: the traceback shows the line",
        where="exception",
    ),
)
