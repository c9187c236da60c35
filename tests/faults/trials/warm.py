"""What every process needs, loaded once: the library, and the compiled kernel."""

import windrow
from tests.faults.trials import processes
from tests.messages import message, table

windrow.batch(table([message()]), windrow.Rules())

__all__ = ["processes"]
