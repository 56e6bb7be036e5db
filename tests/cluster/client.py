"""The running cluster as tests and drills use it."""

import contextlib
import functools
import os
import pwd
import shlex
import subprocess
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import daemons, network, processes
from tests.cluster.errors import ClusterError, CommandError
from tests.cluster.interpreter import readable_interpreter, verify_imports
from tests.cluster.parameters import ClusterParameters, login_path
from tests.cluster.processes import wait_until

_RUN_TIMEOUT_S = 60
_HOLD_S = 150
_SLURM_PROCESSES = frozenset({"slurmd", "slurmstepd"})


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up.  `parameters` say what it is made of."""

    parameters: ClusterParameters

    @property
    def user(self) -> str:
        """The unprivileged user that drills submit as."""
        return self.parameters.user

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes' names, which are their host names."""
        return self.parameters.node_names

    @property
    def shared_dir(self) -> Path:
        """A directory where all nodes and all users may write."""
        return self.parameters.shared_dir

    @property
    def log_dir(self) -> Path:
        """The directory of all daemons' log files."""
        return self.parameters.log_dir

    @property
    def env(self) -> dict[str, str]:
        """The variables by which Slurm's programs find this cluster."""
        variables = {"SLURM_CONF": str(self.parameters.conf_dir / "slurm.conf")}
        prefix = self.parameters.prefix
        if prefix != Path("/usr"):
            variables["PATH"] = f"{prefix}/bin:{prefix}/sbin:{login_path()}"
        return variables

    def exports(self) -> str:
        """Give `env` as lines for a shell to evaluate."""
        pairs = self.env.items()
        return "".join(f"export {key}={shlex.quote(text)}\n" for key, text in pairs)

    def make_dir(self, prefix: str = "test-") -> Path:
        """Make a new directory in `shared_dir` that belongs to the user."""
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=self.shared_dir))
        entry = pwd.getpwnam(self.user)
        os.chown(path, entry.pw_uid, entry.pw_gid)
        path.chmod(0o755)
        return path

    def popen(
        self,
        argv: Sequence[str | Path],
        *,
        user: str | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """Start a program on the head, in a clean environment, with pipes.

        Args:
            argv: The program and its arguments.
            user: Who runs it; None for root.
            cwd: Where it runs; None for `shared_dir`.
            env: Variables beside PATH, LANG, HOME, USER, LOGNAME, SHELL and `env`.
        """
        entry = pwd.getpwnam(user or "root")
        return subprocess.Popen(
            [str(word) for word in argv],
            user=entry.pw_uid,
            group=entry.pw_gid,
            extra_groups=[],
            env={**_login(entry), **self.env, **(env or {})},
            cwd=cwd or self.shared_dir,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        user: str | None = None,
        check: bool = True,
        timeout: float = _RUN_TIMEOUT_S,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as `popen` starts it, to its end.

        Raises:
            CommandError: It left with a code other than 0, and `check` is set.
            subprocess.TimeoutExpired: It took over `timeout` s, and was killed.
        """
        words = [str(word) for word in argv]
        with self.popen(words, user=user, cwd=cwd, env=env) as process:
            try:
                stdout, stderr = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        if check and process.returncode:
            raise CommandError(words, process.returncode, stdout, stderr)
        return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)

    def sbatch(
        self,
        *arguments: str | Path,
        user: str | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Submit a job; give its id."""
        argv = ["sbatch", "--parsable", *arguments]
        text = self.run(argv, user=user, cwd=cwd, env=env).stdout
        return text.strip().partition(";")[0]

    def squeue(self) -> dict[str, str]:
        """Give the state of all jobs in the queue by id; array elements apart."""
        text = self._slurm("squeue", "-h", "-a", "-r", "-o", "%i %T")
        return dict(line.split() for line in text.splitlines())

    def show_job(self, job_id: str) -> dict[str, str]:
        """Give what `scontrol show job` says of a job, empty when it knows none.

        Of an array's id this is the first element that is listed.
        """
        try:
            text = self._slurm("scontrol", "--oneliner", "show", "job", job_id)
        except CommandError as error:
            if "Invalid job id" in error.stderr:
                return {}
            raise
        return parse_job(text.partition("\n")[0])

    def sacct(
        self,
        job_id: str,
        fields: Collection[str] = ("JobID", "State", "ExitCode", "NodeList"),
        *,
        steps: bool = False,
    ) -> list[dict[str, str]]:
        """Give the accounting records of a job, one per time it was started."""
        options = ["--noheader", "--parsable2", "--duplicates"]
        if not steps:
            options.append("--allocations")
        wanted = ",".join(fields)
        text = self._slurm("sacct", *options, f"--jobs={job_id}", f"--format={wanted}")
        rows = (line.split("|") for line in text.splitlines())
        return [dict(zip(fields, row, strict=True)) for row in rows]

    def job_state(self, job_id: str) -> str:
        """Give a job's state, UNKNOWN when neither controller nor accounting has it."""
        if job := self.show_job(job_id):
            return job["JobState"]
        records = self.sacct(job_id, ("State",))
        return records[-1]["State"].partition(" ")[0] if records else "UNKNOWN"

    def wait_job(self, job_id: str, states: Collection[str], deadline: float) -> str:
        """Return the job's state as soon as it is one of `states`.

        Raises:
            ClusterError: It was not within `deadline` seconds; with Slurm's own hold
                of requeued jobs that time comes on top.
        """
        deadline += _HOLD_S if self.parameters.cred_expire is None else 0

        def failure() -> ClusterError:
            job = self.show_job(job_id)
            return ClusterError(
                f"job {job_id}: {job.get('JobState', 'UNKNOWN')} after {deadline} s"
                f" (Reason={job.get('Reason')}, NodeList={job.get('NodeList')}),"
                f" expected {', '.join(sorted(states))};"
                f" accounting: {self.sacct(job_id)}; logs: {self.log_dir}"
            )

        wait_until(lambda: self.job_state(job_id) in states, deadline, failure)
        return self.job_state(job_id)

    def node_states(self) -> dict[str, str]:
        """Give every node's state, e.g. `idle`, `mixed`, `down*`."""
        return daemons.node_states(self.parameters)

    def node_down(self, node: str) -> None:
        """Cut a node off; Slurm sees it after SlurmdTimeout (10 s)."""
        network.set_link(self.parameters, node, "down")

    def node_up(self, node: str, deadline: float = 30) -> None:
        """Join a node again; return when it could start a job."""
        network.set_link(self.parameters, node, "up")
        self._resume({node}, deadline)

    def reset(self, deadline: float = 60) -> None:
        """Cancel all jobs, end what they left, bring every daemon and node back."""
        self._repair()
        self._cancel_all(deadline)
        self._resume(set(self.nodes), deadline)

    def python_for_user(
        self, modules: tuple[str, ...] = ("torch", "submitit", "pydantic")
    ) -> Path:
        """Give an interpreter for the user and for jobs, with our packages.

        The first time in a process it is checked that it imports `modules`.
        """
        return _verified_interpreter(self.parameters, modules)

    def _slurm(self, program: str, *arguments: str) -> str:
        return daemons.slurm_tool(self.parameters, program, *arguments)

    def _repair(self) -> None:
        record = processes.load_record(self.parameters.slot)
        if record is None:
            raise ClusterError(
                f"slot {self.parameters.slot}: no cluster is up;"
                " run `python -m tests.cluster up`"
            )
        for node in self.nodes:
            network.set_link(self.parameters, node, "up")
        daemons.ensure_running(record, daemons.central_daemons(self.parameters))
        daemons.ensure_running(record, daemons.node_daemons(self.parameters))

    def _cancel_all(self, deadline: float) -> None:
        spaces = [self.parameters.namespace(node) for node in self.nodes]

        def nothing_left() -> bool:
            if jobs := self.squeue():
                with contextlib.suppress(CommandError):
                    self._slurm("scancel", "--quiet", *jobs)
            for process in processes.inside(spaces):
                if process.name not in _SLURM_PROCESSES:
                    process.kill()
            return not jobs

        wait_until(
            nothing_left,
            deadline,
            lambda: ClusterError(f"jobs do not end: {self.squeue()}"),
        )

    def _resume(self, nodes: Collection[str], deadline: float) -> None:
        usable = {"idle", "mixed", "allocated"}

        def all_usable() -> bool:
            states = self.node_states()
            bad = [node for node in nodes if states[node] not in usable]
            for node in bad:
                if states[node].startswith(("down", "drain", "fail")):
                    self._resume_node(node)
            return not bad

        def failure() -> ClusterError:
            return daemons.nodes_failure(self.parameters)

        wait_until(all_usable, deadline, failure)

    def _resume_node(self, node: str) -> None:
        """Ask for a resume; it is refused while the node is just coming back."""
        with contextlib.suppress(CommandError):
            self._slurm("scontrol", "update", f"NodeName={node}", "State=RESUME")


def parse_job(line: str) -> dict[str, str]:
    """Split one line of `scontrol --oneliner show job` into its fields.

    A word without an equals sign belongs to the value before it.
    """
    fields: dict[str, str] = {}
    last = ""
    for word in line.split(" "):
        key, sign, text = word.partition("=")
        if sign and key.replace(":", "").replace("/", "").isalnum():
            fields[last := key] = text
        elif last:
            fields[last] += f" {word}"
    return {key: text.rstrip() for key, text in fields.items()}


def _login(entry: pwd.struct_passwd) -> dict[str, str]:
    return {
        "PATH": login_path(),
        "LANG": "C.UTF-8",
        "HOME": entry.pw_dir,
        "USER": entry.pw_name,
        "LOGNAME": entry.pw_name,
        "SHELL": "/bin/bash",
        # The nodes are network namespaces of this machine: they share its /tmp.
        "CLUSTERDDP_SHARED_TMP": "1",
    }


@functools.cache
def _verified_interpreter(
    parameters: ClusterParameters, modules: tuple[str, ...]
) -> Path:
    python = readable_interpreter(parameters)
    verify_imports(parameters, python, modules)
    return python
