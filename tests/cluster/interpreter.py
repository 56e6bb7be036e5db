"""An interpreter that the unprivileged user can run, with the caller's packages.

Where the caller's own interpreter can be read by everybody it is the answer.  Where
it lies in a private directory (root's home, say), its base is copied into the state
directory; packages and checkout are mounted there when they are private, too.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.account import can_read
from tests.cluster.errors import ClusterError, CommandError
from tests.cluster.parameters import ClusterParameters, find_program

PROJECT = Path(__file__).resolve().parents[2]
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_LEFT_OUT = shutil.ignore_patterns(
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "config-*",
    "*.opt-1.pyc",
    "*.opt-2.pyc",
    "*.a",
)


def readable_interpreter(parameters: ClusterParameters) -> Path:
    """Give an interpreter that the cluster's user can run.

    It sees the caller's site-packages, and the project can be imported.
    """
    stdlib = Path(sysconfig.get_path("stdlib"))
    needed = [Path(sys.executable).resolve(), stdlib / "os.py", *_import_paths()]
    if all(can_read(parameters.user, path) for path in needed):
        return Path(sys.executable)
    target = parameters.root / "python" / _key(needed)
    if not target.exists():
        draft = target.with_name(f"{target.name}.{os.getpid()}.draft")
        _copy_base(draft, stdlib)
        _replace(draft, target)
    _write_paths(parameters, target)
    return target / "bin" / _VERSION


def expose(parameters: ClusterParameters, path: Path) -> Path:
    """Give a path by which the user reaches a directory: mount it if need be."""
    if can_read(parameters.user, path):
        return path
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:8]
    target = parameters.root / "mounts" / f"{path.name}-{name}"
    if not target.is_mount():
        target.mkdir(parents=True, exist_ok=True)
        _mount("--bind", str(path), str(target))
    if not can_read(parameters.user, target):
        raise ClusterError(
            f"{path}: user {parameters.user} may not read it, even mounted at"
            f" {target}; chmod -R a+rX {path}"
        )
    return target


def unmount_all(root: Path) -> None:
    """Undo every mount at or below a directory, the newest first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [Path(line.split()[4]) for line in lines]
    for point in reversed(points):
        if point.is_relative_to(root):
            subprocess.run(
                [find_program("umount") or "umount", "--lazy", point],
                timeout=30,
                check=True,
            )


def prune_interpreters(root: Path) -> None:
    """Delete copied interpreters, all but the newest."""
    copies = sorted((root / "python").glob("*"), key=lambda path: path.stat().st_mtime)
    for path in copies[:-1]:
        shutil.rmtree(path)


def _import_paths() -> list[Path]:
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return [PROJECT, *(Path(path) for path in sorted(packages))]


def _key(paths: Sequence[Path]) -> str:
    binary = Path(sys.executable).resolve().stat()
    facts = (sys.version, binary.st_mtime_ns, binary.st_size, [*map(str, paths)])
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def _copy_base(target: Path, stdlib: Path) -> None:
    binaries, libraries = target / "bin", target / "lib"
    shutil.copytree(stdlib, libraries / _VERSION, ignore=_LEFT_OUT)
    (libraries / _VERSION / "site-packages").mkdir()
    binaries.mkdir()
    shutil.copy2(Path(sys.executable).resolve(), binaries / _VERSION)
    for name in ("python3", "python"):
        (binaries / name).symlink_to(_VERSION)
    if sysconfig.get_config_var("Py_ENABLE_SHARED"):
        _copy_library(target)
    for path in target.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else path.stat().st_mode | 0o444)


def _copy_library(target: Path) -> None:
    """Copy libpython, and let the program look for it beside itself."""
    source = str(sysconfig.get_config_var("LIBDIR"))
    name = str(sysconfig.get_config_var("INSTSONAME"))
    if not Path(source, name).exists():
        return
    shutil.copy2(Path(source, name), target / "lib" / name)
    program = target / "bin" / _VERSION
    program.write_bytes(relocated(program.read_bytes(), source))


def relocated(program: bytes, library_dir: str) -> bytes:
    """Let the run path of an ELF file name `../lib`, in place of a fixed directory."""
    old = b"\0" + library_dir.encode() + b"\0"
    new = b"\0$ORIGIN/../lib"
    if len(new) >= len(old):
        return program
    return program.replace(old, new.ljust(len(old), b"\0"))


def _replace(draft: Path, target: Path) -> None:
    """Publish a finished copy; another process may have been faster."""
    try:
        draft.rename(target)
    except OSError:
        shutil.rmtree(draft)


def _write_paths(parameters: ClusterParameters, target: Path) -> None:
    """Let the copy see project and packages, and prove once that it works."""
    paths = [str(expose(parameters, path)) for path in _import_paths()]
    text = f"{paths[0]}\nimport site; list(map(site.addsitedir, {paths[1:]!r}))\n"
    file = target / "lib" / _VERSION / "site-packages" / "clusterddp_tests.pth"
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


def verify_imports(
    parameters: ClusterParameters, python: Path, modules: Sequence[str]
) -> None:
    """Import modules as the user.

    Raises:
        CommandError: They cannot be imported.
    """
    argv = (str(python), "-c", f"import {', '.join(modules)}")
    done = subprocess.run(
        argv,
        user=parameters.user,
        group=parameters.user,
        extra_groups=[],
        env={"HOME": str(parameters.root / "home"), "LANG": "C.UTF-8"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise CommandError(argv, done.returncode, done.stdout, done.stderr)


def _mount(*arguments: str) -> None:
    program = find_program("mount") or "mount"
    subprocess.run([program, *arguments], timeout=30, check=True)
