"""Import Great Expectations on first use, without its usage statistics, progress bars and log."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from windrow.errors import MissingExtraError

SITE = "windrow"


def library() -> ModuleType:
    """Return the module `great_expectations`. Raises MissingExtraError."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    try:
        with warnings.catch_warnings():  # it imports a deprecated module of the standard library
            warnings.simplefilter("ignore", DeprecationWarning)
            import great_expectations
    except ImportError as error:
        raise MissingExtraError(
            "checking expectations needs great-expectations", "Install it: pip install 'windrow-delta[quality]'."
        ) from error
    return great_expectations


def fresh_context() -> Any:
    """Return a context in memory without progress bars."""
    context = library().get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    return context


@contextmanager
def quiet() -> Iterator[None]:
    """Silence its log while the block runs; failures are raised as Windrow's errors."""
    log = logging.getLogger("great_expectations")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)
