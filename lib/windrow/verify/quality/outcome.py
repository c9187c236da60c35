"""The result of a check: the outcome of each expectation, with failing rows, and the number of rows checked."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from windrow.errors import ExpectationBrokenError, first_line

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
    """The result of `check`: the ledger version, how many rows of each state it has, the outcomes, and the docs."""

    ledger: str
    ledger_version: int
    row_counts: dict[str, int]
    outcomes: tuple[Outcome, ...]
    docs: str | None = None

    @property
    def empty_states(self) -> tuple[str, ...]:
        """Return the states without rows, on which every expectation holds."""
        return tuple(state for state, count in self.row_counts.items() if not count)

    def failures(self, severity: str = "critical") -> tuple[Outcome, ...]:
        """Return the outcomes that do not hold, of this severity or above."""
        least = SEVERITIES.index(severity)
        return tuple(
            outcome for outcome in self.outcomes if not outcome.passed and SEVERITIES.index(outcome.severity) >= least
        )

    @property
    def ok(self) -> bool:
        """Tell whether everything critical holds."""
        return not self.failures()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        failed = {
            severity: sum(failure.severity == severity for failure in self.failures("info")) for severity in SEVERITIES
        }
        return {"ok": self.ok, "failed_by_severity": failed, "empty_states": list(self.empty_states), **asdict(self)}


def outcome_of(suite: str, result: Any) -> Outcome:
    """Return the outcome of one validated expectation. Raises ExpectationBrokenError for one that did not run."""
    config = result.expectation_config
    meta = config.meta or {}
    name = str(meta.get("name") or config.type)
    raised = _raised(result.exception_info or {})
    if raised:
        raise ExpectationBrokenError(
            f"the expectation {name} of {suite} did not run: {first_line(Exception(raised))}",
            "Correct the query of your own expectation; for Windrow's, check that this version wrote the ledger.",
        )
    results = result.result or {}
    failed = results.get("observed_value", results.get("unexpected_count"))
    details = results.get("details") or {}
    rows = tuple(_plain(row) for row in details.get("unexpected_rows") or () if isinstance(row, dict))
    return Outcome(
        suite=suite,
        name=name,
        severity=str(getattr(config.severity, "value", config.severity)),
        description=config.description or name,
        passed=bool(result.success),
        failed_count=failed if isinstance(failed, int) else None,
        rows=() if result.success else rows[:20],
    )


def _raised(info: dict[str, Any]) -> str:
    """Return the message of the first exception: there is one for the expectation, or one for each of its metrics."""
    infos = [info, *(part for part in info.values() if isinstance(part, dict))]
    return next((str(info.get("exception_message")) for info in infos if info.get("raised_exception")), "")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _value(value) for name, value in row.items()}


def _value(value: Any) -> Any:
    """Return a JSON value; Spark returns times in the machine's time zone, without naming it."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return value if isinstance(value, str | int | float | bool | None) else str(value)
