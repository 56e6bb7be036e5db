"""The ranks of one training: who they are, how they meet, what they exchange.

Names are loaded when first used, so that `World` comes without torch.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterddp.dist.channel import (
        AddressRecord,
        publish_address,
        wait_for_address,
    )
    from clusterddp.dist.collectives import broadcast_json, gather_json, reduce_sums
    from clusterddp.dist.devices import device
    from clusterddp.dist.groups import new_group
    from clusterddp.dist.init import init_dist, shutdown
    from clusterddp.dist.operations import note_step, operation
    from clusterddp.dist.port import free_port
    from clusterddp.dist.session import clone_store, default_store
    from clusterddp.dist.world import World, world_from_environment

__all__ = [
    "AddressRecord",
    "World",
    "broadcast_json",
    "clone_store",
    "default_store",
    "device",
    "free_port",
    "gather_json",
    "init_dist",
    "new_group",
    "note_step",
    "operation",
    "publish_address",
    "reduce_sums",
    "shutdown",
    "wait_for_address",
    "world_from_environment",
]

_HOMES = {
    "AddressRecord": "channel",
    "World": "world",
    "broadcast_json": "collectives",
    "clone_store": "session",
    "default_store": "session",
    "device": "devices",
    "free_port": "port",
    "gather_json": "collectives",
    "init_dist": "init",
    "new_group": "groups",
    "note_step": "operations",
    "operation": "operations",
    "publish_address": "channel",
    "reduce_sums": "collectives",
    "shutdown": "init",
    "wait_for_address": "channel",
    "world_from_environment": "world",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    module = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    value: object = getattr(module, name)
    globals()[name] = value
    return value
