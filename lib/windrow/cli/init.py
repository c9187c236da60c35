"""The command `windrow init`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from windrow.cli import shared_options
from windrow.cli.shared_options import Call, command
from windrow.errors import SettingsError
from windrow.runtime.wall_clock import WallClock


@command("config depot ledger engine", example="windrow init --depot data/depot --ledger data/ledger")
def init(
    call: Call,
    payload: Annotated[
        str | None,
        typer.Option(
            "--payload", help="Type of payloads: string (default), binary, double, bigint, boolean, struct<...>."
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Make a raw depot, for chunks of raw files.")] = False,
) -> None:
    """Create the depot, the ledger and a commented windrow.toml.

    What exists already stays as it is. --raw makes a raw depot and no ledger, whose columns depend on the records in
    the raw files.
    """
    from windrow.ingest import writer_of
    from windrow.model.payload import name, parse, text_or_bytes
    from windrow.runtime.opening import DepotReader, open_ledger, tables_of
    from windrow.runtime.run import batcher_of
    from windrow.settings.template import settings_file

    type_ = parse(payload or "string")
    if raw and payload is not None:
        raise SettingsError("a raw depot has no payloads", "Leave --payload out.")
    file = Path(call.config or "windrow.toml")
    written = not file.exists()
    given = None if text_or_bytes(type_) == type_ else name(type_)
    chosen = (replace(call, config=None) if written else call).settings(payload_type=given)
    if given and not written and parse(call.settings().payload_type or "string") != type_:
        raise SettingsError(f"--payload {payload} contradicts {file}", f"Write payload_type = {given!r} there.")
    if chosen.format.type and not raw:
        raise SettingsError("[format] is for a raw depot, not for messages", "Say --raw, or remove [format].")
    if written:
        file.write_text(settings_file(chosen), encoding="utf-8")
    source, ledger = tables_of(chosen)
    views: list[str] = []
    writer_of(source.engine, chosen).create(None if raw else type_, chosen.keep)
    if not raw:
        open_ledger([DepotReader(None, source)], ledger, batcher_of(chosen), WallClock().now())
        views = ledger.create_views()
    shared_options.note_paths(call.config, chosen, source.engine)
    document = {"settings": file, "written": written, "depot": chosen.depot, "raw": raw, "ledger": chosen.ledger}
    lines = [f"Depot {chosen.depot} and ledger {chosen.ledger} are there."]
    lines += [f"Views: {', '.join(view.replace('`', '') for view in views)}."] if views else []
    lines += ["Next: windrow ingest FILE..., windrow run, windrow status."]
    if raw:
        lines = [f"Raw depot {chosen.depot} is there.", "Next: windrow ingest FILE... --format csv."]
    first, *others = lines
    call.answer(document | {"views": views}, f"{'Wrote' if written else 'Kept'} {file}. {first}", *others)
