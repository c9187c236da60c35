"""The lines of a run: its start, one for each microbatch, retries, changes of the rules, maintenance, and its end."""

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
    """Writes the log of a run. The line of a microbatch is the whole of it: nothing else is written about it."""

    def started(self, run: Run) -> None:
        """Say what runs where."""
        self._run, self._begun, self._totals = run, run.clock.elapsed(), Counter[str]()
        tables = {"depot": run.settings.depot, "ledger": run.settings.ledger}
        log.info("run started", engine=run.engine, **tables, windrow=VERSION)

    def committed(self, committed: Committed) -> None:
        """Say what a microbatch did and how long its phases took."""
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
        """Say why an attempt failed."""
        log.warning("retry", attempt=attempt, code=_code(error), error=first_line(error))

    def maintained(self, maintained: Maintained, took_ms: float) -> None:
        """Say what was done to the files of a table, and how long microbatches had to wait for it."""
        log.info("maintenance", **asdict(maintained), took_ms=took_ms)

    def maintenance_failed(self, table: Role, error: Exception) -> None:
        """Say why a table could not be looked after."""
        log.warning("maintenance failed", table=table, code=_code(error), error=first_line(error))

    def ended(self, error: BaseException | None) -> None:
        """Say what the run did in all; what went wrong is put into words by the edge."""
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
        )


def _code(error: BaseException) -> str:
    return error.code if isinstance(error, WindrowError) else type(error).__name__
