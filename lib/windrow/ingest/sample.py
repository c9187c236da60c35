"""The bundled sample: five minutes of real measurements, and how its columns become messages.

collectd on three hosts sent them over MQTT at intervals of 1, 2 and 5 seconds; a subscriber noted when each arrived.
A row is `received_at_ns` (nanoseconds), `topic` (`collectd/<host>/<plugin>/<type>`) and `payload`
(`<seconds>.<millis>:<value>[:<value>...]` and a NUL).
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

__all__ = ["COLUMNS", "copy_into"]
COLUMNS = {
    "source": "split_part(topic, '/', 2)",
    "key": "split_part(topic, '/', 2)",
    "type": "topic",
    "event_time": (
        "timestamp_micros(CAST(1000000 * "
        "CAST(split_part(CAST(payload AS STRING), ':', 1) AS DECIMAL(20, 6)) AS BIGINT))"
    ),
    "received_at": "timestamp_micros(received_at_ns div 1000)",
    "payload": "CAST(payload AS STRING)",
}


def copy_into(directory: Path) -> Path:
    """Write the sample into a directory and return its path."""
    target = directory / "collectd.parquet"
    with as_file(files("windrow") / "data" / "collectd.parquet") as bundled:
        target.write_bytes(bundled.read_bytes())
    return target
