"""Serve the page of `windrow report` live, with pages of streams, batches and messages, to a browser on this machine.

The server listens only on 127.0.0.1. The address that the command prints contains a secret, which the browser keeps as
a cookie, so that other users of the machine, and other sites in the same browser, read nothing. The server writes
nothing unless changes are allowed; then a button pauses or resumes, as the commands of these names do.

- `views.py`: what is shown, a batcher or a topology: how and when it is read, and which changes it accepts.
- `pages.py`: what the pages show of streams, batches and messages.
- `access.py`: who may read and change.
- `server.py`: the addresses, and the server.
"""

from __future__ import annotations

from windrow.ui.server import Server
from windrow.ui.views import BatcherView, TopologyView

__all__ = ["BatcherView", "Server", "TopologyView"]
