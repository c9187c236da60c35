"""The check of a ledger: one version of it, read by Spark, validated against suites by Great Expectations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow.errors import OutputRefused, TableMissing, TableRefused
from windrow.locations import local_path, reference
from windrow.quality.library import fresh_context, library, quiet
from windrow.quality.outcome import Checked, outcome_of
from windrow.quality.suites import MAX_REJECTED, books, closed_batches, rejected_messages
from windrow.reading.delta import LEDGER_COLUMNS

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite
    from pyspark.sql import DataFrame, SparkSession

STATES = ("progress", "microbatch", "open", "closed", "rejected")
SITE = "windrow"


def check(
    spark: SparkSession,
    ledger: str,
    suites: Sequence[ExpectationSuite] | None = None,
    max_rejected: float = MAX_REJECTED,
    docs: str | Path | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Checked:
    """Validate the latest version of a ledger, a path or a name, against suites (default: all of this package).

    `docs` is a directory for Data Docs; `progress` is told what was done, how many steps, and of how many. One thread
    at a time, and never inside `foreachBatch`: Great Expectations keeps one name for the rows that its queries read.
    Raises MissingExtra, TableMissing, TableRefused, OutputRefused, and ExpectationBroken for one that did not run.
    """
    library()
    _require_directory(docs)
    wanted = (
        [closed_batches(), rejected_messages(max_rejected=max_rejected), books()] if suites is None else list(suites)
    )
    steps = len(wanted) + 1
    version, frame = _pinned(spark, ledger)
    with quiet(), _held(frame):
        rows = dict.fromkeys(STATES, 0) | _counted(frame)
        progress("rows", 1, steps)
        context = fresh_context()
        outcomes = []
        for done, suite in enumerate(wanted, 2):
            outcomes += [outcome_of(suite.name, result) for result in _validated(context, suite, frame)]
            progress(suite.name, done, steps)
        place = None if docs is None else _documented(context, Path(docs).absolute())
    return Checked(ledger, version, rows, tuple(outcomes), place)


def _pinned(spark: SparkSession, ledger: str) -> tuple[int, DataFrame]:
    """Return the latest version of a ledger and its rows, which stay those of that version."""
    from pyspark.errors import AnalysisException

    here = local_path(ledger)
    table = reference(ledger if here is None else str(here.absolute()))
    try:
        version = spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").select("version").collect()[0][0]
        frame = spark.sql(f"SELECT * FROM {table} VERSION AS OF {version:d}")
    except AnalysisException as error:
        raise TableMissing(f"there is no ledger at {ledger}", "Give its path, or its name in a catalog.") from error
    if not set(frame.columns) >= LEDGER_COLUMNS:
        raise TableRefused(f"{ledger} is a Delta table, but no ledger", "Give the path of a ledger.")
    return int(version), frame


@contextmanager
def _held(frame: DataFrame) -> Iterator[None]:
    """Read the table once for all queries, where Spark can hold it: serverless compute cannot, and reads it again."""
    from pyspark.errors import PySparkException

    with suppress(PySparkException):
        frame.persist()
    try:
        yield
    finally:
        with suppress(PySparkException):
            frame.unpersist()


def _counted(frame: DataFrame) -> dict[str, int]:
    return {row["state"]: row["count"] for row in frame.groupBy("state").count().collect()}


def _validated(context: Any, suite: ExpectationSuite, frame: DataFrame) -> list[Any]:
    """Return the results of a suite in the order of its expectations."""
    gx = library()
    source = context.data_sources.add_or_update_spark(SITE, persist=False)
    batch = source.add_dataframe_asset(suite.name).add_batch_definition_whole_dataframe("ledger")
    known = context.suites.add(suite)
    definition = context.validation_definitions.add(gx.ValidationDefinition(name=suite.name, data=batch, suite=known))
    results = definition.run(batch_parameters={"dataframe": frame}, result_format="COMPLETE").results
    place = {one.id: number for number, one in enumerate(known.expectations)}
    return sorted(results, key=lambda result: place.get(result.expectation_config.id, len(place)))


def _require_directory(docs: str | Path | None) -> None:
    if docs is not None and Path(docs).exists() and not Path(docs).is_dir():
        raise OutputRefused(f"{docs} is a file", "Name a directory for the Data Docs.")


def _documented(context: Any, directory: Path) -> str:
    """Write Data Docs, static pages of all results, and return the path of the first."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputRefused(f"Data Docs cannot be written to {directory}: {error}", "Name another place.") from error
    store = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(directory)}
    site = {
        "class_name": "SiteBuilder",
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": store,
    }
    context.add_data_docs_site(site_name=SITE, site_config=site)
    context.build_data_docs(site_names=[SITE])
    return str(directory / "index.html")
