"""The optional packages that draw."""

from __future__ import annotations

from importlib.util import find_spec

from windrow.errors import MissingExtraError


def require(package: str) -> None:
    """Raise MissingExtraError unless a package is installed."""
    if find_spec(package) is None:
        raise MissingExtraError(f"pictures need {package}", "pip install 'windrow-delta[plot]'")
