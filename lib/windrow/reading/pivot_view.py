"""Create a Spark view in which a closed batch is one row of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from windrow.delta.locations import for_spark, parts, quoted, reference
from windrow.errors import TableMissing, TableRefused, first_line
from windrow.model.payload import of_column
from windrow.reading.pivot import Pivot, once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def create_pivot_view(spark: SparkSession, ledger: str, view: str, types: Sequence[str] | None = None) -> None:
    """Create or replace a view with a row for each closed batch and a column for each type (see `reading.pivot`).

    `ledger` is a path or a name in a catalog. A `view` without a dot is temporary, with one it is in a catalog. The
    types are those in the closed batches unless given; call the function again for new ones. Raises TableMissing,
    OutputRefused if payloads are no numbers, TableRefused if Spark refuses the view.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    table = reference(for_spark(ledger))
    try:
        frame = spark.table(table)
        payload = of_column(pa.schema([("payload", to_arrow_type(frame.schema["payload"].dataType))]))
        kept = frame.where("state = 'microbatch' AND get_json_object(rules, '$.repeats') = 'keep'")
        repeats = bool(kept.select("id").limit(1).collect())
        if types is None:
            found = frame.where("state = 'closed'").selectExpr("explode(messages.type)").distinct().collect()
            types = sorted((row[0] for row in found), key=str.encode)
    except (PySparkException, KeyError) as error:
        raise TableMissing(f"there is no ledger at {ledger}", "Give its path, or its name in a catalog.") from error
    query = Pivot(once(types), payload, repeats).query(table)
    try:
        spark.sql(f"CREATE OR REPLACE {'' if '.' in view else 'TEMPORARY '}VIEW {quoted(*parts(view))} AS {query}")
    except PySparkException as error:
        raise TableRefused(
            f"the view {view} cannot be created: {first_line(error)}", "Give it another name."
        ) from error
