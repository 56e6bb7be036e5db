"""Changes to the environment of this process that can be taken back."""

import os
from collections.abc import Mapping

__all__ = ["Exports"]


class Exports:
    """Sets environment variables and remembers what was there before."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def put(self, values: Mapping[str, str | None]) -> None:
        """Set variables; None removes one."""
        for name, value in values.items():
            self._before.setdefault(name, os.environ.get(name))
            _set(name, value)

    def restore(self) -> None:
        """Put everything back as it was before the first `put`."""
        for name, value in self._before.items():
            _set(name, value)
        self._before.clear()


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
