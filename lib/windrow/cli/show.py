"""The command `windrow show`."""

from __future__ import annotations

import json as json_text
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape

from windrow.cli.shared_options import CommandContext, Key, Source, command, print_line, print_markup, refuse
from windrow.errors import SettingsError
from windrow.model import timestamps as moments
from windrow.model.printable import pluralize

if TYPE_CHECKING:
    from windrow.reading import Arrival
    from windrow.settings.settings import Settings
    from windrow.topology.topology import Topology

WIDEST_PAYLOAD = 60


@command(
    "config depot ledger engine",
    example="windrow show --rejected   or   windrow show --key K --type T --event-time 2026-01-31T12:00:07.2Z",
)
def show(
    call: CommandContext,
    id: Annotated[str | None, typer.Argument(help="Id of a batch or of a rejection.", metavar="[ID]")] = None,  # noqa: A002
    open_: Annotated[bool, "Open batches, the oldest first."] = False,
    closed: Annotated[bool, "Closed batches, the latest first (default)."] = False,
    rejected: Annotated[bool, "Rejected messages, the latest first."] = False,
    key: Key = None,
    event_time: Annotated[str | None, "With --key: what became of the messages with this event time, ISO 8601."] = None,
    type_: Annotated[str | None, "With --event-time: only this type."] = None,
    source: Source = None,
    state: Annotated[
        str | None, "With MODULE:NAME: rows of this state; --key is the key, or its first columns as JSON."
    ] = None,
    microbatch: Annotated[
        int | None, typer.Option(min=0, help="With --state: as it was after this microbatch.")
    ] = None,
    from_: Annotated[str | None, "Batches and rejected messages from this event time on."] = None,
    to: Annotated[str | None, "Batches and rejected messages before this event time, ISO 8601."] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number to show.")] = 10,
) -> None:
    """Show batches, rejections, what became of a message, a state.

    With --key alone, text output lists closed batches and then rejected messages. With --key and --event-time it lists
    every arrival of the message in order: its batch, or why it was rejected and what would have kept it, or that it has
    not been read yet. For an open batch it says why it is open and when it closes.
    """
    if state is not None:
        _show_state(call, id, state, key, microbatch, limit)
        return
    several = sum([id is not None, open_, closed, rejected, event_time is not None]) > 1
    ranged = (from_, to) != (None, None) and (id is not None or event_time is not None)
    named_twice = id is not None and (key, source) != (None, None)
    refuse(
        (several, "an ID, --open, --closed, --rejected and --event-time exclude each other", "Give one of them."),
        (named_twice, "an ID excludes --key and --source", "Give the ID alone."),
        (ranged, "--from and --to apply only to a list", "Leave them out, or leave out the ID or --event-time."),
    )
    start, end = moments.event_range(from_, to)
    of_state = "Name a topology and a state: MODULE:NAME --state STATE."
    whole = "--key K --type T --event-time TIME."
    timeless = event_time is None
    refuse(
        (microbatch is not None, "--microbatch needs --state", of_state),
        (type_ is not None and timeless, "--type needs --event-time", f"Give the event time too: {whole}"),
        (not timeless and key is None, "--event-time needs --key", f"Give the message's key: {whole}"),
    )
    with call.readable_settings() as chosen:
        if event_time is not None and key is not None:
            _show_message(call, chosen, key, event_time, type_, source, limit)
            return
        state = "open" if open_ else "rejected" if rejected else "closed"
        conditions = {"key": key, "source": source, "limit": limit, "start": start, "end": end}
        rows = _find_rows(chosen, id, state, conditions)
        if call.json:
            call.answer(rows if id is None else rows[0])
            return
        if key is not None and not (open_ or closed or rejected):
            rows += _find_rows(chosen, None, "rejected", conditions)
    if not rows:
        print_line("Nothing in the ledger matches.")
    for row in rows:
        show_one = _print_rejected if "reason" in row else _print_batch
        show_one(row, whole=id is not None)


def _show_state(
    call: CommandContext, place: str | None, state: str, key: str | None, microbatch: int | None, limit: int
) -> None:
    from windrow.reading.values import records
    from windrow.topology.importing import import_topology

    if place is None:
        raise SettingsError(
            "--state needs a topology",
            "For example: windrow show words:topology --state counts --key be --microbatch 12.",
        )
    topology = import_topology(place)
    keys = None if key is None else [_key(topology, state, key)]
    rows = records(topology.read(state, keys, microbatch).slice(0, limit))
    lines = ["  ".join(f"{name}={value}" for name, value in row.items()) for row in rows]
    call.answer(rows, *lines or ["The state has no such row."])


def _key(topology: Topology, state: str, text: str) -> dict[str, Any]:
    """Return a key by column: a JSON object, or the value of the only key column."""
    if text.startswith("{"):
        try:
            values: dict[str, Any] = json_text.loads(text)
        except ValueError as error:
            raise SettingsError(f"--key {text}: not JSON: {error}", 'Write --key \'{"name": "value"}\'.') from None
        return values
    names = topology.states[state].keys.names if state in topology.states else [""]
    if len(names) != 1:
        keys = f"the keys of the state {state} are: {', '.join(names) or 'none'}"
        raise SettingsError(keys, 'Write --key \'{"name": "value"}\'.')
    return {names[0]: text}


def _show_message(
    call: CommandContext, chosen: Settings, key: str, event_time: str, type_: str | None, source: str | None, limit: int
) -> None:
    from windrow import reading

    moment = moments.microseconds(event_time, "--event-time")
    arrivals = reading.trace(chosen.depot, chosen.ledger, key, moment, type_, source, chosen.depot_columns)
    call.answer(arrivals, tell=lambda: _print_arrivals(arrivals, limit))


def _print_arrivals(arrivals: list[Arrival], limit: int) -> None:
    for number, arrival in enumerate(arrivals[:limit], 1):
        _print_arrival(number, arrival)
    if len(arrivals) > limit:
        print_line(f"and {len(arrivals) - limit:,} more: --limit {len(arrivals)}")


def _print_arrival(number: int, arrival: Arrival) -> None:
    """Print one arrival: what came, where it is and, if rejected, what would have kept it."""
    colour = {"rejected": "red", "lost": "red", "waiting": "yellow", "skipped": "yellow"}.get(arrival.outcome, "green")
    what = escape(f"{arrival.source or repr(arrival.source)} {arrival.key} {arrival.type}")
    print_markup(f"{number}. [{colour}]{arrival.outcome}[/{colour}]  {what}  {arrival.event_time}")
    sequence = "" if arrival.sequence is None else f", sequence {arrival.sequence}"
    print_line(f"   received at {arrival.received_at}{sequence}  {_payload(arrival.payload)}")
    if arrival.depot_version is not None:
        by = "" if arrival.microbatch is None else f", read by microbatch {arrival.microbatch}"
        print_line(f"   in depot version {arrival.depot_version}{by}")
    if arrival.batch is not None:
        batch = arrival.batch
        ended = f"closed at {batch['closed_at']} ({batch['close_reason']}) by microbatch {batch['closed_microbatch']}"
        print_line(f"   in {batch['id']}, {batch['window_start']} to {batch['window_end']}")
        print_line(f"   {ended if batch['state'] == 'closed' else 'the batch is still open'}")
        return
    reason = f"{arrival.rejection['reason']}: " if arrival.rejection else ""
    print_line(f"   {reason}{arrival.why}")
    if arrival.hint:
        print_line(f"   {arrival.hint}")


def _find_rows(chosen: Settings, id_: str | None, state: str, conditions: dict[str, Any]) -> list[dict[str, Any]]:
    from windrow import reading

    if id_ is not None and id_.startswith("batch/"):
        return [reading.batch(chosen.ledger, id_, chosen.idle_timeout)]
    if id_ is not None:
        return [reading.rejection(chosen.ledger, id_)]
    if state == "rejected":
        return reading.rejections(chosen.ledger, **conditions)
    state_name: Literal["open", "closed"] = "open" if state == "open" else "closed"
    return reading.batches(chosen.ledger, state_name, idle_timeout=chosen.idle_timeout, **conditions)


def _print_batch(row: dict[str, Any], whole: bool) -> None:
    ended = f"closed at {row['closed_at']} ({row['close_reason']})" if row["state"] == "closed" else "open"
    print_markup(f"[bold]{row['id']}[/bold]  {row['window_start']} to {row['window_end']}")
    size = f"{pluralize(row['message_count'], 'message')}, {row['bytes']:,} bytes"
    print_line(f"  {ended}; opened by {row['open_reason']}; {size}")
    if "closing" in row:
        print_line(f"  open because {row['closing']['reason']}; closes {row['closing']['closes']}")
    shown = row["messages"] if whole else row["messages"][:5]
    for message in shown:
        print_line(f"    {message['event_time']}  {message['type']}  {_payload(message['payload'])}")
    if len(shown) < len(row["messages"]):
        print_line(f"    and {len(row['messages']) - len(shown)} more: windrow show {row['id']}")


def _print_rejected(row: dict[str, Any], whole: bool) -> None:
    """Print a rejected message, or the bytes that a format refused before they became a message."""
    from windrow.model.chunks import REFUSED

    off = f" by {row['missed_by_us'] / 1_000_000:.3f} s" if row["missed_by_us"] else ""
    detail = f" ({row['detail']})" if row["detail"] else ""
    print_markup(f"[bold]{escape(row['id'])}[/bold]  {row['reason']}{off}{escape(detail)}")
    if row["reason"].startswith(REFUSED):
        for line in _place(row, whole):
            print_line(f"    {line}")
        return
    event_time, type_, received_at = (row[name] or "NULL" for name in ("event_time", "type", "received_at"))
    print_line(f"    {event_time}  {type_}  received at {received_at}  {_payload(row['payload'])}")
    if row["floor_raise_us"]:
        raised = row["floor_raise_us"] / 1_000_000
        print_line(f"    the floor of its source raised its processing time by {raised:.3f} s")


def _place(row: dict[str, Any], whole: bool) -> Iterator[str]:
    """Yield where bytes refused by a format are, what they are, and what can be done."""
    from windrow.reading.reasons import reason_hint
    from windrow.reading.values import undo_escapes

    at = "" if row["offset"] is None else f", offset {row['offset']:,}"
    yield f"raw source {row['raw_source']!r}, chunk {row['chunk']}{at}, received at {row['received_at'] or 'NULL'}"
    if row["content"] is not None:
        text = repr(undo_escapes(row["content"]))
        yield text if whole or len(text) <= WIDEST_PAYLOAD else f"{text[:WIDEST_PAYLOAD]}..."
    if whole:
        yield reason_hint(row["reason"])


def _payload(payload: Any) -> str:
    written = payload is None or isinstance(payload, str)
    text = str(payload).rstrip("\0") if written else json_text.dumps(payload, ensure_ascii=False)
    return text if len(text) <= WIDEST_PAYLOAD else f"{text[:WIDEST_PAYLOAD]}..."
