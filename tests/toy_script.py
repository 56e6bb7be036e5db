"""A user's own script: all-reduces once, and says what it saw."""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch

import clusterddp

world = clusterddp.init_dist(timeout=timedelta(seconds=60))
total = torch.tensor([float(world.rank)])
torch.distributed.all_reduce(total)
if world.rank == 0:
    seen = {
        "sum": total.item(),
        "world": world.world_size,
        "launcher": world.launcher,
        "args": sys.argv[1:],
        "name": __name__,
    }
    Path(os.environ.get("CLUSTERDDP_RUN_DIR", "."), "seen.json").write_text(
        json.dumps(seen)
    )
if "fail" in sys.argv:
    sys.exit(7)
clusterddp.shutdown()
