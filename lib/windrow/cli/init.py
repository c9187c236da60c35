"""The command `windrow init`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from windrow.cli import shared_options
from windrow.cli.shared_options import CommandContext, command, refuse
from windrow.model.printable import pluralize
from windrow.runtime.wall_clock import WallClock

if TYPE_CHECKING:
    import pyarrow as pa

    from windrow.ledger import Ledger
    from windrow.reading.proposal import Proposal
    from windrow.settings.settings import Settings
    from windrow.source import Source

ROWS = 100_000  # rows of a table to look at: enough to see how late rows come, within a second


@command("config depot ledger engine", example="windrow init --depot data/depot --ledger data/ledger")
def init(
    call: CommandContext,
    payload_type: Annotated[
        str | None, "Type of payloads: string (default), binary, double, bigint, boolean, struct<...>."
    ] = None,
    raw: Annotated[bool, "Create a raw depot, for chunks of raw files."] = False,
    from_: Annotated[
        str | None, "A Delta table of yours as the depot: propose its columns and rules, with reasons."
    ] = None,
) -> None:
    """Create the depot, the ledger and a commented windrow.toml.

    Whatever already exists stays as it is. --raw creates a raw depot but no ledger, because the ledger's columns depend
    on the records in the raw files. --from inspects a table and writes a file that is ready to run, with the meaning of
    each column and rules that suit the rows.
    """
    from windrow.ingest import writer_of
    from windrow.model.payload import name, parse, text_or_bytes
    from windrow.runtime.opening import tables_of
    from windrow.settings.template import settings_file

    if from_ is not None:
        more = raw or payload_type is not None or call.flags.get("depot")
        refuse((more, "--from goes with neither --raw nor --payload-type nor --depot", "Leave them out."))
        _from_table(replace(call, flags=call.flags | {"depot": from_}))
        return
    type_ = parse(payload_type or "string")
    refuse((raw and payload_type is not None, "a raw depot has no payloads", "Leave --payload-type out."))
    file = Path(call.config or "windrow.toml")
    written = not file.exists()
    payload_name = None if text_or_bytes(type_) == type_ else name(type_)
    chosen = (replace(call, config=None) if written else call).settings(payload_type=payload_name)
    differs = payload_name and not written and parse(call.settings().payload_type or "string") != type_
    unread = "[format] is for a raw depot, not for messages"
    refuse(
        (differs, f"--payload-type {payload_type} contradicts {file}", f"Write payload_type = {payload_name!r} there."),
        (chosen.format.type and not raw, unread, "Add --raw, or remove [format]."),
    )
    if written:
        file.write_text(settings_file(chosen), encoding="utf-8")
    source, ledger = tables_of(chosen)
    writer_of(source.engine, chosen).create(None if raw else type_, chosen.retention)
    views = [] if raw else _create_tables(call, chosen, source, ledger)
    document = {"settings": file, "created": written, "depot": chosen.depot, "raw": raw, "ledger": chosen.ledger}
    lines = [f"Depot {chosen.depot} and ledger {chosen.ledger} are ready."]
    lines += [f"Views: {', '.join(view.replace('`', '') for view in views)}."] if views else []
    lines += ["Next: windrow ingest FILE..., windrow run, windrow status."]
    if raw:
        lines = [f"Raw depot {chosen.depot} is ready.", "Next: windrow ingest FILE... --format csv."]
    first, *others = lines
    call.answer(document | {"views": views}, f"{'Wrote' if written else 'Kept'} {file}. {first}", *others)


def _create_tables(call: CommandContext, chosen: Settings, source: Source, ledger: Ledger) -> list[str]:
    from windrow.runtime.opening import DepotReader, open_ledger
    from windrow.runtime.run import batcher_of

    open_ledger([DepotReader(None, source)], ledger, batcher_of(chosen), WallClock().now())
    views = ledger.create_views()
    shared_options.note_paths(call.config, chosen, source.engine)
    return views


def _from_table(call: CommandContext) -> None:
    from windrow.reading.proposal import propose
    from windrow.runtime.opening import tables_of
    from windrow.settings.settings import Settings
    from windrow.settings.template import proposed_file

    file = Path(call.config or "windrow.toml")
    refuse((file.exists(), f"{file} exists already", "Remove it, or name another file with --config."))
    settings = replace(call, config=None).settings()
    proposal = propose(_rows(settings), WallClock().now() + settings.max_clock_skew)
    engine = [("engine", settings.engine, "")] if call.flags.get("engine") else []
    payload_type = [] if proposal.payload_type is None else [astuple(proposal.payload_type)]
    sections: dict[str, list[tuple[str, str, str]]] = {
        "": [("ledger", settings.ledger, ""), *engine, *payload_type],
        "depot": [("table", settings.depot, "")],
        "depot.columns": list(_columns(proposal)),
        "rules": [astuple(choice) for choice in proposal.rules],
    }
    written = proposed_file(sections, f"{pluralize(proposal.rows, 'row')} of {settings.depot}")
    file.write_text(written, encoding="utf-8")
    try:
        chosen = Settings.load(file, **{name: value for name, value in call.flags.items() if name != "depot"})
        views = _create_tables(call, chosen, *tables_of(chosen))
    except BaseException:
        file.unlink()  # otherwise the next attempt would be refused
        raise
    document = {"settings": file, "created": True, "ledger": chosen.ledger, "views": views, **asdict(proposal)}
    call.answer(document, written, *proposal.notes, f"Wrote {file}. Next: windrow tune, windrow run, windrow status.")


def _columns(proposal: Proposal) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and reason of each column; a correction of wrong clocks is a comment below the event time."""
    for choice in proposal.columns:
        yield astuple(choice)
        if proposal.correction is not None and choice.name == proposal.correction.name:
            yield f"# {choice.name}", proposal.correction.value, proposal.correction.reason


def _rows(settings: Settings) -> pa.Table:
    """Return some rows of a table, read by Spark if the settings say so or the table is in a catalog."""
    from windrow.delta.locations import is_catalog_name, reference
    from windrow.reading.feed import recent_rows

    if settings.engine != "spark" and not is_catalog_name(settings.depot):
        return recent_rows(settings.depot, ROWS)
    from windrow.columnar.arrow import to_plain_types
    from windrow.engine.spark.engine import SparkEngine

    return to_plain_types(SparkEngine(settings).session.read.table(reference(settings.depot)).limit(ROWS).toArrow())
