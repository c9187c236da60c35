"""How fast Windrow is, next to what one would do otherwise."""

import os

from windrow.cli import ARROW_MEMORY

os.environ.setdefault(*ARROW_MEMORY)  # as the commands have it, before Arrow is loaded
