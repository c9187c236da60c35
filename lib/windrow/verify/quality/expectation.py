"""The invariants as expectations: each is a query for failing rows; one pass counts the failures of a whole relation.

An `UnexpectedRowsExpectation` runs its query twice, or three times if it fails. Here all expectations on one relation
share a metric, which Great Expectations computes once: on its Spark engine, or on its pandas engine with a frame that
refers to the rows in DuckDB.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.execution_engine.pandas_execution_engine import PandasExecutionEngine
from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine
from great_expectations.expectations.core.unexpected_rows_expectation import UnexpectedRowsExpectation
from great_expectations.expectations.expectation import Expectation
from great_expectations.expectations.metadata_types import FailureSeverity
from great_expectations.expectations.metrics.metric_provider import metric_value
from great_expectations.expectations.metrics.table_metric_provider import TableMetricProvider

from windrow.reading.values import records
from windrow.verify.invariants import INVARIANTS, Invariant, counting
from windrow.verify.quality.embedded import ROWS, EmbeddedRows
from windrow.verify.quality.spark import OVER, SparkRows

EXAMPLES = 20
OF_MESSAGES = re.compile(r"\{(inside|messages|types)\}")  # the views about messages
Rows = EmbeddedRows | SparkRows
Named = dict[str, Any]
Found = tuple[int, list[Named]]


class LedgerMetric(TableMetricProvider):
    """A metric over the rows of a ledger, the same on both engines; a class without a metric name is not registered."""

    @classmethod
    def compute(cls, expectation: Named, rows: Rows) -> Any:
        """Return the metric; `expectation` has the values of `value_keys`."""
        raise NotImplementedError

    @metric_value(engine=SparkDFExecutionEngine)
    def _spark(cls, **named: Any) -> Any:  # noqa: N805 - the decorator makes a class method of it
        return cls.compute(named["metric_value_kwargs"], SparkRows(_frame(named)))

    @metric_value(engine=PandasExecutionEngine)
    def _pandas(cls, **named: Any) -> Any:  # noqa: N805 - the same
        return cls.compute(named["metric_value_kwargs"], _frame(named).attrs[ROWS])


class FailingRows(LedgerMetric):
    """The number of failing rows and the first of them, for each invariant of a relation."""

    metric_name = "windrow.failing_rows"
    value_keys = ("relation",)

    @classmethod
    def compute(cls, expectation: Named, rows: Rows) -> dict[str, Found]:
        """Count failures of all invariants of the relation in one pass, then fetch rows only for those that fail."""
        invariants = [
            invariant for invariant in INVARIANTS.values() if invariant.relation.name == expectation["relation"]
        ]
        (statement,) = counting(invariants, rows.views)
        (counts,) = rows.ask(statement).to_pylist()
        return {
            invariant.name: (counts[invariant.name], _first(invariant, rows) if counts[invariant.name] else [])
            for invariant in invariants
        }


class SelectedRows(LedgerMetric):
    """The number of rows that a query selects, and the first of them."""

    metric_name = "windrow.selected_rows"
    value_keys = ("unexpected_rows_query",)

    @classmethod
    def compute(cls, expectation: Named, rows: Rows) -> Found:
        """Run the query once."""
        selected = rows.ask(expectation["unexpected_rows_query"])
        return selected.num_rows, records(selected.slice(0, EXAMPLES))


class ExpectNoRow(UnexpectedRowsExpectation):
    """Expect that `unexpected_rows_query` selects no row; it runs once, on either engine, and should select few."""

    metric_dependencies: ClassVar[tuple[str, ...]] = ("windrow.selected_rows",)

    def _validate(self, metrics: Named, *_: Any, **__: Any) -> dict[str, Any]:
        return _result(metrics["windrow.selected_rows"])


class ExpectInvariant(UnexpectedRowsExpectation):
    """Expect that no row of a ledger fails an invariant; `unexpected_rows_query` finds the rows that do."""

    invariant: str
    relation: str

    metric_dependencies: ClassVar[tuple[str, ...]] = ("windrow.failing_rows",)
    success_keys: ClassVar[tuple[str, ...]] = ("invariant", "relation", "unexpected_rows_query")

    def _validate(self, metrics: Named, *_: Any, **__: Any) -> dict[str, Any]:
        return _result(metrics["windrow.failing_rows"][self.invariant])


def is_of_windrow(expectation: Expectation) -> bool:
    """Tell whether an expectation is one of Windrow's, which run on any engine."""
    return isinstance(expectation, ExpectInvariant | ExpectNoRow)


def needs_messages(expectation: Expectation) -> bool:
    """Tell whether an expectation is about the messages of batches, and not a user's query."""
    return isinstance(expectation, ExpectInvariant) and bool(
        OF_MESSAGES.search(INVARIANTS[expectation.invariant].relation.sql)
    )


def on_any_engine(expectation: Expectation) -> Expectation | None:
    """Return an equivalent expectation that also runs without Spark; None if there is none."""
    if is_of_windrow(expectation):
        return expectation
    own = UnexpectedRowsExpectation._validate  # noqa: SLF001 - an expectation that overrides it is another one
    if not isinstance(expectation, UnexpectedRowsExpectation) or type(expectation)._validate is not own:  # noqa: SLF001 - the same
        return None
    return ExpectNoRow(
        unexpected_rows_query=expectation.unexpected_rows_query,
        severity=expectation.severity,
        description=expectation.description,
        meta=expectation.meta,
    )


def expectation(invariant: Invariant) -> ExpectInvariant:
    """Return an invariant as an expectation."""
    return ExpectInvariant(
        invariant=invariant.name,
        relation=invariant.relation.name,
        unexpected_rows_query=invariant.statement(OVER),
        severity=FailureSeverity(invariant.severity),
        description=invariant.about,
        meta={"name": invariant.name},
    )


def _first(invariant: Invariant, rows: Rows) -> list[Named]:
    return records(rows.ask(f"{invariant.statement(rows.views)}\nLIMIT {EXAMPLES}"))


def _frame(named: Named) -> Any:
    engine, domain = named["execution_engine"], named["metric_domain_kwargs"]
    return engine.get_compute_domain(domain, domain_type=MetricDomainTypes.TABLE)[0]


def _result(result: Found) -> dict[str, Any]:
    failed, rows = result
    return {"success": failed == 0, "result": {"observed_value": failed, "details": {"unexpected_rows": rows}}}
