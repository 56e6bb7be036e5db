"""The job file: its schema, and the way from a file to a checked value."""

from clusterddp.config.load import (
    Override,
    change_job,
    load_job,
    parse_override,
    read_job,
    render_job,
    runs_root,
)
from clusterddp.config.schema import Job

__all__ = [
    "Job",
    "Override",
    "change_job",
    "load_job",
    "parse_override",
    "read_job",
    "render_job",
    "runs_root",
]
