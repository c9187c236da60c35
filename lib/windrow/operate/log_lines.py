"""The log lines of a run: start, microbatches, retries, rule changes, maintenance and end."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

from windrow.errors import WindrowError, first_line
from windrow.model.durations import text
from windrow.model.results import Committed, Maintained, Role
from windrow.operate.log import log
from windrow.operate.observer import Observer, Run
from windrow.version import VERSION

COUNTS = ("messages", "accepted", "rejected", "opened", "closed")


class Lines(Observer):
    """Writes the log of a run; each microbatch is one line."""

    def started(self, run: Run) -> None:
        """Log the engine and the tables."""
        self._run, self._begun, self._totals = run, run.clock.elapsed(), Counter[str]()
        tables = {"depot": run.settings.depot, "ledger": run.settings.ledger}
        log.info("run started", engine=run.engine, **tables, windrow=VERSION)

    def committed(self, committed: Committed) -> None:
        """Log the counts of a microbatch and the durations of its phases (milliseconds)."""
        self._totals.update({name: getattr(committed, name) for name in COUNTS})
        self._totals["microbatches"] += 1
        if committed.kind == "rules":
            self._rules_changed(committed.microbatch)
        log.info(
            "microbatch",
            number=committed.microbatch,
            kind=committed.kind,
            attempt=committed.attempt,
            depot_version=committed.depot_version,
            messages=committed.messages,
            accepted=committed.accepted,
            rejected=committed.rejected,
            reasons=committed.reasons,
            opened=committed.opened,
            closed=committed.closed,
            open_batches=committed.open_batches,
            path=committed.path,
            engine=self._run.engine,
            prime_ms=committed.prime_ms,
            plan_ms=committed.plan_ms,
            process_ms=committed.process_ms,
            commit_ms=committed.commit_ms,
            lag_ms=committed.lag_ms,
        )

    def retrying(self, error: Exception, attempt: int) -> None:
        """Log why an attempt failed."""
        log.warning("retry", attempt=attempt, code=_code(error), error=first_line(error))

    def maintained(self, maintained: Maintained, took_ms: float) -> None:
        """Log the maintenance of a table, and how long microbatches waited for it (milliseconds)."""
        log.info("maintenance", **asdict(maintained), took_ms=took_ms)

    def maintenance_failed(self, table: Role, error: Exception) -> None:
        """Log why the maintenance of a table failed."""
        log.warning("maintenance failed", table=table, code=_code(error), error=first_line(error))

    def ended(self, error: BaseException | None) -> None:
        """Log the totals; the command prints the error itself."""
        seconds = round(self._run.clock.elapsed() - self._begun, 3)
        done = {name: self._totals[name] for name in ("microbatches", *COUNTS)} | {"seconds": seconds}
        if error is None:
            log.info("run ended", **done)
        else:
            log.error("run failed", code=_code(error), **done)

    def _rules_changed(self, number: int) -> None:
        rules = self._run.settings.rules
        log.info(
            "rules changed",
            number=number,
            window=text(rules.window),
            max_delay=text(rules.max_delay),
            max_leap=text(rules.max_leap),
            max_batch_bytes=rules.max_batch_bytes,
            window_start=rules.window_start,
            repeats=rules.repeats,
            split_at=rules.split_at,
        )


def _code(error: BaseException) -> str:
    return error.code if isinstance(error, WindrowError) else type(error).__name__
