"""Try windows and delays on recorded messages, to see what other rules would have made of them.

Pure: Arrow in, Arrow out; no engine, no table, no machine clock. The compiled kernel tries a pair at about ten
million messages a second, because everything that does not depend on the rules is computed only once (`Trial`).
"""

from __future__ import annotations

from windrow.reading.tuning.advice import Advice, advise, advise_repeats, advise_window
from windrow.reading.tuning.sweep import suggest_grid, sweep, tune
from windrow.reading.tuning.trial import Trial

__all__ = ["Advice", "Trial", "advise", "advise_repeats", "advise_window", "suggest_grid", "sweep", "tune"]
