"""The command `windrow bridge`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windrow.cli.progress import count_messages
from windrow.cli.shared_options import CommandContext, command, refuse
from windrow.cli.terminal import stderr_console
from windrow.model.durations import SECOND, microseconds
from windrow.model.printable import pluralize
from windrow.settings.path_cache import PRODUCE

if TYPE_CHECKING:
    from windrow.producer.bridge.kafka import KafkaBridge
    from windrow.producer.bridge.mqtt import MqttBridge
    from windrow.producer.bridge.summary import KafkaStats, MqttStats
    from windrow.settings.settings import Settings

KINDS = ("mqtt", "kafka")


@command(
    "config depot log_format log_level", example="windrow bridge mqtt --broker 10.0.0.7 --topic 'plant/{key}/{type...}'"
)
def bridge(
    call: CommandContext,
    kind: Annotated[str, typer.Argument(help="Kind of broker: mqtt or kafka.")],
    broker: Annotated[str | None, "HOST or HOST:PORT, mqtts://HOST for TLS; for kafka a comma-separated list."] = None,
    topic: Annotated[
        list[str] | None, "Topic, for mqtt a pattern, e.g. plant/{key}/{type...}; may be repeated."
    ] = None,
    client_id: Annotated[str | None, "mqtt: name of the session that the broker keeps for this bridge."] = None,
    group: Annotated[str | None, "Consumer group, or shared subscription; its members share the work."] = None,
    until_end: Annotated[bool, "kafka: stop when everything has been read."] = False,
    duration: Annotated[str | None, "Stop after this long, e.g. 10m."] = None,
) -> None:
    """Send the messages of an MQTT or Kafka broker into the depot.

    It runs until SIGINT or SIGTERM. It acknowledges an MQTT message once the depot has it, so that no message is lost
    if the process is killed. Kafka offsets are committed together with the messages, so that each message is in the
    depot once. Everything else belongs in `[mqtt]` and `[kafka]` of the settings, the only places for passwords.
    """
    refuse((kind not in KINDS, f"{kind!r} cannot be bridged", f"Use one of {', '.join(KINDS)}."))
    seconds = None if duration is None else microseconds(duration, "--duration") / SECOND
    flags: dict[str, Any] = {"topics": topic or None}
    if kind == "kafka":
        flags |= {"bootstrap_servers": broker, "group_id": group}
    else:
        flags |= {"broker": broker, "client_id": client_id, "share_name": group}
    part = {name: value for name, value in flags.items() if value is not None} or None
    refuse(
        (kind == "kafka" and client_id, "--client-id is for mqtt, not for kafka", "Leave it out."),
        (kind == "mqtt" and until_end, "--until-end is for kafka, not for mqtt", "Leave it out."),
    )
    chosen = call.path_settings("depot", instead=PRODUCE, **{kind: part})
    from windrow.cli.watching import stop_on_signals
    from windrow.operate.log import logging_to

    with (
        logging_to(stderr_console, chosen.log.format, chosen.log.level),
        count_messages("bridge", quiet=call.json) as progress,
        _open_bridge(kind, chosen, lambda counts: progress("bridge", counts.committed), until_end) as opened,
        stop_on_signals(opened.stop, "stopping when what came is in the depot"),
    ):
        stats = opened.run(seconds)
    call.answer(stats, describe_result(stats))


def _open_bridge(
    kind: str, chosen: Settings, progress: Callable[[MqttStats | KafkaStats], None], until_end: bool
) -> MqttBridge | KafkaBridge:
    """Return a bridge from one kind of broker; each kind needs its own extra."""
    if kind == "kafka":
        from windrow.producer.bridge.kafka import KafkaBridge

        return KafkaBridge(chosen, progress, until_end=until_end)
    from windrow.producer.bridge.mqtt import MqttBridge

    return MqttBridge(chosen, progress)


def describe_result(stats: MqttStats | KafkaStats) -> str:
    """Describe in one line what a bridge did."""
    from windrow.producer.bridge.summary import KafkaStats

    invalid = f", {stats.invalid:,} of them invalid" if stats.invalid else ""
    text = f"{pluralize(stats.committed, 'message')} from {stats.broker} in {stats.depot}{invalid}"
    if isinstance(stats, KafkaStats):
        return f"{text}; {pluralize(stats.partitions, 'partition')} at the end, lag {stats.lag:,}."
    return f"{text}; {pluralize(stats.acknowledged, 'acknowledgement')}, {pluralize(stats.connections, 'connection')}."
