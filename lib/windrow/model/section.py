"""The base class of the tables in `windrow.toml`, and the types of their values."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from windrow.errors import SettingsError
from windrow.model import durations


def _duration(value: Any) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool) and value:
        raise ValueError(f"{value!r} has no unit; write it like 500ms, 10s, 5m or 1h30m")
    try:
        return durations.microseconds(value)
    except SettingsError as error:
        raise ValueError(error.message) from None


def _or_never(value: Any) -> int | None:
    return None if value in ("never", None) else _duration(value)


def _text(value: int | None) -> str:
    return "never" if value is None else durations.format_duration(value)


Duration = Annotated[int, BeforeValidator(_duration), PlainSerializer(_text)]
OptionalDuration = Annotated[int | None, BeforeValidator(_or_never), PlainSerializer(_text)]
Count = Annotated[int, Field(ge=1)]
ByteSize = Annotated[int, Field(ge=0, le=2**62)]


class SettingsSection(BaseModel):
    """A table of `windrow.toml`; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", validate_default=True, frozen=True)
