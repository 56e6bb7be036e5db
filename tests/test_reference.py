"""The pages that are made from the code are current, and links lead somewhere."""

import json
import re
from pathlib import Path

import pytest

from clusterddp.cli import main
from tests.reference import DOCS, pages, render_job_file
from tests.runs import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
JOBS = sorted((ROOT / "jobs").glob("*.yaml"))
MADE = pages()


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_page_is_current(path: Path) -> None:
    """`python -m tests.reference` writes them."""
    assert path.read_text() == MADE[path], "run python -m tests.reference"


def test_every_key_says_what_it_means() -> None:
    """No row of the reference ends with an empty cell."""
    rows = [line for line in render_job_file().splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    assert [row for row in rows if row.endswith("|  |")] == []


@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.name)
def test_examples_name_the_schema_first(job: Path) -> None:
    """Editors find the schema from the first line of a job file."""
    first = job.read_text().splitlines()[0]
    place = first.removeprefix("# yaml-language-server: $schema=")
    assert place != first
    assert (job.parent / place).is_file()


def test_schema_says_what_the_loader_does() -> None:
    """No unknown keys, durations are text, defaults as they stand in a file."""
    schema = json.loads((DOCS / "job.schema.json").read_text())
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["name"]
    timeout = schema["$defs"]["DistParams"]["properties"]["timeout"]
    assert (timeout["type"], timeout["default"]) == ("string", "3600s")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_to_files(page: Path) -> None:
    """Every relative link of a page exists."""
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    local = [target for target in targets if "://" not in target]
    assert [one for one in local if not (page.parent / one).exists()] == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`clusterddp --version` names the package's version."""
    assert main(["--version"]) == 0
    assert re.fullmatch(r"clusterddp \d+\.\d+\S*\n", capsys.readouterr().out)
