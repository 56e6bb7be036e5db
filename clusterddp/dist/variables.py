"""Environment variables as numbers, refused in words that name them."""

import re
from collections.abc import Mapping

from clusterddp.errors import WorldError

__all__ = ["integer", "optional", "require"]


def require(environ: Mapping[str, str], names: tuple[str, ...]) -> None:
    """Refuse an environment in which some of these are not set, naming them all.

    Raises:
        WorldError: one at least is missing.
    """
    missing = [name for name in names if not environ.get(name)]
    if not missing:
        return
    if missing == ["LOCAL_RANK"]:
        hint = (
            "torch.distributed.launch sets it only with --use-env, other launchers "
            "need `export LOCAL_RANK=...`; or start with torchrun"
        )
    elif "SLURM" in missing[0]:
        hint = "start every rank with `srun`"
    else:
        hint = (
            "start with torchrun, or unset the others and choose the launcher "
            "slurm (under srun) or none"
        )
    present = [name for name in names if environ.get(name)]
    message = (
        f"environment: {', '.join(missing)} not set, expected with "
        f"{', '.join(present) or 'the others'}; {hint}"
    )
    raise WorldError(message)


def optional(
    environ: Mapping[str, str],
    name: str,
    default: int,
    *,
    least: int = 1,
    below: int | None = None,
) -> int:
    """Give a variable as a whole number, or a default where it is not set.

    Raises:
        WorldError: it is set to something else.
    """
    if not environ.get(name):
        return default
    return integer(environ, name, least=least, below=below)


def integer(
    environ: Mapping[str, str], name: str, *, least: int = 0, below: int | None = None
) -> int:
    """Give a variable as a whole number within bounds.

    Raises:
        WorldError: it is not a number, or out of bounds.
    """
    text = environ[name]
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        value = int(text)
        if value >= least and (below is None or value < below):
            return value
    upper = f" and less than {below}" if below is not None else ""
    message = (
        f"environment: found {name}={text}, expected a whole number of at least "
        f"{least}{upper}; it is set by the launcher, do not set it by hand"
    )
    raise WorldError(message)
