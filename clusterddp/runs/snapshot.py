"""The code snapshot: what the ranks import is what stood there at submit.

Stored once per content below the runs' root, so a sweep of a hundred runs keeps
one copy. The supervisor is not affected; only the ranks' import path is.
"""

import filecmp
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from clusterddp.config.references import parse_reference
from clusterddp.config.schema import Job
from clusterddp.errors import UsageError
from clusterddp.files import fsync_directory
from clusterddp.runs.directory import RunDirectory

__all__ = [
    "CodePlan",
    "changed_names",
    "digest_code",
    "link_snapshot",
    "plan_snapshot",
    "snapshot_path",
    "store_snapshot",
]

_MIB = 1024 * 1024


@dataclass(frozen=True)
class CodePlan:
    """Which files a snapshot holds.

    Attributes:
        root: the directory that the names count from.
        names: the files, relative to the root, sorted.
        commit: the commit of the checkout, empty without git.
        notes: what the user should know of the choice.
    """

    root: Path
    names: tuple[str, ...]
    commit: str
    notes: tuple[str, ...]


def plan_snapshot(job: Job, job_file: Path) -> CodePlan:
    """Choose the files: tracked ones under git, else the .py files beside the job.

    Raises:
        UsageError: they are larger than `code.max_mb`, or `code.include` finds none.
    """
    beside = job_file.resolve().parent
    target = _target_file(job)
    root = _git_root(beside)
    notes: list[str] = []
    if root is not None:
        names = set(_git_files(root))
    else:
        root, names = _python_files(beside, target)
        if names:
            files = "file" if len(names) == 1 else "files"
            notes.append(f"{beside} is no git checkout: kept {len(names)} .py {files}")
    names |= _included(root, job.code.include)
    if target is not None and target.is_relative_to(root):
        names.add(str(target.relative_to(root)))
    elif target is not None:
        notes.append(f"{target} lies outside {root}: used from where it is")
    plan = CodePlan(root, tuple(sorted(names)), _git_commit(root), tuple(notes))
    _check_size(plan, job.code.max_mb)
    return plan


def store_snapshot(plan: CodePlan, runs_root: Path) -> str:
    """Copy the files below `<runs root>/.code/<digest>`, unless they are there.

    Returns:
        The digest of names, modes and contents.
    """
    digest = digest_code(plan)
    home = runs_root / ".code"
    final = home / digest
    if final.is_dir():
        return digest
    home.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{digest}.", dir=home))
    try:
        for name in plan.names:
            _copy(plan.root / name, temporary / name)
        temporary.chmod(0o755)
        # What was copied may be newer than what was looked at.
        digest = digest_code(replace(plan, root=temporary))
        final = home / digest
        temporary.rename(final)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not final.is_dir():  # somebody else was quicker with the same content
            message = f"{home}: the code cannot be kept ({error.strerror}); free space"
            raise UsageError(message) from error
    fsync_directory(home)
    return digest


def changed_names(plan: CodePlan, kept: Path) -> list[str]:
    """Give the files that are no longer what a snapshot holds, removed ones too."""
    return [
        name
        for name in plan.names
        if not (plan.root / name).is_file()
        or not filecmp.cmp(plan.root / name, kept / name, shallow=False)
    ]


def link_snapshot(run: RunDirectory, digest: str) -> None:
    """Let `code` in the run directory point at its snapshot."""
    run.code.symlink_to(Path("..") / ".." / ".code" / digest)


def snapshot_path(job: Job, run: RunDirectory, path: Path) -> Path:
    """Give where a file of the user's code lies for the ranks of a run."""
    if job.code.root is None or not run.code.is_dir():
        return path
    root = Path(job.code.root)
    kept = run.code.resolve() / path.relative_to(root) if _is_in(path, root) else path
    return kept if kept.is_file() else path


def _is_in(path: Path, root: Path) -> bool:
    return path.is_relative_to(root)


def _target_file(job: Job) -> Path | None:
    reference = parse_reference(job.experiment or job.script or "")
    return Path(reference.target) if reference.is_file else None


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _git_root(directory: Path) -> Path | None:
    top = _git(directory, "rev-parse", "--show-toplevel")
    return Path(top.rstrip("\n")) if top else None


def _git_commit(root: Path) -> str:
    return (_git(root, "rev-parse", "HEAD") or "").strip()


def _git_files(root: Path) -> Iterable[str]:
    listed = _git(root, "ls-files", "-z", "--cached", "--recurse-submodules") or ""
    for name in listed.split("\0"):
        if name and (root / name).is_file():
            yield name


def _python_files(beside: Path, target: Path | None) -> tuple[Path, set[str]]:
    """Give the .py files beside the job file, and beside an experiment next door."""
    homes, root = {beside}, beside
    if target is not None and target.is_relative_to(beside.parent):
        homes.add(target.parent)
        root = beside if target.is_relative_to(beside) else beside.parent
    found = {path for home in homes for path in _package_files(home)}
    return root, {str(path.relative_to(root)) for path in found}


def _package_files(directory: Path) -> Iterable[Path]:
    yield from directory.glob("*.py")
    for child in directory.iterdir():
        if (child / "__init__.py").is_file():
            yield from _package_files(child)


def _included(root: Path, patterns: Iterable[str]) -> set[str]:
    names: set[str] = set()
    for pattern in patterns:
        found = [path for path in root.glob(pattern) if path.is_file()]
        files = {str(path.relative_to(root)) for path in found}
        if not files:
            message = (
                f"code.include: {pattern!r} matches no file below {root}; paths count "
                "from there"
            )
            raise UsageError(message)
        names |= files
    return names


def _check_size(plan: CodePlan, max_mb: int) -> None:
    sizes = [((plan.root / name).stat().st_size, name) for name in plan.names]
    total = sum(size for size, _ in sizes)
    if total > max_mb * _MIB:
        largest = max(sizes)
        message = (
            f"code: {total / _MIB:.0f} MiB in {len(sizes)} files below {plan.root}, "
            f"and code.max_mb allows {max_mb}; the largest is {largest[1]} "
            f"({largest[0] / _MIB:.0f} MiB); raise code.max_mb or set "
            "code.snapshot: false"
        )
        raise UsageError(message)


def digest_code(plan: CodePlan) -> str:
    """Give the digest of names, modes and contents of the files as they are now."""
    total = hashlib.sha256()
    for name in plan.names:
        path = plan.root / name
        is_executable = bool(path.stat().st_mode & stat.S_IXUSR)
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{name}\0{is_executable}\0{content}\n".encode())
    return total.hexdigest()[:16]


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)
    descriptor = os.open(target, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
