"""Events for OpenLineage: which depot version went into which ledger version. Your configuration sets their target.

Spark's own integration does not see what `foreachBatch` writes, and the embedded engine has none.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from windrow.delta.locations import absolute, is_catalog_name, local_path
from windrow.delta.log import DeltaRsLog
from windrow.errors import MissingExtraError, WindrowError, first_line
from windrow.model.commits import note_of
from windrow.model.results import CommittedMicrobatch
from windrow.model.timestamps import time_text
from windrow.operate.log import without_secrets
from windrow.operate.observer import Observer, RunInfo
from windrow.version import VERSION

try:
    from openlineage.client import OpenLineageClient
    from openlineage.client.constants import DEFAULT_NAMESPACE_NAME
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import (
        DatasetFacet,
        dataset_version_dataset,
        error_message_run,
        input_statistics_input_dataset,
        job_type_job,
        processing_engine_run,
    )
    from openlineage.client.uuid import generate_new_uuid
except ImportError as missing:
    raise MissingExtraError("lineage needs openlineage-python", "pip install 'windrow-delta[lineage]'") from missing

PRODUCER = f"urn:windrow:{VERSION}"
RECENT_COMMITS = 20  # other writers, such as maintenance, may commit in between
Name = tuple[str, str]  # namespace and name of a dataset


class LineageEvents(Observer):
    """Emits START, a RUNNING event after each microbatch with the versions of its tables, and COMPLETE, FAIL or ABORT.

    The last event repeats the versions of the last microbatch. A table that delta-rs cannot read, such as one in a
    catalog, has no version.
    """

    def __init__(self, client: OpenLineageClient | None = None, namespace: str = DEFAULT_NAMESPACE_NAME) -> None:
        """Use this client, or one configured by the environment (`OPENLINEAGE_URL`), which is closed at the end.

        `namespace` is the namespace of the job, and of tables with a catalog name.
        """
        self._client, self._owns, self._namespace = client or OpenLineageClient(), client is None, namespace

    def started(self, run: RunInfo) -> None:
        """Emit START; no version is known yet."""
        self._run, self._id = run, str(generate_new_uuid())
        self._inputs = [self._input(depot) for depot in run.depots.values()]
        self._outputs = [self._output(None)]
        self._emit(RunState.START)

    def committed(self, committed: CommittedMicrobatch) -> None:
        """Emit RUNNING with the depot versions reached and the ledger version that recorded them."""
        versions = {"": committed.depot_version, **committed.depots}
        read = committed.message_count if len(self._run.depots) == 1 else None
        self._inputs = [self._input(depot, versions.get(name), read) for name, depot in self._run.depots.items()]
        self._outputs = [self._output(self._ledger_version(committed.microbatch))]
        self._emit(RunState.RUNNING)

    def ended(self, error: BaseException | None) -> None:
        """Emit COMPLETE, FAIL with the error, or ABORT for an interruption such as Ctrl-C."""
        if error is None:
            self._emit(RunState.COMPLETE)
        else:
            self._emit(RunState.FAIL if isinstance(error, Exception) else RunState.ABORT, error)
        if self._owns:
            self._client.close()

    def _emit(self, state: RunState, error: BaseException | None = None) -> None:
        engine = processing_engine_run.ProcessingEngineRunFacet(VERSION, f"windrow {self._run.engine}")
        run = Run(self._id, {"processing_engine": engine})
        if error is not None:
            text = without_secrets(first_line(error))
            run.facets = {**(run.facets or {}), "errorMessage": error_message_run.ErrorMessageRunFacet(text, "PYTHON")}
        kind = job_type_job.JobTypeJobFacet("STREAMING", "WINDROW", "JOB")
        job = Job(self._namespace, f"windrow.{self._outputs[0].name}", {"jobType": kind})
        self._client.emit(
            RunEvent(
                eventTime=time_text(self._run.clock.now()),
                eventType=state,
                run=run,
                job=job,
                inputs=self._inputs,
                outputs=self._outputs,
                producer=PRODUCER,
            )
        )

    def _input(self, location: str, version: int | None = None, rows: int | None = None) -> InputDataset:
        counted = input_statistics_input_dataset.InputStatisticsInputDatasetFacet(rowCount=rows)
        return InputDataset(
            *self._name(location), {} if rows is None else {"inputStatistics": counted}, facets=_version(version)
        )

    def _output(self, version: int | None) -> OutputDataset:
        return OutputDataset(*self._name(self._run.settings.ledger), facets=_version(version))

    def _name(self, location: str) -> Name:
        if is_catalog_name(location):
            return self._namespace, location.replace("`", "")
        path = local_path(location)
        if path is not None:
            return "file", absolute(str(path))
        url = urlsplit(without_secrets(location))
        return f"{url.scheme.replace('s3a', 's3')}://{url.netloc}", url.path.lstrip("/")

    def _ledger_version(self, microbatch: int) -> int | None:
        """Return the ledger version of a microbatch, from the note of its commit; None if delta-rs cannot tell."""
        ledger = self._run.settings.ledger
        if is_catalog_name(ledger):
            return None
        log = DeltaRsLog(ledger)
        try:
            table = log.table()
            since = 0 if table is None else max(table.version - RECENT_COMMITS, 0)
            commits = [commit for commit in log.history(since) if note_of(commit).get("microbatch") == microbatch]
        except WindrowError:
            return None
        return int(commits[0]["version"]) if commits else None


def _version(version: int | None) -> dict[str, DatasetFacet]:
    known = {} if version is None else {"version": dataset_version_dataset.DatasetVersionDatasetFacet(str(version))}
    return dict[str, DatasetFacet](known)
