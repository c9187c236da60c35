"""How fast Windrow is, next to what one would do otherwise."""

from windrow.cli.memory import allocate_plainly

allocate_plainly()  # as the commands have it, before Arrow is loaded
