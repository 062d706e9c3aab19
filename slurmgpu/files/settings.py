"""Settings in layers (site, lab, user, project), and the folder of the user's own state."""

from __future__ import annotations

import io
import os
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, Strict

from slurmgpu.errors import InvalidInput
from slurmgpu.files.data import TemplateSource, read_extensions
from slurmgpu.files.layered import Key, Layered, Origin
from slurmgpu.files.trust import Foreign, IsForeign, Trust, write_atomically
from slurmgpu.files.yaml import read_file, validate
from slurmgpu.models.base import Model, Text, Word
from slurmgpu.models.environment import Environment
from slurmgpu.models.job_parts import SamplerPolicy, WhenSampled

PROJECT_FILE = "slurmgpu.yaml"
LAYER_FILE = "config.yaml"
# A project may have templates/ of its own, for something else.
_TEMPLATES = {"user": "templates", "project": "slurmgpu-templates"}

# Keys of a job that say the same in different ways: the later layer's way wins.
_R = "resources"
EXCLUSIVE_JOB_KEYS: tuple[frozenset[Key], ...] = (
    frozenset({(_R, "gpus"), (_R, "gpus_per_node")}),
    frozenset({(_R, "memory"), (_R, "memory_per_cpu"), (_R, "memory_per_gpu")}),
    frozenset({(_R, "cpus_per_task"), (_R, "cpus_per_gpu")}),
    frozenset({("command",), ("train",), ("script",), ("steps",)}),
    frozenset({("command",), ("train",), ("steps",), ("shebang",)}),
)


class Policy(Model):
    """Rules of a site for its users of this tool; only its own settings may have them."""

    test_only: bool = True
    """Allow `sbatch --test-only` to be asked for estimates (`slurmgpu plan --when`, `slurmgpu submit --dry-run`)."""
    max_slurm_calls: Annotated[int, Field(ge=1)] | None = None
    """The most calls of Slurm's commands in one discovery; left out, as many as it takes."""
    max_run_processes: Annotated[int, Field(ge=1)] | None = None
    """The most processes of a `slurmgpu run` on this machine; left out, any number."""
    poll_floor: Annotated[int, Field(ge=1, le=3600)] | None = None
    """The least seconds between two looks of a user's processes at the same jobs; `poll_floor` of the settings may only be
    more."""
    sampler: WhenSampled = "default"
    """Jobs that may be sampled as they run (docs/sampling.md); default: those that ask for it, and those with GPUs that say
    nothing; on_request: those that ask for it; never: none, and a job that asks for it is refused."""
    sampler_seconds: Annotated[int, Field(ge=1, le=3600)] = 1
    """The fewest seconds between two samples of a job."""

    @property
    def sampling(self) -> SamplerPolicy:
        """The two about samples, for the planner."""
        return SamplerPolicy(self.sampler, self.sampler_seconds)


class Assistants(Model):
    """Rights of assistants through `slurmgpu mcp` besides reading; only the user's own settings may grant them."""

    allow: Annotated[tuple[Literal["submit", "cancel"], ...], Strict(False)] = ()
    """Rights over jobs: submit, cancel; default: neither."""
    gpu_hours: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    """The budget in GPU-hours: what all jobs that assistants ever submitted may use together, each until its time limit."""


class Settings(Model):
    """Content of a settings file."""

    cluster: Text | None = None
    """The cluster profile to plan on: its name, or a file; `--cluster` and SLURMGPU_CLUSTER win over it. Left out, a plain
    Slurm is assumed."""
    runs: Text | None = None
    """Where run directories go; `$NAME` and ~ expand on this machine. Left out, runs/ in the work folder."""
    images: Text | None = None
    """Where `slurmgpu submit` keeps the images that it pulls, a folder that all nodes see; `$NAME` and ~ expand on this
    machine. Left out, ~/.cache/slurmgpu/images."""
    packed: Text | None = None
    """Where `slurmgpu submit` keeps the environments that it packs (`environment: {python: {stage: node}}`), a folder that
    all nodes see; `$NAME` and ~ expand on this machine. Left out, the folder environments beside that of the images."""
    lab: Text | None = None
    """A shared folder with a config.yaml and clusters/ of the lab's own, against the file that names it; `$NAME` and ~ expand."""
    templates: Text | None = None
    """A folder with templates that replace the shipped ones, each alone, or a file that replaces the main one, against the
    file that names it; `$NAME` and ~ expand. Folders of several layers lie on top of each other."""
    extensions: Text | None = None
    """A folder with your own launchers (launchers/NAME.py) and container runtimes (containers/NAME.py), against the file
    that names it; `$NAME` and ~ expand."""
    environments: dict[Word, Environment] = Field(default_factory=dict)
    """Named environments; they win over the cluster's."""
    job: dict[str, object] = Field(default_factory=dict)
    """Values that every job starts from, laid out as in a job file."""
    status_columns: Annotated[tuple[Text, ...], Strict(False)] = ()
    """The columns of `slurmgpu status`, as `--columns` takes them; left out, those that say something of the jobs there are."""
    poll_floor: Annotated[int, Field(ge=1, le=3600)] = 2
    """The least seconds between two looks at the same jobs: within them your processes on one machine (status, logs, waits)
    share what one of them has asked. More than 30 slows down `--watch` and `--follow`, too."""
    trusted: Annotated[tuple[Text, ...], Strict(False)] = ()
    """Folders whose settings, profiles, templates and job files count although somebody else wrote them, or may; in the
    user's own settings and the site's only."""
    mcp: Assistants = Assistants.model_construct()
    """Rights of assistants through `slurmgpu mcp` besides reading; in the user's own settings only."""
    policy: Policy = Policy.model_construct()
    """Rules of the site; in the site's own settings only."""


class LoadedSettings(NamedTuple):
    """The merged settings, their origins, and the folders they were looked for in."""

    settings: Settings
    layered: Layered
    folders: dict[str, Path]
    """Layer name -> its folder, in rising precedence."""
    trust: Trust = Trust()
    """Owners whose files count besides the user's own."""
    unused: tuple[Foreign, ...] = ()
    """Files of others that were found and are not used."""
    of_others: tuple[Foreign, ...] = ()
    """Files of others that are used: named by the user or the site, or trusted."""
    templates: tuple[tuple[str, Origin, str], ...] = ()
    """The value of ``templates`` in each layer, with the layer's name and its place, in rising precedence."""

    def template_sources(self, environ: Mapping[str, str]) -> tuple[TemplateSource, ...]:
        """Return the templates of the layers, the topmost first; a relative path is against the file that names it."""
        sources = []
        for layer, origin, value in reversed(self.templates):
            path = Path(origin.where).parent / expand_here(value, environ, f"{origin}: templates")
            if layer == "project":
                sources.append(TemplateSource(layer, path, self.trust))
            else:  # the user, the lab or the site trusts it by naming it
                sources.append(TemplateSource.named(layer, path, self.trust.folders))
        return tuple(sources)

    @property
    def job(self) -> Layered:
        """Return the values that every job starts from."""
        return self.layered.part("job")


def expand_here(value: str, environ: Mapping[str, str], what: str) -> Path:
    """Expand ``~`` and ``$NAME`` on this machine; a variable that is not set is an error."""

    def replace(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not environ.get(name):
            raise InvalidInput(
                f"{what}: {value!r} uses ${name}, which is not set here", hint="set it, or write the path out"
            )
        return environ[name]

    expanded = re.sub(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", replace, value)
    return Path(expanded).expanduser()


def runs_folder(chosen: str | None, here: Path, environ: Mapping[str, str]) -> Path:
    """Return the folder of run directories: as chosen (against the work folder ``here``), else runs/ in it."""
    return (here / (expand_here(chosen, environ, "runs") if chosen else "runs")).absolute()


def runs_by_settings(start: Path, environ: Mapping[str, str]) -> Callable[[Path], Path]:
    """Return a function from work folders to their folders of runs, by the settings that hold in ``start``."""
    chosen = load_settings(start).settings.runs
    return lambda folder: runs_folder(chosen, folder, environ)


def _project_file(start: Path) -> Path | None:
    """Return the nearest slurmgpu.yaml up to the repository's root, the home folder or the end of the file system."""
    home, device = Path.home(), _device(start)
    for folder in (start, *start.parents):
        if _device(folder) != device:
            return None
        if (folder / PROJECT_FILE).is_file():
            return folder / PROJECT_FILE
        if (folder / ".git").exists() or folder == home:
            return None
    return None


def _device(folder: Path) -> int | None:
    try:
        return folder.stat().st_dev
    except OSError:
        return None


def load_settings(start: Path, environ: Mapping[str, str] | None = None) -> LoadedSettings:
    """Read and merge the layers for work in the folder ``start``; InvalidInput names file and line."""
    environ = os.environ if environ is None else environ
    folders: dict[str, Path] = {"site": Path(environ.get("SLURMGPU_SITE") or "/etc/slurmgpu")}
    user = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "slurmgpu"
    site_layer, user_layer = _read_layer(folders["site"]), _read_layer(user)
    lab = user_layer.data.get("lab") or site_layer.data.get("lab")
    layers = [site_layer]
    trusted = [folders["site"], *_trusted(site_layer, environ), *_trusted(user_layer, environ)]
    if isinstance(lab, str):
        named_in = user if "lab" in user_layer.data else folders["site"]
        folders["lab"] = named_in / expand_here(lab, environ, "lab")
        layers.append(_read_layer(folders["lab"]))
        trusted.append(folders["lab"])
    folders["user"] = user
    layers.append(user_layer)
    trust = Trust.of(trusted)
    unused: tuple[Foreign, ...] = ()
    project = _project_file(start)
    if project is not None:
        try:
            layers.append(read_file(project, trust))
            folders["project"] = project.parent
        except InvalidInput as error:
            # One of others is not in the way, and one of theirs that cannot be read no more than one that can be.
            foreign = error.foreign if isinstance(error, IsForeign) else trust.foreign(project)
            if foreign is None:
                raise
            unused = (foreign,)
    exclusive = tuple(frozenset(("job", *key) for key in group) for group in EXCLUSIVE_JOB_KEYS)
    merged = Layered({}, {(): Origin("the settings")})
    take_out, own, sites = "take it out of this file", user / LAYER_FILE, folders["site"] / LAYER_FILE
    reserved = {
        "trusted": (
            (site_layer, user_layer),
            f"whom to trust is the user's to say, in {own}",
            f"{take_out}; slurmgpu config trust FOLDER adds a folder",
        ),
        "mcp": ((user_layer,), f"what assistants may do is the user's to say, in {own}", take_out),
        "policy": ((site_layer,), f"policy is the site's to set, in {sites}", take_out),
    }
    for layer in filter(lambda layer: layer.data, layers):
        _extend(layer, environ, trust, is_project="project" in folders and layer is layers[-1])
        validate(Settings, layer, "settings")  # each file answers for its own mistakes
        for key, (owners, whose, hint) in reserved.items():
            if key in layer.data and not any(layer is one for one in owners):
                raise InvalidInput(f"{layer.origin((key,))}: {whose}", hint=hint)
        merged.overlay(layer, exclusive)
    settings = validate(Settings, merged, "settings") if merged.data else Settings.model_construct()
    templates = tuple(
        (name, origin, value)
        for name, layer in zip(folders, layers, strict=True)
        if (origin := layer.origin(("templates",))) and isinstance(value := layer.data.get("templates"), str)
    )
    loaded = LoadedSettings(settings, merged, folders, trust, unused, templates=templates)
    others = (Trust().foreign(file) for _, file in layer_files(loaded))
    return loaded._replace(of_others=tuple(one for one in others if one is not None))


def _trusted(layer: Layered, environ: Mapping[str, str]) -> list[Path]:
    listed = layer.data.get("trusted")
    folders = listed if isinstance(listed, list) else ()
    return [expand_here(one, environ, "trusted") for one in folders if isinstance(one, str)]


def _extend(layer: Layered, environ: Mapping[str, str], trust: Trust, *, is_project: bool) -> None:
    """Add a layer's own launchers and container runtimes, whose names its other values may use."""
    named, origin = layer.data.get("extensions"), layer.origin(("extensions",))
    if not isinstance(named, str) or origin is None:
        return
    folder = Path(origin.where).parent / expand_here(named, environ, "extensions")
    # The user, the site or the lab names it, and trusts it by that; a project's must be the user's own, or trusted.
    read_extensions(folder, trust if is_project else Trust((*trust.folders, *Trust.of([folder]).folders)))


def _read_layer(folder: Path) -> Layered:
    path = folder / LAYER_FILE
    return read_file(path) if path.is_file() else Layered({}, {})


def layer_files(settings: LoadedSettings) -> list[tuple[str, Path]]:
    """Return the settings file of each layer that was looked for, in rising precedence."""
    return [
        (layer, folder / (PROJECT_FILE if layer == "project" else LAYER_FILE))
        for layer, folder in settings.folders.items()
    ]


def trusted_by_user(settings: LoadedSettings) -> list[str]:
    """Return the folders that the user's own settings file trusts, as it has them."""
    listed = _read_layer(settings.folders["user"]).data.get("trusted")
    return [str(one) for one in listed] if isinstance(listed, list) else []


def write_user_settings(settings: LoadedSettings, values: Mapping[tuple[str, ...], str | list[str]]) -> Path:
    """Set values in the user's settings file, all or none, keeping its comments; return the file's path."""
    return _write_values(settings.folders["user"] / LAYER_FILE, values)


def templates_folder(settings: LoadedSettings, layer: str, start: Path, environ: Mapping[str, str]) -> Path:
    """Return the folder of templates of the layer ``user`` or ``project``: by its settings, else the default one."""
    for source in settings.template_sources(environ):
        if source.layer == layer and source.path.is_file():
            raise InvalidInput(
                f"templates: the settings of the {layer} name a file, {source.path}, which replaces the main template only",
                hint="name a folder there, with that file in it as script.sh.j2; or give --to FOLDER",
            )
        if source.layer == layer:
            return source.path
    return _settings_file(settings, layer, start).parent / _TEMPLATES[layer]


def name_templates(settings: LoadedSettings, layer: str, start: Path) -> Path | None:
    """Name the layer's folder of templates in its settings file and return that file; None where it names one."""
    if any(layer == name for name, _, _ in settings.templates):
        return None
    return _write_values(_settings_file(settings, layer, start), {("templates",): _TEMPLATES[layer]})


def _settings_file(settings: LoadedSettings, layer: str, start: Path) -> Path:
    """Return the settings file of a layer; of a project that has none, one in the folder ``start``."""
    path = dict(layer_files(settings)).get(layer, start / PROJECT_FILE)
    foreign = next((one for one in settings.unused if one.path == path), None)
    if foreign is not None:
        raise InvalidInput(
            f"{path} {foreign.why}, and is not used",
            hint=f"where you trust it: slurmgpu config trust {shlex.quote(str(path.parent))}; or copy with --user",
        )
    return path


def _write_values(path: Path, values: Mapping[tuple[str, ...], str | list[str]]) -> Path:
    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap

    writer = YAML()
    data = writer.load(path.read_text(encoding="utf-8")) if path.is_file() else None
    data = CommentedMap() if data is None else data
    for (*above, key), value in values.items():
        place = data
        for name in above:
            if not isinstance(place.get(name), dict):
                place[name] = CommentedMap()
            place = place[name]
        place[key] = value
    text = io.StringIO()
    writer.dump(data, text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.getvalue())
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from None
    return path


def state_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder slurmgpu in XDG_STATE_HOME, or in ~/.local/state where that is unset or relative."""
    state = environ.get("XDG_STATE_HOME") or ""
    home = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    return home / "slurmgpu"
