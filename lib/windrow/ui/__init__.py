"""Serve the page of `windrow report` live, with pages of streams, batches and messages, to a browser on this machine.

The server listens on 127.0.0.1 alone. The address that the command prints has a secret, which the browser keeps as a
cookie: another user of the machine, or a page of another site in the same browser, reads nothing. It writes nothing
unless changes are allowed; then a button pauses or resumes, as the commands of these names do.

- `views.py`: what is shown, a batcher or a topology: how it is read, again when it is old, and which changes it takes.
- `pages.py`: what the pages show of streams, batches and messages.
- `access.py`: who may read and change.
- `server.py`: the addresses, and the server.
"""

from __future__ import annotations

from windrow.ui.server import Server
from windrow.ui.views import BatcherView, TopologyView

__all__ = ["BatcherView", "Server", "TopologyView"]
