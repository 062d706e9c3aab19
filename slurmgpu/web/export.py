"""A page for a centre's web site: the generator without a server, with the same Python in the visitor's browser.

Two parts do not come with slurmgpu: Python for browsers, and pydantic's core for it. Both are pinned by version and SHA-256,
and downloaded by npm and pip alone, where somebody asks for it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import NamedTuple

from slurmgpu.errors import InvalidInput, SlurmGpuError
from slurmgpu.files.clusters import chain_of, profile_folders, profiles
from slurmgpu.files.data import data_folder
from slurmgpu.files.settings import LAYER_FILE, LoadedSettings, load_settings
from slurmgpu.files.trust import write_atomically
from slurmgpu.models.cluster import GENERIC
from slurmgpu.version import __version__
from slurmgpu.web.drawing import STATIC, answer_values, draw, form_values, sampled
from slurmgpu.web.form import FIELDS
from slurmgpu.web.planned import site

__all__ = ["Exported", "Part", "download", "export", "find", "packed", "parts"]

_MARK = "slurmgpu-page.json"
"""The file that tells a page of ours from other folders."""
_HOME, _FOLDER, _CODE = "/home/you", "/home/you/project", "code"
_LIBRARIES = (
    "annotated-types", "jinja2", "markupsafe", "pydantic", "ruamel.yaml", "typing-extensions", "typing-inspection",
)  # fmt: skip
# What the planner and the renderer never import; of the training, its settings and what is read of its tasks.
_LEFT_OUT = ("mcp", "cli", "diagnosis", "clusters", "doctor", "shell", "jobs", "sampling", "sandbox",
             "top", "training", "without_gpus")  # fmt: skip
_ALL_THE_SAME = ("training/__init__.py", "training/formats/", "training/methods.py", "training/tasks/options.json")  # fmt: skip
_OF_WEB = ("__init__.py", "drawing.py", "form.py", "planned.py", "templates/answer.html")
# A browser has no users and no locks of files; who looks for them finds none.
_STAND_INS = {
    "grp.py": "def getgrgid(number):\n    raise KeyError(number)\n",
    "pwd.py": "import os\n\nos.geteuid = os.getuid\n\n\ndef getpwuid(number):\n    raise KeyError(number)\n",
    "fcntl.py": "LOCK_EX = LOCK_NB = 0\n\n\ndef flock(file, how):\n    pass\n",
}
_POLICY = (
    "default-src 'none'; script-src 'self' blob: 'wasm-unsafe-eval'; worker-src blob:; style-src 'self'; "
    "img-src 'self' data:; connect-src 'none'; form-action 'none'; base-uri 'none'"
)
_STATIC = ("app.js", "icon.svg", "offline.js", "style.css")
_OF_PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json", "python_stdlib.zip")


class Exported(NamedTuple):
    """The files that were written."""

    page: Path
    size: int
    """Bytes, of all files together."""


class _Sources(NamedTuple):
    """The disk of the page's Python: the site's settings and the profile, each at its place."""

    files: Mapping[str, bytes]
    environ: Mapping[str, str]
    cluster: str


def export(directory: Path, cluster: str | None, cwd: Path, folder: Path) -> Exported:
    """Write a page for a cluster; ``folder`` has the parts that do not come with slurmgpu.

    The site's settings and templates count in it, and no user's. Raises InvalidInput where the folder is another's, the
    profile or a part is missing; SlurmGpuError where the page could not plan.
    """
    if directory.exists() and not directory.is_dir():
        raise InvalidInput(f"--export {directory}: is no folder", hint="give a new folder")
    if directory.exists() and any(directory.iterdir()) and not (directory / _MARK).is_file():
        raise InvalidInput(
            f"--export {directory}: has other files, and none of a page that slurmgpu made",
            hint="give a new folder, an empty one, or that of an earlier page",
        )
    pyodide, core = (find(part, folder) for part in parts())
    sources = _sources(cluster, cwd)
    with _as_visitor(sources) as here:
        at = site(sources.cluster, here)
        expected = sampled(sources.cluster, str(here))
        about = "Left out, the folder that the job is submitted in."
        fields = [field._replace(about=about) if field.name == "work_dir" else field for field in FIELDS]
        filled = {
            **form_values({}, at),
            "fields": fields,
            "trouble": "",
            **answer_values(None, {}, at.chosen),
        }
    files = {f"static/{name}": (STATIC / name).read_text(encoding="utf-8") for name in _STATIC}
    members = {**_members(pyodide), "code.zip": _zipped(_code(core)), "site.zip": _zipped(sources.files)}
    scripts = ["static/offline.js"]
    for name, data in members.items():
        path = f"python/{name.replace('.', '-').removesuffix('-mjs')}.js"
        files[path] = f'slurmgpuParts["{name}"] = "{packed(data)}";\n'
        scripts.append(path)
    start = {"environ": {**sources.environ, "HOME": _HOME}, "cluster": sources.cluster, "folder": _FOLDER,
             "expected": expected, "names": list(members)}  # fmt: skip
    files["python/start.js"] = f"slurmgpuOffline.start({json.dumps(start)});\n"
    scripts.append("python/start.js")
    size = sum(len(files[one]) for one in scripts)
    # A browser may have the files of an earlier page of this address.
    named = [f"{one}?{hashlib.sha256(files[one].encode()).hexdigest()[:12]}" for one in scripts]
    files["LICENSES.txt"] = _licences()
    offline = {"policy": _POLICY, "scripts": named, "megabytes": size / 1e6}
    files["index.html"] = draw("generator.html", page="generator", offline=offline, **filled)
    mark = {"slurmgpu": __version__, "cluster": sources.cluster, "files": sorted(files)}
    files[_MARK] = json.dumps(mark, indent=2) + "\n"
    _write(directory, files)
    return Exported(directory / "index.html", sum(len(text.encode()) for text in files.values()))


def packed(data: bytes) -> str:
    """Return a file as a script holds it, the same for the same bytes."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def _write(directory: Path, files: Mapping[str, str]) -> None:
    """Write the page itself last: until then an earlier one goes on to lead to files that are there."""
    try:
        for name in sorted(files, key=lambda name: name in ("index.html", _MARK)):
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, files[name])
    except OSError as error:
        raise InvalidInput(f"--export {directory}: cannot be written: {error.strerror}") from None


# What the page's Python plans with.


def _sources(cluster: str | None, cwd: Path) -> _Sources:
    own = load_settings(cwd)
    name = cluster or os.environ.get("SLURMGPU_CLUSTER") or own.settings.cluster
    if not name:
        raise InvalidInput(
            "--export: no cluster is named, and none is in use here",
            hint="add --cluster NAME; slurmgpu cluster list shows profiles",
        )
    with tempfile.TemporaryDirectory() as empty:
        at_site = load_settings(Path(empty), {**os.environ, "XDG_CONFIG_HOME": empty})
    files = dict(_of_site(at_site))
    files |= _of_profile(name, own)
    settings = b"".join(data for path, data in files.items() if path.endswith(LAYER_FILE)).decode()
    # A variable of the settings is one of whoever submits; what it is, no page knows.
    environ = {each: f"${each}" for each in re.findall(r"\$\{?([A-Za-z_]\w*)", settings) if each != "HOME"}
    environ["SLURMGPU_SITE"] = str(at_site.folders["site"])
    return _Sources(files, environ, Path(name).stem if "/" in name else name)


def _of_site(settings: LoadedSettings) -> Iterator[tuple[str, bytes]]:
    """Yield the settings of the site and of the lab that it names, with their templates and extensions, at their places."""
    for layer in ("site", "lab"):
        folder = settings.folders.get(layer)
        if folder is not None and (folder / LAYER_FILE).is_file():
            yield str((folder / LAYER_FILE).absolute()), (folder / LAYER_FILE).read_bytes()
    named = [source.path for source in settings.template_sources(os.environ)]
    origin = settings.layered.origin(("extensions",))
    if settings.settings.extensions and origin is not None:
        named.append(Path(origin.where).parent / settings.settings.extensions)
    for place in named:
        for path in [place] if place.is_file() else sorted(place.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield str(path.absolute()), path.read_bytes()


def _of_profile(name: str, settings: LoadedSettings) -> Iterator[tuple[str, bytes]]:
    """Yield the profile and those that it is based on: where the page's Python looks for a user's, and for shipped ones."""
    if name == GENERIC.name:
        return
    folders = profile_folders(settings)
    path = Path(name).expanduser() if "/" in name else profiles(settings).get(name)
    if path is None or not path.is_file():
        known = ", ".join(sorted(profiles(settings)))
        raise InvalidInput(f"--cluster {name}: no such profile; known: {known}")
    places = [f"{_HOME}/.config/slurmgpu/clusters", f"/{_CODE}/slurmgpu/_data/clusters"]
    taken: set[str] = set()
    for one in chain_of(path, [path.parent, *folders]):
        free = next((f"{place}/{one.name}" for place in places if f"{place}/{one.name}" not in taken), None)
        if free is None:
            raise InvalidInput(f"--cluster {name}: more than two profiles of its chain are called {one.stem}")
        taken.add(free)
        yield free, one.read_bytes()


@contextmanager
def _as_visitor(sources: _Sources) -> Iterator[Path]:
    """Give this process the settings of the page and no others, as long as it plans; yield the folder that it plans in."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "project").mkdir()
        for path, data in sources.files.items():
            if path.startswith(_HOME):
                place = home / path.removeprefix(_HOME + "/")
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
        for name in ("XDG_CONFIG_HOME", "SLURMGPU_CLUSTER"):
            os.environ.pop(name, None)
        os.environ.update(sources.environ, HOME=str(home))
        try:
            yield home / "project"
        finally:
            os.environ.clear()
            os.environ.update(before)


# What is in the page's Python.


def _code(core: bytes) -> dict[str, bytes]:
    """Return slurmgpu itself, its templates, and the libraries as they are installed here; pydantic's core is the browsers'."""
    files: dict[str, bytes] = {}
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*")):
        name = path.relative_to(package).as_posix()
        first, _, rest = name.partition("/")
        needed = first not in (*_LEFT_OUT, "_data") or name.startswith(_ALL_THE_SAME)
        needed = rest in _OF_WEB if first == "web" else needed
        if needed and path.is_file() and "__pycache__" not in path.parts:
            files[f"slurmgpu/{name}"] = path.read_bytes()
    templates = data_folder("templates")
    for path in sorted(templates.rglob("*.j2")):
        files[f"slurmgpu/_data/templates/{path.relative_to(templates).as_posix()}"] = path.read_bytes()
    # A folder is looked for, also where the profile is based on none.
    files["slurmgpu/_data/clusters/.shipped"] = b""
    for library in _LIBRARIES:
        files |= _python_of(library)
    with zipfile.ZipFile(io.BytesIO(core)) as wheel:
        files |= {name: wheel.read(name) for name in wheel.namelist() if name.endswith((".py", ".so"))}
    files |= {name: text.encode() for name, text in _STAND_INS.items()}
    return {f"/{_CODE}/{name}": data for name, data in files.items()}


def _python_of(library: str) -> dict[str, bytes]:
    """Return the Python files of a library that is installed here; what is compiled in it has a twin in Python."""
    try:
        found = distribution(library)
    except PackageNotFoundError:
        raise SlurmGpuError(
            f"--export: {library} is not installed here", hint="pip install -U pydantic jinja2 ruamel.yaml"
        ) from None
    return {
        str(file): Path(str(file.locate())).read_bytes()
        for file in found.files or ()
        if file.suffix == ".py" and ".." not in file.parts
    }


def _zipped(files: Mapping[str, bytes]) -> bytes:
    """Return one archive, the same for the same files; not compressed, since it is packed as a whole."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(files):
            archive.writestr(zipfile.ZipInfo(path.lstrip("/"), (1980, 1, 1, 0, 0, 0)), files[path])
    return made.getvalue()


def _members(package: bytes) -> dict[str, bytes]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        for name in _OF_PYODIDE:
            member = archive.extractfile(f"package/{name}")
            assert member is not None  # its SHA-256 was checked
            found[name] = member.read()
    # The page installs nothing: what could be is not listed.
    lock = json.loads(found["pyodide-lock.json"])
    found["pyodide-lock.json"] = json.dumps({**lock, "packages": {}}).encode()
    return found


def _licences() -> str:
    """Return whose work is in the page."""
    said = [
        "Pyodide, with Python and its standard library, compiled for browsers\n\n"
        "Mozilla Public License 2.0 (Pyodide), PSF License Agreement (Python); unchanged, as the npm package pyodide has\n"
        f"them ({parts()[0].name}). Source: github.com/pyodide/pyodide"
    ]
    for library in ("slurmgpu", *_LIBRARIES, "pydantic_core"):
        found = distribution(library)
        texts = [
            Path(str(file.locate())).read_text(encoding="utf-8")
            for file in found.files or ()
            if "LICENSE" in file.name.upper() and ".dist-info" in str(file)
        ]
        said.append("\n\n".join([f"{found.metadata['Name']} {found.version}", *texts]))
    return "\n\n----\n\n".join(one.strip() for one in said) + "\n"


# The parts that slurmgpu does not have.

_PYODIDE = "314.0.7"
_PYODIDE_SHA256 = "66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0"
_ABI, _PYTHON = "pyemscripten_2026_0_wasm32", "3.14"
# What there is for that Python; pydantic takes one exact release.
_CORES = {
    "2.47.0": "cdf4dc2cdd0eacad1bd81c4d25422b4c25b206acae095d2d64e5d5cb7facc6b3",
    "2.48.0": "4fc45a49334c54541cbc97bf416d9300b4b1d3b2840dfb079b1123dc3f9ef5a6",
    "2.49.0": "62535ce2294441c986da1aeb743f7255ac99f3e0a3119bd8c44b36406d9f3721",
    "2.50.0": "ab3f95f737fc1b258b8210308fc02ce1442cf5950cf6d30b09ad89ab9e8afebd",
    "2.50.1": "99ba9bc2b8062ea0c326a990f7f00e6530c23579de66dd246e72c4cafef950a5",
    "2.50.2": "9a8a62281fd9c6a373b3fd3d473685e6838d43341eecde5f47729748e2c11ee3",
    "2.50.4": "e6da138a1ecc1341c8b788a5ee822670b03788e1f5decf7af9d461de6e508b8e",
    "2.50.5": "b2910ec0fa5aeb9bef70156f2b79f4783978fdcfaa7b2f1b5d1814458d2e79a1",
}


class Part(NamedTuple):
    """A file that is needed, and the command that downloads it into the folder that it runs in."""

    name: str
    sha256: str
    command: tuple[str, ...]


def parts() -> tuple[Part, Part]:
    """Return Pyodide and pydantic's core; InvalidInput where there is no core for the pydantic that is installed here."""
    core = version("pydantic_core")
    if core not in _CORES:
        raise InvalidInput(
            f"pydantic {version('pydantic')} is installed here, and its core {core} is not known to run in browsers; "
            f"known: {', '.join(_CORES)}",
            hint="make the page from a virtual environment with another one: pip install 'pydantic==2.14.3'",
        )
    pip = (
        "pip", "download", "--no-deps", "--only-binary", ":all:", "--platform", _ABI, "--python-version", _PYTHON,
        "--implementation", "cp", f"pydantic-core=={core}",
    )  # fmt: skip
    wheel = f"pydantic_core-{core}-cp314-cp314-{_ABI}.whl"
    return (
        Part(f"pyodide-{_PYODIDE}.tgz", _PYODIDE_SHA256, ("npm", "pack", f"pyodide@{_PYODIDE}")),
        Part(wheel, _CORES[core], pip),
    )


def find(part: Part, folder: Path) -> bytes:
    """Return a part's file; InvalidInput where it is not there, or is another one."""
    path = folder / part.name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read: {error.strerror}; a page without a server needs it, and it does not come with slurmgpu",
            hint=_ways(folder),
        ) from None
    found = hashlib.sha256(data).hexdigest()
    if found != part.sha256:
        raise InvalidInput(
            f"{path} is not the file that it should be: its SHA-256 is {found}, where {part.sha256} is expected",
            hint=f"remove it; {_ways(folder)}",
        )
    return data


def _ways(folder: Path) -> str:
    commands = "; ".join(" ".join(part.command) for part in parts())
    return (
        f"with a network: add --fetch, which downloads into {folder}; or run these elsewhere, and name the folder with "
        f"--parts: {commands}"
    )


def download(part: Part, folder: Path) -> None:
    """Download a part that is not in the folder yet; SlurmGpuError where that fails."""
    if (folder / part.name).is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    elsewhere = (
        f"run it on a machine with a network: {' '.join(part.command)}; then put {part.name} into {folder}"
    )
    program = [sys.executable, "-m", "pip"] if part.command[0] == "pip" else [shutil.which("npm") or ""]
    if not program[0]:
        missing = "npm, which --fetch downloads Pyodide with, is not installed here"
        raise SlurmGpuError(missing, hint=elsewhere)
    # In a new folder: in this one, which may be shared, Python would import modules, and npm read its settings.
    with tempfile.TemporaryDirectory(prefix="slurmgpu-") as own:
        Path(own, "package.json").write_bytes(b"{}")  # npm looks for none in the folders above
        try:
            words = [*program, *part.command[1:]]
            done = subprocess.run(
                words, cwd=own, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
            )
            if not done.returncode:
                with (folder / part.name).open("xb") as file:  # and not through a link
                    file.write(Path(own, part.name).read_bytes())
        except OSError as error:
            raise SlurmGpuError(
                f"{' '.join(part.command)} has failed: {error.strerror}", hint=elsewhere
            ) from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "error" in line.lower()] or ["it says nothing"]
        raise SlurmGpuError(f"{' '.join(part.command)} has failed: {said[-1].strip()}", hint=elsewhere)
