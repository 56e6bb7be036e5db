"""Presets of the `slurm:` section: `slurm_templates/*.yaml`, or a file of one's own."""

from pathlib import Path

from clusterddp.config.yaml import Source, read_source
from clusterddp.errors import JobFileError

__all__ = ["find_template", "list_templates", "template_directory"]


def template_directory() -> Path:
    """Give the directory of the presets that ship with the package.

    A wheel carries it inside the package, a checkout beside it: setuptools maps a
    directory by `package_dir` into wheels but not into editable installs.
    """
    package = Path(__file__).resolve().parent.parent
    inside = package / "slurm_templates"
    return inside if inside.is_dir() else package.parent / "slurm_templates"


def list_templates() -> list[str]:
    """Give the names of the presets that ship with the package."""
    return sorted(path.stem for path in template_directory().glob("*.yaml"))


def find_template(name: str, beside: Path) -> Source:
    """Read a preset by its name, or by its path when the name ends in .yaml.

    Args:
        name: `cpu`, or `my/site.yaml` relative to the job file.
        beside: the directory of the job file.

    Raises:
        JobFileError: there is no such preset.
    """
    if name.endswith((".yaml", ".yml")):
        return read_source(beside / name)
    path = template_directory() / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(list_templates()) or "none"
        message = (
            f"template {name!r}: not found; the presets are {known}; a file of your "
            "own is named by its path, ending in .yaml"
        )
        raise JobFileError(message)
    return read_source(path)
