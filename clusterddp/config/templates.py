"""Presets of the `slurm:` and `dist_params:` sections: files that a job file names."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from clusterddp.config.yaml import KeyPath, Source, read_source
from clusterddp.errors import JobFileError

__all__ = [
    "SECTIONS",
    "find_template",
    "list_templates",
    "template_directories",
    "template_directory",
    "template_sections",
]

SECTIONS = ("slurm", "dist_params")
"""What a preset may hold."""


def template_directory() -> Path:
    """Give the directory of the presets that ship with the package.

    A wheel carries it inside the package, a checkout beside it: setuptools maps a
    directory by `package_dir` into wheels but not into editable installs.
    """
    package = Path(__file__).resolve().parent.parent
    inside = package / "slurm_templates"
    return inside if inside.is_dir() else package.parent / "slurm_templates"


def template_directories(environ: Mapping[str, str]) -> list[Path]:
    """Give where presets are looked for, first found wins.

    `$CLUSTERDDP_TEMPLATES` (several, separated by colons), the user's
    `~/.config/clusterddp/templates` (below `$XDG_CONFIG_HOME` where that is set), and
    those that ship with the package.
    """
    named = environ.get("CLUSTERDDP_TEMPLATES", "").split(":")
    config = Path(environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    return [
        *(Path(name).expanduser() for name in named if name),
        config / "clusterddp" / "templates",
        template_directory(),
    ]


def list_templates(environ: Mapping[str, str] | None = None) -> list[str]:
    """Give the names of all presets that there are."""
    places = template_directories(os.environ if environ is None else environ)
    return sorted({path.stem for place in places for path in place.glob("*.yaml")})


def find_template(
    name: str, beside: Path, environ: Mapping[str, str] | None = None
) -> Source:
    """Read a preset by its name, or by its path when the name ends in .yaml.

    Args:
        name: `cpu`, or `my/site.yaml` relative to the job file.
        beside: the directory of the job file.
        environ: the environment; this process's when None.

    Raises:
        JobFileError: there is no such preset.
    """
    if name.endswith((".yaml", ".yml")):
        return read_source(beside / name)
    places = template_directories(os.environ if environ is None else environ)
    for place in places:
        if (place / f"{name}.yaml").is_file():
            return read_source(place / f"{name}.yaml")
    known = ", ".join(list_templates(environ)) or "none"
    message = (
        f"template {name!r}: not found; the presets are {known}; a file of your own is "
        "named by its path, ending in .yaml, or lies in ~/.config/clusterddp/templates"
    )
    raise JobFileError(message)


def template_sections(
    preset: Source,
) -> Iterator[tuple[str, KeyPath, dict[str, object]]]:
    """Give the sections that a preset holds: name, where it stands, values.

    A preset without the words `slurm:` and `dist_params:` is the slurm section itself.

    Raises:
        JobFileError: a section holds no keys and values, or there is a third one.
    """
    if not set(preset.values) & set(SECTIONS):
        yield "slurm", (), preset.values
        return
    for name, values in preset.values.items():
        if name not in SECTIONS or not isinstance(values, dict):
            found = type(values).__name__ if name in SECTIONS else "an unknown section"
            message = (
                f"{preset.at((name,))}: {name}: found {found}, expected the sections "
                "slurm and dist_params with keys and values"
            )
            raise JobFileError(message)
        yield name, (name,), values
