"""The command `windrow produce`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from windrow.cli.progress import count_messages
from windrow.cli.shared_options import CommandContext, command, refuse
from windrow.errors import InputFileError
from windrow.model.durations import SECOND
from windrow.model.printable import pluralize
from windrow.settings.path_cache import PRODUCE

if TYPE_CHECKING:
    from windrow.producer.produce import ProduceResult
    from windrow.producer.sender import Sender

P = TypeVar("P", bound="Sender")


@command("config depot log_format log_level", example="windrow produce readings.ndjson --id gateway-7")
def produce(
    call: CommandContext,
    id_: Annotated[str | None, "Name of the producer; each input needs its own."] = None,
    file: Annotated[str, typer.Argument(help="File of lines, each a JSON object; - is standard input.")] = "-",
    map_: Annotated[
        list[str] | None, "column=field, column='text', or payload=* for the whole line. Default: the same name."
    ] = None,
    no_resume: Annotated[bool, "Send every line: the input cannot start again from its beginning."] = False,
    strict: Annotated[bool, "Stop at the first line that is not a valid message."] = False,
    raw_source: Annotated[str | None, "Send the input as it is, as chunks of this raw source, to a raw depot."] = None,
    end_source: Annotated[bool, "With --raw-source: the source ends where the input ends."] = False,
) -> None:
    """Send lines of JSON, or raw bytes, into the depot.

    Given the same input again, it resumes after the last line in the depot. It also sends lines that are not valid
    messages, which the batcher then rejects; --strict stops at the first one. After SIGINT or SIGTERM it stops once all
    lines that it has read are in the depot.

    --raw-source appends bytes of any format to a raw depot. Use it for input that cannot be read twice; for a file use
    `windrow ingest`.
    """
    if raw_source is not None:
        of_lines = {"--id": id_, "--map": map_, "--no-resume": no_resume, "--strict": strict}
        refuse(*((of_lines[name], f"{name} is for lines, not for --raw-source", "Leave it out.") for name in of_lines))
        _produce_raw(call, file, raw_source, end_source)
        return
    if id_ is None:
        raise typer.BadParameter("a producer needs a name: use --id NAME for lines, or --raw-source NAME for bytes.")
    refuse((end_source, "--end-source is for --raw-source, not for lines", "Leave it out."))
    from windrow.cli.watching import watch_run
    from windrow.model.payload import text_or_bytes
    from windrow.producer import Producer
    from windrow.producer.input import LineInput, StopSignal
    from windrow.producer.lines import TEXTUAL, Fields, LineReader
    from windrow.producer.produce import LineSender

    fields = Fields.of(map_ or ())
    chosen = call.path_settings("depot", instead=PRODUCE)
    part, stop = chosen.producer_options, StopSignal()
    with (
        watch_run(chosen.log, stop.stop, "stopping after the lines that were read"),
        _open_input(file) as descriptor,
        _closing(Producer(chosen.depot, id_, retention=chosen.retention, **part.model_dump())) as producer,
        count_messages("produce", quiet=call.json) as progress,
    ):
        textual = text_or_bytes(producer.payload) == producer.payload
        reader = LineReader(fields, id_, part.max_message_bytes, TEXTUAL if textual else producer.payload)
        lines = LineInput(descriptor, stop, part.max_message_bytes)
        production = LineSender(producer, lines, reader, part, lambda sent: progress("messages", sent))
        result = production.run(resume=not no_resume, strict=strict)
    call.answer(result, _sentence(result))


def _produce_raw(call: CommandContext, file: str, source: str, end_source: bool) -> None:
    from windrow.cli.watching import watch_run
    from windrow.model.chunks import CHUNK_BYTES
    from windrow.producer import RawProducer
    from windrow.producer.input import BytesInput, StopSignal, send_bytes

    chosen = call.path_settings("depot", instead=PRODUCE)
    part, stop = chosen.producer_options, StopSignal()
    with (
        watch_run(chosen.log, stop.stop, "stopping after the bytes that were read"),
        _open_input(file) as descriptor,
        _closing(RawProducer(chosen.depot, source, retention=chosen.retention, **part.model_dump())) as producer,
        count_messages("produce", quiet=call.json) as progress,
    ):
        input_ = BytesInput(descriptor, stop, min(part.max_message_bytes, CHUNK_BYTES), part.linger / SECOND)
        result = send_bytes(producer, input_, end_source, lambda size: progress("bytes", size))
    goes_on = f"{source} continues with chunk {result.sequence + 1:,}."
    ended = f"{source} ends with this chunk." if result.is_source_ended else goes_on
    stopped = " Stopped before the end of the input." if result.stopped else ""
    sent = f"{pluralize(result.byte_count, 'byte')} sent as {pluralize(result.chunk_count, 'chunk')}"
    call.answer(result, f"{sent}. {ended if result.chunk_count else 'No input arrived.'}{stopped}")


@contextmanager
def _open_input(file: str) -> Iterator[int]:
    """Open a file, or standard input. Raises InputFileError."""
    if file == "-":
        if sys.stdin is None:  # another file may have its number by now
            raise InputFileError("standard input is closed", "Name a file, or give it a pipe.")
        yield 0
        return
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError as error:
        unread = f"{file} cannot be read: {error.strerror}"
        raise InputFileError(unread, "Check the path and its permissions.") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _closing(producer: P) -> Iterator[P]:
    """Close a producer; after an error, do not wait for what is under way."""
    try:
        yield producer
    except BaseException:
        producer.close(0)
        raise
    producer.close()


def _sentence(result: ProduceResult) -> str:
    sentences = [f"{pluralize(result.message_count, 'message')} sent, {result.messages_per_second:,.0f}/s."]
    if result.rejected:
        verb = "is not a valid message and" if result.rejected == 1 else "are not valid messages and"
        sentences.append(f"{result.rejected:,} of them {verb} will be rejected.")
    if result.skipped:
        were = "was" if result.skipped == 1 else "were"
        sentences.append(f"{pluralize(result.skipped, 'earlier line')} {were} already in the depot.")
    if result.has_unterminated_line:
        sentences.append(f"Line {result.line + 1:,} is unterminated and was not sent.")
    if result.stopped:
        sentences.append(f"Stopped after line {result.line:,}.")
    return " ".join(sentences)
