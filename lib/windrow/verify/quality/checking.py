"""Check a ledger: read one version once, and validate the rows against suites with Great Expectations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow.errors import EngineUnavailableError, ExpectationBrokenError, OutputFileError, first_line
from windrow.model.warn import MIN_COUNT
from windrow.verify.quality.great_expectations import SITE, fresh_context, import_meanwhile, library, quiet, require
from windrow.verify.quality.suites import MAX_REJECTED, books, closed_batches, rejected_messages

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite
    from pyspark.sql import SparkSession

    from windrow.verify.quality.expectation import Rows

STATES = ("progress", "microbatch", "open", "closed", "rejected")
SEVERITIES = ("info", "warning", "critical")


@dataclass(frozen=True, slots=True)
class Outcome:
    """An expectation of a suite: whether it holds and, if not, how many rows fail, with up to 20 of them."""

    suite: str
    name: str
    severity: str
    description: str
    passed: bool
    failed_count: int | None
    rows: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class QualityResult:
    """The result of `check`: the ledger version, how many rows each state has, the outcomes, and the Data Docs."""

    ledger: str
    ledger_version: int
    row_counts: dict[str, int]
    outcomes: tuple[Outcome, ...]
    docs: str | None = None

    @property
    def empty_states(self) -> tuple[str, ...]:
        """Return the states without rows, for which every expectation holds trivially."""
        return tuple(state for state, count in self.row_counts.items() if not count)

    def failures(self, severity: str = "critical") -> tuple[Outcome, ...]:
        """Return the failed outcomes of this severity or above."""
        least = SEVERITIES.index(severity)
        return tuple(
            outcome for outcome in self.outcomes if not outcome.passed and SEVERITIES.index(outcome.severity) >= least
        )

    @property
    def ok(self) -> bool:
        """Tell whether all critical expectations hold."""
        return not self.failures()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        failed = {
            severity: sum(failure.severity == severity for failure in self.failures("info")) for severity in SEVERITIES
        }
        return {"ok": self.ok, "failed_by_severity": failed, "empty_states": list(self.empty_states), **asdict(self)}


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

    `max_rejected` and `min_count` are the limits of this package's suites. Without a Spark session, DuckDB reads a
    ledger at a path; of your own expectations, it runs `UnexpectedRowsExpectation`, whose query is translated from
    Spark SQL, and all others need Spark. `docs` is a directory for Data Docs. `progress` is called with what was done,
    the number of steps done, and of all steps. Call `check` from one thread at a time and never inside `foreachBatch`:
    Great Expectations uses a single name for the rows that its queries read. Raises MissingExtraError,
    EngineUnavailableError, TableMissingError, IncompatibleTableError, TableUnreadableError, OutputFileError, and
    ExpectationBrokenError for an expectation that did not run.
    """
    require()
    if docs is not None and Path(docs).exists() and not Path(docs).is_dir():
        raise OutputFileError(f"{docs} is a file", "Name a directory for the Data Docs.")
    import_meanwhile()
    with quiet(), _open_rows(spark, ledger, suites) as (version, rows, rows_of_user):
        by_state = rows.ask("SELECT state, count(*) AS rows FROM {batch} GROUP BY state").to_pylist()
        counts = dict.fromkeys(STATES, 0) | {row["state"]: row["rows"] for row in by_state}
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
            results = _validate(context, suite, rows, rows_of_user)
            outcomes += [_outcome(suite.name, result) for result in results]
            progress(suite.name, done, steps)
        place = None if docs is None else _write_data_docs(context, Path(docs).absolute())
    return QualityResult(ledger, version, counts, tuple(outcomes), place)


@contextmanager
def _open_rows(
    spark: SparkSession | None, ledger: str, suites: Sequence[ExpectationSuite] | None
) -> Iterator[tuple[int, Rows, Rows]]:
    """Yield the version, its rows for Windrow's expectations, and its rows for the user's, which may need Spark."""
    if spark is None:
        from windrow.verify.quality.embedded import embedded_rows

        with embedded_rows(ledger, suites is None or _need_messages(suites)) as (version, rows):
            yield version, rows, rows
        return
    from windrow.verify.quality.spark import spark_rows

    with spark_rows(spark, ledger) as (version, on_spark, collected):
        yield version, collected or on_spark, on_spark


def _need_messages(suites: Sequence[ExpectationSuite]) -> bool:
    from windrow.verify.quality.expectation import needs_messages

    return any(needs_messages(expectation) for suite in suites for expectation in suite.expectations)


def _without_spark(suite: ExpectationSuite) -> ExpectationSuite:
    """Return a suite that runs without Spark, where the user's queries run like Windrow's."""
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


def _validate(context: Any, suite: ExpectationSuite, rows: Rows, rows_of_user: Rows) -> list[Any]:
    """Return the results of a suite in the order of its expectations."""
    if rows is rows_of_user:
        return _results(context, suite, rows)
    from windrow.verify.quality.expectation import is_of_windrow

    results = dict[int, Any]()
    for on, name, is_own in ((rows, suite.name, True), (rows_of_user, f"{suite.name}_on_spark", False)):
        chosen = [expectation for expectation in suite.expectations if is_of_windrow(expectation) == is_own]
        if chosen:
            part = library().ExpectationSuite(name=name, expectations=chosen)
            results |= dict(zip(map(id, chosen), _results(context, part, on), strict=True))
    return [results[id(expectation)] for expectation in suite.expectations]


def _results(context: Any, suite: ExpectationSuite, rows: Rows) -> list[Any]:
    gx = library()
    batch, frame = rows.batch(context, suite.name)
    known = context.suites.add(suite)
    definition = context.validation_definitions.add(gx.ValidationDefinition(name=suite.name, data=batch, suite=known))
    results = definition.run(batch_parameters={"dataframe": frame}, result_format="COMPLETE").results
    place = {expectation.id: number for number, expectation in enumerate(known.expectations)}
    return sorted(results, key=lambda result: place.get(result.expectation_config.id, len(place)))


def _outcome(suite: str, result: Any) -> Outcome:
    """Return the outcome of one validated expectation. Raises ExpectationBrokenError for one that did not run."""
    config = result.expectation_config
    meta = config.meta or {}
    name = str(meta.get("name") or config.type)
    raised = _first_exception(result.exception_info or {})
    if raised:
        raise ExpectationBrokenError(
            f"the expectation {name} of {suite} did not run: {first_line(Exception(raised))}",
            "Correct the query of your own expectation; for Windrow's, check that this version wrote the ledger.",
        )
    results = result.result or {}
    failed = results.get("observed_value", results.get("unexpected_count"))
    details = results.get("details") or {}
    rows = tuple(
        {column: _value(value) for column, value in row.items()}
        for row in details.get("unexpected_rows") or ()
        if isinstance(row, dict)
    )
    return Outcome(
        suite=suite,
        name=name,
        severity=str(getattr(config.severity, "value", config.severity)),
        description=config.description or name,
        passed=bool(result.success),
        failed_count=failed if isinstance(failed, int) else None,
        rows=() if result.success else rows[:20],
    )


def _first_exception(info: dict[str, Any]) -> str:
    """Return the message of the first exception, which is the expectation's or that of one of its metrics."""
    infos = [info, *(part for part in info.values() if isinstance(part, dict))]
    return next((str(info.get("exception_message")) for info in infos if info.get("raised_exception")), "")


def _value(value: Any) -> Any:
    """Return a JSON value; Spark returns times in the machine's time zone, without naming it."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _write_data_docs(context: Any, directory: Path) -> str:
    """Write Data Docs, static pages with all results, and return the path of the first page."""
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
