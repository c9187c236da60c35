"""The command `windrow prove`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windrow.cli.progress import steps
from windrow.cli.shared_options import CommandContext, Source, command, refuse
from windrow.errors import OutputFileError
from windrow.model import timestamps
from windrow.model.printable import pluralize

if TYPE_CHECKING:
    from windrow.reading.certificate import MessageName


@command(
    "config depot ledger engine",
    example="windrow prove   or   windrow prove --key K --event-time 2026-01-31T12:00:07Z",
)
def prove(
    call: CommandContext,
    id: Annotated[str | None, typer.Argument(help="Id of a rejection.", metavar="[ID]")] = None,  # noqa: A002
    key: Annotated[str | None, "The message's key."] = None,
    event_time: Annotated[str | None, "With --key: the message's event time, ISO 8601."] = None,
    type_: Annotated[str | None, "With --key: the message's type."] = None,
    source: Source = None,
    ledger_version: Annotated[
        int | None, typer.Option(min=0, help="The version of the ledger. Default: the latest.")
    ] = None,
    out: Annotated[Path, "File for the certificate."] = Path("certificate.json"),
) -> None:
    """Print the ledger's root hash; certify a message.

    The root is a hash over everything final; anyone with the ledger computes the same root for the same version. With
    --key and --event-time, or the id of a rejection, it writes a certificate. From it, a short program given in the
    documentation checks without the tables that the message is in exactly one batch, or why it was rejected.
    """
    from windrow.reading.certificate import Certifier
    from windrow.reading.tables import open_ledger

    message = _message(id, key, event_time, type_, source)
    with call.readable_settings() as settings, steps("hashing rows", call.json) as progress:
        certifier = Certifier(open_ledger(settings.ledger, ledger_version), lambda rows: progress(rows, None))
        certificate = None if message is None else certifier.of_message(message)
        if id is not None:
            certificate = certifier.of_rejection(id)
    document = asdict(certifier.root) | {"certificate": None, "outcome": None}
    covers = f"{pluralize(document['closed_windows'], 'closed window')}, {document['rejected']:,} rejected messages"
    lines = [
        f"{covers}, {pluralize(document['microbatch'], 'microbatch')}, of ledger version {document['ledger_version']}.",
        f"root  {document['root']}",
        f"chain {document['chain']}",
    ]
    if certificate is not None:
        size = _write(certificate, out)
        outcome = "rejected" if "rejection" in certificate else "closed"
        document |= {"certificate": out, "outcome": outcome}
        fate = "is in a closed batch" if outcome == "closed" else "was rejected"
        lines.append(f"The message {fate}: wrote {out} ({size:,} bytes).")
    call.answer(document, *lines)


def _message(
    id_: str | None, key: str | None, event_time: str | None, type_: str | None, source: str | None
) -> MessageName | None:
    """Return the message that the options name, None if none or if an id names its rejection. Raises SettingsError."""
    both = id_ is not None and (key, event_time, type_, source) != (None,) * 4
    half = (key is None) != (event_time is None) or (key is None and (type_, source) != (None, None))
    refuse(
        (both, "an id names one rejection", "Leave out --key, --event-time, --type and --source."),
        (half, "a message is identified by --key and --event-time", "Give both; add --type and --source if needed."),
    )
    if key is None or event_time is None:
        return None
    from windrow.reading.certificate import MessageName

    return MessageName(key, timestamps.microseconds(event_time, "--event-time"), type_, source)


def _write(certificate: dict[str, Any], out: Path) -> int:
    """Write a certificate; return its size in bytes. Raises OutputFileError."""
    text = json.dumps(certificate, indent=1)
    try:
        return out.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputFileError(f"{out} cannot be written: {error.strerror}", "Use another file (--out).") from error
