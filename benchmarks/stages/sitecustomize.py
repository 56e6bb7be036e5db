"""Python loads this first where it is on PYTHONPATH: ranks tell their stages.

`clusterddp.train` is left as it is; only its `init_dist` gets a note before and after.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from benchmarks.stages.notes import note

_WATCHED = "clusterddp.dist"


class _Watch(importlib.abc.MetaPathFinder):
    """Waits for one module, and wraps its `init_dist` once it is loaded."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Find as Python does; only what happens after loading is new."""
        if name != _WATCHED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None:
            # An editable install has a finder of its own.
            for finder in sys.meta_path:
                if finder is not self and spec is None:
                    spec = finder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                module.init_dist = _noted(module.init_dist)  # type: ignore[attr-defined]

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _noted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - as it is
        note("imported")
        result = function(*given, **named)
        note("met")
        return result

    return wrapper


if "BENCH_STAGES" in os.environ and "clusterddp.train" in sys.orig_argv:
    note("started")
    sys.meta_path.insert(0, _Watch())
