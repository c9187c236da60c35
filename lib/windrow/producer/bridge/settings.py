"""What both bridges read from the settings: the password, and the payload type of a new depot."""

from __future__ import annotations

from pathlib import Path

from windrow.errors import SettingsError
from windrow.settings.bridges import KafkaSettings, MqttSettings
from windrow.settings.settings import Settings

FILE = "file:"


def password(part: KafkaSettings | MqttSettings, table: str) -> str:
    """Return the password in a table of settings, or in the file it names; empty for none. Raises SettingsError."""
    text = part.password.get_secret_value()
    if not text.startswith(FILE):
        return text
    path = text.removeprefix(FILE)
    try:
        return Path(path).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{table}.password: the file {path} cannot be read: {type(error).__name__}",
            "Check its path and its permissions.",
        ) from None


def payload_of(settings: Settings) -> str:
    """Return the payload type of a depot that a bridge creates: bytes if `payload_type` says so, else text."""
    return "binary" if settings.payload_type.strip().upper() == "BINARY" else "string"
