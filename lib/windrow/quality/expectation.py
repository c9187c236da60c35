"""The invariants as expectations: each one a query for failing rows, all of a relation counted in one pass of Spark.

An `UnexpectedRowsExpectation` runs its query twice and three times over when it fails. Here expectations that look at
one relation share a metric, which Great Expectations computes once for all of them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine
from great_expectations.expectations.core.unexpected_rows_expectation import UnexpectedRowsExpectation
from great_expectations.expectations.metadata_types import FailureSeverity
from great_expectations.expectations.metrics.metric_provider import metric_value
from great_expectations.expectations.metrics.table_metric_provider import TableMetricProvider

from windrow.invariants import INVARIANTS, Invariant, counting, views
from windrow.reading.values import records

EXAMPLES = 20
OVER = views("{batch}")  # where Great Expectations puts the ledger


class FailingRows(TableMetricProvider):
    """For each invariant of a relation how many rows fail, and the first of them."""

    metric_name = "windrow.failing_rows"
    value_keys = ("relation",)

    @metric_value(engine=SparkDFExecutionEngine)
    def _spark(
        cls,  # noqa: N805 - the decorator makes a class method of it
        execution_engine: SparkDFExecutionEngine,
        metric_domain_kwargs: dict[str, Any],
        metric_value_kwargs: dict[str, Any],
        metrics: dict[str, Any],
        runtime_configuration: dict[str, Any],
    ) -> dict[str, Any]:
        ledger, _, _ = execution_engine.get_compute_domain(metric_domain_kwargs, domain_type=MetricDomainTypes.TABLE)
        relation = metric_value_kwargs["relation"]
        return failing([one for one in INVARIANTS.values() if one.relation.name == relation], ledger)


class ExpectInvariant(UnexpectedRowsExpectation):
    """No row of a ledger fails an invariant; `unexpected_rows_query` is the query that finds those that do."""

    invariant: str
    relation: str

    metric_dependencies: ClassVar[tuple[str, ...]] = ("windrow.failing_rows",)
    success_keys: ClassVar[tuple[str, ...]] = ("invariant", "relation", "unexpected_rows_query")

    def _validate(
        self, metrics: dict[str, Any], runtime_configuration: Any = None, execution_engine: Any = None
    ) -> dict[str, Any]:
        failed, rows = metrics["windrow.failing_rows"][self.invariant]
        return {"success": failed == 0, "result": {"observed_value": failed, "details": {"unexpected_rows": rows}}}


def failing(invariants: list[Invariant], ledger: Any) -> dict[str, Any]:
    """Return for each invariant how many rows of a ledger, a Spark frame, fail, and the first of them."""
    session = ledger.sparkSession
    found: dict[str, Any] = {}
    for statement in counting(invariants, OVER):
        counts = session.sql(statement, batch=ledger).toArrow().to_pylist()[0]
        found |= {name: (count, []) for name, count in counts.items()}
    for invariant in [one for one in invariants if found[one.name][0]]:
        rows = session.sql(f"{invariant.statement(OVER)}\nLIMIT {EXAMPLES}", batch=ledger).toArrow()
        found[invariant.name] = (found[invariant.name][0], records(rows))
    return found


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
