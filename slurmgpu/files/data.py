"""Where the shipped templates, jobs and cluster profiles are: in the wheel, or in the checkout."""

from __future__ import annotations

from pathlib import Path

from slurmgpu.errors import InvalidInput

__all__ = ["data_folder", "read_templates"]

_PACKAGE = Path(__file__).resolve().parent.parent
_CHECKOUT = {"templates": "templates", "jobs": "jobs", "clusters": "examples/clusters"}


def data_folder(name: str) -> Path:
    """The folder of shipped ``templates``, ``jobs`` or ``clusters``.

    The package's own ``_data`` first, then the checkout around it; never sys.path, where an editable
    install leaves stale copies.
    """
    packaged = _PACKAGE / "_data" / name
    if packaged.is_dir():
        return packaged
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / _CHECKOUT[name]).is_dir():
        return checkout / _CHECKOUT[name]
    raise InvalidInput(
        f"the shipped {name} are missing from this installation", hint="install slurmgpu again"
    )


def read_templates(override: Path | None = None) -> dict[str, str]:
    """All templates by name; those in the user's folder, or a file for the main one, replace the shipped ones."""
    templates = _read_folder(data_folder("templates"))
    if override is None:
        return templates
    if override.is_dir():
        return {**templates, **_read_folder(override)}
    try:
        return {**templates, "script.sh.j2": override.read_text(encoding="utf-8")}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"template {str(override)!r}: {getattr(error, 'strerror', None) or error}",
            hint="give a file that replaces script.sh.j2, or a folder of templates",
        ) from None


def _read_folder(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(folder.rglob("*.j2"))
        if path.is_file()
    }
