"""The unprivileged user that submits: made on up, removed on down."""

import os
import pwd
import subprocess
from pathlib import Path

from tests.cluster.errors import CommandError
from tests.cluster.parameters import ClusterParameters, find_program


def create_user(parameters: ClusterParameters) -> None:
    """Make the user, with a home inside the state directory."""
    if find_user(parameters.user) is None:
        home = str(parameters.root / "home")
        shell = ("--home-dir", home, "--shell", "/bin/bash")
        _run_as_root("useradd", "--system", "--user-group", *shell, parameters.user)
    user = pwd.getpwnam(parameters.user)
    home_dir = Path(user.pw_dir)
    home_dir.mkdir(mode=0o755, exist_ok=True)
    os.chown(home_dir, user.pw_uid, user.pw_gid)


def remove_user(name: str) -> None:
    """Remove the user, when there is one."""
    if find_user(name) is not None:
        _run_as_root("userdel", "--force", name)


def find_user(name: str) -> pwd.struct_passwd | None:
    """Look a user up, None when there is none of this name."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def can_read(user: str, path: Path) -> bool:
    """Say whether a user can reach and read a file or directory."""
    entry = pwd.getpwnam(user)
    done = subprocess.run(
        ["/usr/bin/test", "-r", path],
        user=entry.pw_uid,
        group=entry.pw_gid,
        extra_groups=[],
        cwd="/",
        timeout=30,
        check=False,
    )
    return done.returncode == 0


def _run_as_root(program: str, *arguments: str) -> None:
    argv = (find_program(program) or program, *arguments)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise CommandError(argv, done.returncode, done.stdout, done.stderr)
