"""Check a ledger: read one version once, and validate it against suites with Great Expectations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow.errors import EngineUnavailableError, OutputFileError
from windrow.model.warn import MIN_COUNT
from windrow.verify.quality.great_expectations import SITE, fresh_context, import_meanwhile, library, quiet, require
from windrow.verify.quality.outcome import QualityResult, outcome_of
from windrow.verify.quality.suites import MAX_REJECTED, books, closed_batches, rejected_messages

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite
    from pyspark.sql import SparkSession

    from windrow.verify.quality.expectation import Rows

STATES = ("progress", "microbatch", "open", "closed", "rejected")


def check(
    spark: SparkSession | None,
    ledger: str,
    suites: Sequence[ExpectationSuite] | None = None,
    max_rejected: float = MAX_REJECTED,
    docs: str | Path | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    min_count: int = MIN_COUNT,
) -> QualityResult:
    """Validate the latest version of a ledger, a path or a name, against suites (default: all of this package).

    `max_rejected` and `min_count` are the limits of this package's suites. Without a Spark session DuckDB reads a
    ledger at a path, and of your own expectations it runs `UnexpectedRowsExpectation`, whose query it translates from
    Spark SQL; all others need Spark. `docs` is a directory for Data Docs. `progress` is called with what was done, the
    number of steps done, and of all steps. Call it from one thread at a time and never inside `foreachBatch`: Great
    Expectations has one name for the rows that its queries read. Raises MissingExtraError, EngineUnavailableError,
    TableMissingError, IncompatibleTableError, TableUnreadableError, OutputFileError, and ExpectationBrokenError for an
    expectation that did not run.
    """
    require()
    if docs is not None and Path(docs).exists() and not Path(docs).is_dir():
        raise OutputFileError(f"{docs} is a file", "Name a directory for the Data Docs.")
    import_meanwhile()
    with quiet(), _opened(spark, ledger, suites) as (version, rows):
        counts = _counted(rows.of_windrow)
        ours = (
            closed_batches(min_count=min_count),
            rejected_messages(max_rejected=max_rejected, min_count=min_count),
            books(),
        )
        suites_to_run = [suite if spark else _without_spark(suite) for suite in (ours if suites is None else suites)]
        steps = len(suites_to_run) + 1
        progress("rows", 1, steps)
        context = fresh_context()
        outcomes = []
        for done, suite in enumerate(suites_to_run, 2):
            outcomes += [outcome_of(suite.name, result) for result in _validated(context, suite, rows)]
            progress(suite.name, done, steps)
        place = None if docs is None else _documented(context, Path(docs).absolute())
    return QualityResult(ledger, version, counts, tuple(outcomes), place)


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """The rows of a ledger for Windrow's expectations, and for those of the user, which may need a frame of Spark."""

    of_windrow: Rows
    of_user: Rows


@contextmanager
def _opened(
    spark: SparkSession | None, ledger: str, suites: Sequence[ExpectationSuite] | None
) -> Iterator[tuple[int, CheckedRows]]:
    if spark is None:
        from windrow.verify.quality.embedded import embedded_rows

        with embedded_rows(ledger, suites is None or _need_messages(suites)) as (version, rows):
            yield version, CheckedRows(rows, rows)
        return
    from windrow.verify.quality.spark import spark_rows

    with spark_rows(spark, ledger) as (version, on_spark, collected):
        yield version, CheckedRows(collected or on_spark, on_spark)


def _need_messages(suites: Sequence[ExpectationSuite]) -> bool:
    from windrow.verify.quality.expectation import needs_messages

    return any(needs_messages(expectation) for suite in suites for expectation in suite.expectations)


def _counted(rows: Rows) -> dict[str, int]:
    rows_by_state = rows.ask("SELECT state, count(*) AS rows FROM {batch} GROUP BY state").to_pylist()
    return dict.fromkeys(STATES, 0) | {row["state"]: row["rows"] for row in rows_by_state}


def _without_spark(suite: ExpectationSuite) -> ExpectationSuite:
    """Return a suite that runs without Spark, in which queries of the user run as those of Windrow do."""
    from windrow.verify.quality.expectation import on_any_engine

    runnable = [on_any_engine(expectation) for expectation in suite.expectations]
    for declared, expectation in zip(suite.expectations, runnable, strict=True):
        if expectation is None:
            name = (declared.meta or {}).get("name", declared.expectation_type)
            raise EngineUnavailableError(
                f"the expectation {name} of {suite.name} needs Spark",
                "Write it as an UnexpectedRowsExpectation, or give `check` a Spark session.",
            )
    return library().ExpectationSuite(name=suite.name, expectations=runnable)


def _validated(context: Any, suite: ExpectationSuite, rows: CheckedRows) -> list[Any]:
    """Return the results of a suite in the order of its expectations."""
    if rows.of_windrow is rows.of_user:
        return _results(context, suite, rows.of_user)
    from windrow.verify.quality.expectation import is_of_windrow

    gx, results = library(), dict[int, Any]()
    for own, name in ((rows.of_windrow, suite.name), (rows.of_user, f"{suite.name}_on_spark")):
        chosen = [
            expectation for expectation in suite.expectations if is_of_windrow(expectation) == (own is rows.of_windrow)
        ]
        part = gx.ExpectationSuite(name=name, expectations=chosen)
        results |= dict(
            zip(
                (id(expectation) for expectation in chosen), _results(context, part, own) if chosen else (), strict=True
            )
        )
    return [results[id(expectation)] for expectation in suite.expectations]


def _results(context: Any, suite: ExpectationSuite, rows: Rows) -> list[Any]:
    gx = library()
    batch, frame = rows.batch(context, suite.name)
    known = context.suites.add(suite)
    definition = context.validation_definitions.add(gx.ValidationDefinition(name=suite.name, data=batch, suite=known))
    results = definition.run(batch_parameters={"dataframe": frame}, result_format="COMPLETE").results
    place = {expectation.id: number for number, expectation in enumerate(known.expectations)}
    return sorted(results, key=lambda result: place.get(result.expectation_config.id, len(place)))


def _documented(context: Any, directory: Path) -> str:
    """Write Data Docs, static pages of all results, and return the path of the first."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputFileError(f"Data Docs cannot be written to {directory}: {error}", "Name another place.") from error
    store = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(directory)}
    site = {
        "class_name": "SiteBuilder",
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": store,
    }
    context.add_data_docs_site(site_name=SITE, site_config=site)
    context.build_data_docs(site_names=[SITE])
    return str(directory / "index.html")
