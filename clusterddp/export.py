"""`clusterddp.export`: the weights of a run as one file."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clusterddp.errors import UsageError
from clusterddp.terminal import run_verb, talk_to_stderr

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["build_parser", "main"]

_FORMATS = (".pt", ".safetensors")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb and give its exit code."""
    given = build_parser().parse_args(arguments)
    talk_to_stderr()
    return run_verb(lambda: _export(given))


def build_parser() -> argparse.ArgumentParser:
    """Give the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="clusterddp export",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Write the weights of a run's checkpoint, verified, as one file:\n"
        "a state dict, for torch.load(weights_only=True) and load_state_dict, or a\n"
        ".safetensors file (needs the package safetensors). Prints its path.",
        epilog="examples:\n"
        "  clusterddp export digits digits.pt\n"
        "  clusterddp export digits --step 500 --ema digits.safetensors\n"
        "\nexit codes: 0 written, 2 no such run, step or average, 5 no good checkpoint",
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="run directory, NAME or NAME/ID")
    add("out", metavar="OUT.pt|OUT.safetensors", type=Path, help="what to write")
    add("--step", type=int, metavar="N", help="of this step; default the newest")
    add("--ema", action="store_true", help="the average of the weights (train.ema)")
    add("--runs", dest="root", metavar="DIR", help="where runs lie ($CLUSTERDDP_RUNS)")
    add("--json", action="store_true", help="print one JSON object instead")
    return parser


def _export(given: argparse.Namespace) -> int:
    from clusterddp.runs.finding import find_root, find_run
    from clusterddp.runs.published import step_of
    from clusterddp.runs.source import find_checkpoint

    out: Path = given.out
    if out.suffix not in _FORMATS:
        raise UsageError(
            f"{out}: ends in {out.suffix or 'nothing'}, expected one of "
            f"{', '.join(_FORMATS)}; the ending says which format is written"
        )
    run = find_run(given.run, find_root(given.root, os.environ))
    source = find_checkpoint(run, given.step)
    weights = _read(source, with_average=given.ema)
    _write(out, weights, {"run": str(run.path), "step": str(step_of(source))})
    values = {"path": str(out), "run": str(run.path), "step": step_of(source)}
    sys.stdout.write(f"{json.dumps(values) if given.json else out}\n")
    return 0


def _read(source: Path, *, with_average: bool) -> "dict[str, Tensor]":
    import torch

    weights = torch.load(source / "model.pt", map_location="cpu", weights_only=True)
    if with_average:
        path = source / "ema.pt"
        if not path.is_file():
            raise UsageError(
                f"{source}: holds no average of the weights; leave --ema out, or "
                "train with train.ema, such as 0.999"
            )
        average = torch.load(path, map_location="cpu", weights_only=True)
        weights.update(average["model"])
    return dict(weights)


def _write(out: Path, weights: "dict[str, Tensor]", about: dict[str, str]) -> None:
    """Write aside, then rename: a file of that name is replaced whole, or kept."""
    aside = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        _dump(aside, out.suffix, weights, about)
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.replace(out)
    except OSError as error:
        raise UsageError(
            f"{out}: cannot be written: {error.strerror or error}; name another place"
        ) from error
    finally:
        aside.unlink(missing_ok=True)


def _dump(
    path: Path, suffix: str, weights: "dict[str, Tensor]", about: dict[str, str]
) -> None:
    import torch

    if suffix == ".pt":
        with path.open("wb") as file:
            torch.save(weights, file)
        return
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise UsageError(
            "safetensors: the package is not installed; pip install "
            "'clusterddp[safetensors]', or write a .pt file"
        ) from error
    # Tied tensors become copies: the format refuses shared memory.
    plain = {name: value.clone().contiguous() for name, value in weights.items()}
    save_file(plain, path, metadata={"format": "pt", **about})


if __name__ == "__main__":
    sys.exit(main())
