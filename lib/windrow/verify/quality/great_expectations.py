"""Import Great Expectations on first use, without its usage statistics, progress bars and logging.

The import takes about four seconds on one core, so a check runs it while the ledger is read.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from threading import Thread
from types import ModuleType
from typing import Any

from windrow.errors import MissingExtraError

SITE = "windrow"


def library() -> ModuleType:
    """Return the module `great_expectations`. Raises MissingExtraError."""
    require()
    _prepare()
    try:
        import great_expectations
    except ImportError as error:
        raise _missing() from error
    return great_expectations


def _prepare() -> None:
    """Import the deprecated stdlib modules that Great Expectations uses; users cannot fix those warnings."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    with warnings.catch_warnings(), suppress(ImportError):  # a later Python will not have them
        warnings.simplefilter("ignore", DeprecationWarning)
        for name in ("sre_constants", "sre_parse"):
            import_module(name)


def require() -> None:
    """Raise MissingExtraError if Great Expectations is not installed."""
    if find_spec("great_expectations") is None:
        raise _missing()


def _missing() -> MissingExtraError:
    return MissingExtraError(
        "checking expectations needs great-expectations", "Install it: pip install 'windrow-delta[quality]'."
    )


def import_meanwhile() -> None:
    """Begin the import in another thread; `library` waits for it.

    Warning filters apply to the whole process, so this thread changes them, not the other one.
    """
    _prepare()

    def imported() -> None:
        with suppress(Exception):  # `library` raises it again
            import great_expectations  # noqa: F401

    Thread(target=imported, name="windrow-quality", daemon=True).start()


def fresh_context() -> Any:
    """Return a context in memory without progress bars."""
    context = library().get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    return context


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the log of Great Expectations inside the block; failures are raised as Windrow's errors."""
    log = logging.getLogger("great_expectations")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)
