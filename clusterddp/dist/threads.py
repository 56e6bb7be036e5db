"""Whether the threads of a rank fit the CPUs that it may use; a warning, no more.

The number of threads changes bits, so it is a setting (`train.threads`) and never
follows from the affinity (a small CNN gave three digests at 1, 2 and 4 threads).
"""

__all__ = ["mismatch"]


def mismatch(threads: int, cpus: int, on_machine: int, ranks: int) -> str:
    """Say what is wrong with the number of threads; empty if nothing is.

    Args:
        threads: intra-op threads of this rank.
        cpus: CPUs that this process may use, its affinity.
        on_machine: CPUs of this machine; as many as `cpus` if nothing is bound, and
            then the ranks share them.
        ranks: ranks on this machine.
    """
    if threads > cpus:
        return (
            f"threads: {threads} in this rank, but it may use {cpus} of the machine's "
            f"{on_machine} CPUs; give srun --cpus-per-task={threads} (it does not take "
            "sbatch's since Slurm 22.05), or set train.threads or OMP_NUM_THREADS"
        )
    # More ranks than CPUs is somebody's wish, and no number of threads mends it.
    if cpus >= on_machine and threads > 1 and threads * ranks > cpus:
        return (
            f"threads: {ranks} ranks on this machine with {threads} each share {cpus} "
            "CPUs, and slow each other down; set train.threads or OMP_NUM_THREADS to "
            f"{max(1, cpus // ranks)}, the same under every launcher"
        )
    return ""
