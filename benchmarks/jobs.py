"""The job file of our side in the comparisons of whole runs."""

from pathlib import Path

import yaml

from tests.runs import ROOT


def write_job(
    home: Path,
    *,
    pause_s: float,
    launcher: str = "slurm",
    every: int = 20,
    environ: dict[str, str] | None = None,
    **slurm: object,
) -> Path:
    """Write `home/job.yaml`: two ranks on one node, a log point and a diary a step."""
    values = {
        "name": "bench",
        "experiment": f"{ROOT}/benchmarks/peers/ours.py:build",
        "params": {"diary": str(home), "pause_s": pause_s},
        "launcher": launcher,
        "train": {"epochs": 1000, "global_batch_size": 32},
        "checkpoint": {"every": f"{every} steps"},
        "log": {"every": 1},
        "retry": {"crashes": 1000, "stall_timeout": "20s"},
        "code": {"snapshot": False},
        "slurm": {
            "tasks_per_node": 2,
            "time": "30m",
            "env": {"PYTHONPATH": str(ROOT), **(environ or {})},
            **slurm,
        },
    }
    path = home / "job.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def write_short_job(home: Path, **changes: object) -> Path:
    """Write a job file that is only looked at, or waits in the queue."""
    path = write_job(home, pause_s=0.0, extra={"hold": True})
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))
    return path
