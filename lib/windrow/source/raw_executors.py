"""Parse a slice of a raw depot on Spark's executors in two passes, in parallel even within one source.

The first pass summarises each chunk. The driver combines the summaries of each source in order, so it knows in which
state each chunk begins. The second pass parses the records that lie within one chunk. Records that span chunks, and
sources that are not plain, go through the stage on the driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from windrow.columnar.arrow import to_plain_types
from windrow.formats.format import Format, format_of
from windrow.formats.raw.arrived import GREATEST, REQUIRED
from windrow.formats.raw.stage import REJECTS, ByteCounts, StageResult, stage
from windrow.formats.raw.two_passes import (
    SUMMARIES,
    Bodies,
    ParsePlan,
    number_name,
    parse_bodies,
    parsed_schema,
    summarise_chunks,
)
from windrow.model.chunks import FIRST, RAW
from windrow.model.commits import VERSION
from windrow.rows.arrow import ArrowRows
from windrow.rows.frame import Batches, FrameRows, PersistedFrame, frame_of
from windrow.rows.session_settings import session_with, small_batches
from windrow.source.conversion import Conversion
from windrow.source.raw_records import ParsedChunks, PartialOf, parse_here, select_partial

CHUNKS = pa.schema([*RAW, ("version", pa.int64())])


def parse_on_executors(
    chunks: DataFrame, format_: Format, conversion: Conversion, kept: PersistedFrame, partial: PartialOf
) -> ParsedChunks:
    """Return the parsed chunks; the driver parses them if no source is plain. `kept` persists the parsed rows."""
    session = chunks.sparkSession
    with session_with(session, small_batches(session)):
        columns = conversion.columns
        summaries = _arrow(_map_frame(chunks, _by_format(format_, summarise_chunks), SUMMARIES)).cast(SUMMARIES)
        before = select_partial(summaries, partial)
        plan = ParsePlan.of(summaries, before, format_)
        if not plan.sources:
            return parse_here(chunks_in(_arrow(chunks)), partial, format_, conversion.apply_on(session))
        parsed = kept.keep(_map_frame(chunks, _parsing(plan.bodies, format_, columns), parsed_schema(columns)))
        rests = _arrow(parsed.where("rest IS NOT NULL").select("rest.*"))
        others = chunks_in(_arrow(chunks.where(_for_driver(plan))))
    staged = plan.finish(rests, before, format_) + stage(others, before, format_)
    return _combine_parsed(plan, parsed, staged, conversion)


def _combine_parsed(plan: ParsePlan, parsed: DataFrame, staged: StageResult, conversion: Conversion) -> ParsedChunks:
    """Combine the results of both passes and of the driver."""
    is_bad = F.col("reject").isNotNull()
    counts = [F.count("*").alias("rows"), F.sum("reject.bytes").alias("bytes")]
    groups = _arrow(parsed.where("rest IS NULL").groupBy("version", is_bad.alias("bad")).agg(*counts)).to_pylist()
    bad = [row for row in groups if row["bad"]]
    body, refused = plan.byte_count, sum(row["bytes"] for row in bad)
    records = staged.fields.num_rows + sum(row["rows"] for row in groups if not row["bad"])
    messages = conversion.map_records(_records(parsed, staged.fields, conversion.columns))
    return ParsedChunks(
        conversion.on_executors(messages, records),
        ByteCounts(body, body - refused, refused, 0, 0) + staged.volume,
        [FrameRows(parsed.where(is_bad).select("reject.*"), _rejects_in), ArrowRows(staged.rejects)],
        Counter(staged.rejects["version"].to_pylist()) + Counter({row["version"]: row["rows"] for row in bad}),
        staged.partial,
    )


def _records(parsed: DataFrame, fields: pa.Table, columns: pa.Schema) -> DataFrame:
    """Return the records of the executors and of the driver, with `VERSION`."""
    named = [F.col(number_name(number)).alias(name) for number, name in enumerate(columns.names)]
    records = parsed.where("reject IS NULL AND rest IS NULL").select(*named, F.col("version").alias(VERSION))
    if not fields.num_rows:
        return records
    here = fields.select(columns.names).cast(columns, safe=False).append_column(VERSION, fields[VERSION])
    return records.union(frame_of(parsed.sparkSession, here))


def _rejects_in(rows: pa.Table) -> pa.Table:
    return rows.select(REJECTS.names).cast(REJECTS)


def _map_frame(frame: DataFrame, function: Batches, schema: pa.Schema) -> DataFrame:
    return frame.mapInArrow(function, from_arrow_schema(schema))


def _arrow(frame: DataFrame) -> pa.Table:
    return to_plain_types(frame.toArrow())


def chunks_in(rows: pa.Table) -> pa.Table:
    """Return rows of a raw depot, cast to their types."""
    return rows.select(CHUNKS.names).cast(CHUNKS)


def _for_driver(plan: ParsePlan) -> Column:
    """Return a condition for rows that go to the driver: from sources that are not plain, or invalid chunks."""
    chosen = F.col("raw_source").isin(list(plan.others)) | ~F.col("sequence").between(FIRST, GREATEST)
    for name in REQUIRED:
        chosen = chosen | F.col(name).isNull()
    return chosen


def _by_format(values: Format, function: Callable[[pa.Table, Format], pa.Table]) -> Batches:
    """Return an executor's function for rows of a raw depot; it builds the format there, which cannot be sent."""
    section, used = values.limits, values.used

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        format_ = format_of(section)
        format_ = format_ if used is None else format_.using(used)
        for batch in batches:
            yield from function(chunks_in(to_plain_types(pa.table(batch))), format_).to_batches()

    return each


def _parsing(bodies: Bodies, values: Format, columns: pa.Schema) -> Batches:
    return _by_format(values, lambda rows, format_: parse_bodies(rows, bodies, format_, columns))
