"""What both bridges take from the settings: the password, and the type of payloads of a new depot."""

from __future__ import annotations

from pathlib import Path

from windrow.errors import SettingsError
from windrow.settings.bridges import KafkaPart, MqttPart
from windrow.settings.settings import Settings


def password(part: KafkaPart | MqttPart, table: str) -> str:
    """Return the password in a table of settings, empty for none. Raises SettingsError."""
    if not part.password_file:
        return part.password.get_secret_value()
    try:
        return Path(part.password_file).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{table}.password_file {part.password_file} cannot be read: {type(error).__name__}",
            "Check its path and its permissions.",
        ) from None


def payload_of(settings: Settings) -> str:
    """Return the type of payloads of a depot that a bridge creates: bytes if `payload_type` says so, else text."""
    return "binary" if settings.payload_type.strip().upper() == "BINARY" else "string"
