"""Great Expectations, imported where it is needed: without its usage statistics, its bars and its log."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from windrow.errors import MissingExtra

SITE = "windrow"


def library() -> ModuleType:
    """Return the module `great_expectations`. Raises MissingExtra."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    try:
        with warnings.catch_warnings():  # it imports a module of Python's that is deprecated
            warnings.simplefilter("ignore", DeprecationWarning)
            import great_expectations
    except ImportError as error:
        raise MissingExtra(
            "checking expectations needs great-expectations", "Install it: pip install 'windrow-delta[quality]'."
        ) from error
    return great_expectations


def fresh_context() -> Any:
    """Return a context that lives in memory and shows no bars."""
    context = library().get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    return context


@contextmanager
def quiet() -> Iterator[None]:
    """Keep its log silent while the block runs: what fails is raised as an error of ours."""
    log = logging.getLogger("great_expectations")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)
