"""Import a topology by its `module:name`."""

from __future__ import annotations

import importlib
import os
import sys

from windrow.errors import TopologyError, first_line
from windrow.topology.topology import Topology


def import_topology(place: str) -> Topology:
    """Import `module` from the current directory or Python's path, return its `name`. Raises TopologyError."""
    module, _, name = place.partition(":")
    if not module or not name:
        raise TopologyError(f"{place!r} is not module:name", "Write for example words:topology for words.py.")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - as Python itself writes it there
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        value = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # the module of a user may raise anything
        raise TopologyError(
            f"the module {module} cannot be imported: {type(error).__name__}: {first_line(error)}",
            "Run the command in the module's directory, or add that to PYTHONPATH.",
        ) from error
    if not isinstance(value, Topology):
        what = "does not exist" if value is None else f"is a {type(value).__name__}, not a Topology"
        raise TopologyError(f"{place} {what}", f"Name a Topology, for example {module}:topology.")
    return value
