"""Parse a slice of a raw depot on Spark's executors in two passes, in parallel even within one source.

The first pass summarises each chunk. The driver combines the summaries of each source in order, so it knows in which
state each chunk begins. The second pass parses the records that lie within one chunk. Records that span chunks, and
sources that are not plain, go through the stage on the driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from windrow.columnar.arrow import plain
from windrow.engine.arrivals import require_whole
from windrow.engine.conversion import Conversion
from windrow.engine.raw_slices import FormattedSlice, RawSlice, refused_rows, staged_rows, with_rejected
from windrow.engine.spark.executors import Batches, ExecutorsSlice, with_source
from windrow.engine.spark.frames import PersistedFrame, frame_of
from windrow.engine.spark.session_settings import configured, knows
from windrow.formats.format import Format, format_of
from windrow.formats.part import FormatPart
from windrow.formats.raw.arrived import GREATEST, REQUIRED
from windrow.formats.raw.byte_counts import Volume
from windrow.formats.raw.stage import REJECTS, Staged, stage
from windrow.formats.raw.two_passes import (
    SUMMARIES,
    Bodies,
    Plan,
    number_name,
    parse_bodies,
    parsed_schema,
    summarise,
)
from windrow.model.chunks import FIRST, RAW
from windrow.model.commits import VERSION

CHUNKS = pa.schema([*RAW, ("version", pa.int64())])
MOST_ROWS, MOST_BYTES = (f"spark.sql.execution.arrow.max{of}PerBatch" for of in ("Records", "Bytes"))
FEW_ROWS = {MOST_ROWS: "4"}  # a chunk has up to 256 MiB
FEW_BYTES = {MOST_ROWS: "1000000", MOST_BYTES: "16777216"}  # many small chunks at a time, where Spark has it


@dataclass(frozen=True, slots=True)
class RawExecutorsSlice:
    """Whole versions of a raw depot as a Spark frame of `chunks.RAW` and `version`; `kept` persists the parsed rows."""

    rows: DataFrame
    expected: Mapping[int, int | None]
    format: Format
    conversion: Conversion
    kept: PersistedFrame

    def parse(self, partial: pa.Table) -> FormattedExecutorsSlice | FormattedSlice:
        """Return the messages; the driver parses them if no source is plain. Raises ShortRead."""
        session = self.rows.sparkSession
        with configured(session, FEW_BYTES if knows(session, MOST_BYTES) else FEW_ROWS):
            counted = _arrow(self.rows.groupBy("version").count()).to_pylist()
            # guard: executors-whole-read
            require_whole({row["version"]: row["count"] for row in counted}, self.expected)
            limits, columns = self.format.limits, self.conversion.columns
            summaries = _arrow(_mapped(self.rows, _by_format(limits, summarise), SUMMARIES)).cast(SUMMARIES)
            plan = Plan.of(summaries, partial, self.format)
            if not plan.sources:
                return self._on_driver().parse(partial)
            parsing = _parsing(plan.bodies, limits, columns)
            parsed = self.kept.keep(_mapped(self.rows, parsing, parsed_schema(columns)))
            rests = _arrow(parsed.where("rest IS NOT NULL").select("rest.*"))
            rows = _chunks(_arrow(self.rows.where(_for_driver(plan))))
        staged = plan.finish(rests, partial, self.format) + stage(rows, partial, self.format)
        return self._formatted(plan, parsed, staged)

    def _on_driver(self) -> RawSlice:
        to_messages = self.conversion.apply_on(self.rows.sparkSession)
        return RawSlice(_chunks(_arrow(self.rows)), self.expected, self.format, to_messages)

    def _formatted(self, plan: Plan, parsed: DataFrame, staged: Staged) -> FormattedExecutorsSlice:
        """Return the results of both passes and of the driver as one slice."""
        is_bad = F.col("reject").isNotNull()
        counts = [F.count("*").alias("rows"), F.sum("reject.bytes").alias("bytes")]
        groups = _arrow(parsed.where("rest IS NULL").groupBy("version", is_bad.alias("bad")).agg(*counts)).to_pylist()
        bad = [row for row in groups if row["bad"]]
        body, refused = plan.byte_count, sum(row["bytes"] for row in bad)
        records = staged.fields.num_rows + sum(row["rows"] for row in groups if not row["bad"])
        messages = self.conversion.mapped_records(self._records(parsed, staged.fields))
        return FormattedExecutorsSlice(
            with_source(messages),
            dict.fromkeys(self.expected),
            records,
            self.conversion.payload,
            volume=Volume(body, body - refused, refused, 0, 0) + staged.volume,
            rejects=parsed.where(is_bad).select("reject.*"),
            rejected={row["version"]: row["rows"] for row in bad},
            staged=staged,
        )

    def _records(self, parsed: DataFrame, fields: pa.Table) -> DataFrame:
        """Return the records of the executors and of the driver, with `VERSION`."""
        columns = self.conversion.columns
        named = [F.col(number_name(number)).alias(name) for number, name in enumerate(columns.names)]
        records = parsed.where("reject IS NULL AND rest IS NULL").select(*named, F.col("version").alias(VERSION))
        if not fields.num_rows:
            return records
        here = fields.select(columns.names).cast(columns, safe=False).append_column(VERSION, fields[VERSION])
        return records.union(frame_of(parsed.sparkSession, here))


@dataclass(frozen=True, slots=True)
class FormattedExecutorsSlice(ExecutorsSlice):
    """Whole versions of a raw depot as a frame of messages, with the executors' `rejects` and their number by version.

    `staged` are the results of the driver.
    """

    rejects: DataFrame = field(kw_only=True)
    rejected: Mapping[int, int] = field(kw_only=True)
    staged: Staged = field(kw_only=True)

    def summarise(self, latest: int) -> pa.Table:
        """Return `summary.summarise` of its messages; rejected records count as read, and every version appears."""
        rejected = Counter(self.staged.rejects["version"].to_pylist()) + Counter(self.rejected)
        return with_rejected(ExecutorsSlice.summarise(self, latest), rejected, self.expected)

    def extra_rows(self, microbatch: int, schema: pa.Schema) -> list[pa.Table]:
        """Bring the executors' rejects to the driver, and return them with the driver's rows."""
        known = schema.append(pa.field("known", pa.bool_()))
        refused = _arrow(_mapped(self.rejects, _refusing(microbatch, schema), known)).cast(known)
        return [refused, *staged_rows(self.staged, microbatch, schema)]

    def extra_frames(self, microbatch: int, schema: pa.Schema) -> list[DataFrame]:
        """Return the same rows as frames; the rejects stay on the executors."""
        known = schema.append(pa.field("known", pa.bool_()))
        here = (table for table in staged_rows(self.staged, microbatch, schema) if table.num_rows)
        session = self.rejects.sparkSession
        return [
            _mapped(self.rejects, _refusing(microbatch, schema), known),
            *(frame_of(session, table) for table in here),
        ]


def _mapped(frame: DataFrame, function: Batches, schema: pa.Schema) -> DataFrame:
    return frame.mapInArrow(function, from_arrow_schema(schema))


def _arrow(frame: DataFrame) -> pa.Table:
    return plain(frame.toArrow())


def _chunks(rows: pa.Table) -> pa.Table:
    """Return rows of a raw depot, cast to their types."""
    return rows.select(CHUNKS.names).cast(CHUNKS)


def _for_driver(plan: Plan) -> Column:
    """Return a condition for rows that come to the driver: of sources that are not plain, or invalid chunks."""
    chosen = F.col("raw_source").isin(list(plan.others)) | ~F.col("sequence").between(FIRST, GREATEST)
    for name in REQUIRED:
        chosen = chosen | F.col(name).isNull()
    return chosen


def _by_format(section: FormatPart, function: Callable[[pa.Table, Format], pa.Table]) -> Batches:
    """Return what an executor does with rows of a raw depot; there it makes the format, which cannot be sent."""

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        format_ = format_of(section)
        for batch in batches:
            yield from function(_chunks(plain(pa.table(batch))), format_).to_batches()

    return each


def _parsing(bodies: Bodies, section: FormatPart, columns: pa.Schema) -> Batches:
    return _by_format(section, lambda rows, format_: parse_bodies(rows, bodies, format_, columns))


def _refusing(microbatch: int, schema: pa.Schema) -> Batches:
    def refusing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rejects = plain(pa.table(batch)).select(REJECTS.names).cast(REJECTS)
            yield from refused_rows(rejects, microbatch, schema).to_batches()

    return refusing
