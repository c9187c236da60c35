"""A topology by the name that commands know it by: `module:name`."""

from __future__ import annotations

import importlib
import os
import sys

from windrow.errors import TopologyRefused, first_line
from windrow.topology.topology import Topology


def find(place: str) -> Topology:
    """Return the topology `name` of `module`, looked for here and where Python looks. Raises TopologyRefused."""
    module, _, name = place.partition(":")
    if not module or not name:
        raise TopologyRefused(f"{place!r} names no topology", "Say module:name, as in words:topology for words.py.")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - as Python itself writes it there
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # whatever the module of somebody else raises
        raise TopologyRefused(
            f"the module {module} cannot be imported: {type(error).__name__}: {first_line(error)}",
            "Run it where the module lies, or put its directory on PYTHONPATH.",
        ) from error
    if not isinstance(found, Topology):
        what = "nothing of that name" if found is None else f"a {type(found).__name__}"
        raise TopologyRefused(f"{place}: there is {what} in the module", f"Name a Topology: {module}:topology.")
    return found
