"""Further process groups that keep the time limit of the first.

`torch.distributed.new_group` starts from torch's own default again, 30 minutes for
gloo and 10 for NCCL, whatever the default group was told (measured on 2.13, 2.14).
"""

from collections.abc import Sequence

import torch.distributed as dist

from clusterddp.dist.arguments import parse_limit
from clusterddp.dist.session import current_session

__all__ = ["new_group"]


def new_group(
    ranks: Sequence[int] | None = None, timeout: object = None, **options: object
) -> dist.ProcessGroup:
    """Give a new group; all ranks of the world must call it, members or not.

    Args:
        ranks: the members; None for all.
        timeout: as init_dist takes it; None for what init_dist was given.
        **options: handed to `torch.distributed.new_group`.

    Raises:
        ArgumentError: the timeout is none.
        LaunchError: init_dist was not called.
    """
    session = current_session()
    limit = session.timeout if timeout is None else parse_limit("timeout", timeout)
    members = None if ranks is None else list(ranks)
    group: dist.ProcessGroup = dist.new_group(
        members,
        timeout=limit,
        **options,  # type: ignore[arg-type]  # the caller's word, torch checks it
    )
    return group
