"""The one table that microbatches write: its live rows, and how new ones are committed and folded.

The states of a row
===================

No row is updated, so a row that changes is written again. What a row means depends on the rows that come after it:

=========== =============================================== ==========================================================
state       what it means                                   what follows
=========== =============================================== ==========================================================
latest      the version of its id that counts               superseded by the next version; gone behind a tombstone
superseded  nothing: a later version counts                 dropped by a fold, small or large
tombstone   nothing has this id                             superseded, if the id comes again; dropped by a large fold.
                                                            A small fold keeps it, as a base file may have the id
final       a closed batch, a rejection, a microbatch       nothing: it is written once, and no fold touches it
=========== =============================================== ==========================================================

Which of the versions counts is decided by `revision`, which each commit raises by one (`versions.py`). A row is in a
new file (`folded` is false) until a large fold writes it into a base file, in the order of its ids.

The states of a commit
======================

A commit is *whole* or *absent*, never partly there. It is absent if the ledger changed since prime
(ConcurrentCommitError), and whole even if its reply was lost: the next prime finds it by its token. A fold changes none
of this for a reader of live rows. `files.py` and `merge.py` are the two ways to commit. Each proves that the ledger is
as it was primed.

`files_ledger.py` is the ledger that is read and written file by file: by the embedded engine, and by Spark with
`commit = "files"`, where each task writes its rows (`task_files.py`). `spark.py` is the ledger that Spark reads
and writes, `dry_run.py` one in memory. `live.py` is what prime reads.
"""

from __future__ import annotations

from windrow.engine import Engine
from windrow.ledger.ledger import Ledger, Views
from windrow.settings.settings import Settings

__all__ = ["Ledger", "ledger_of"]


def ledger_of(engine: Engine, settings: Settings, views: Views | None = None) -> Ledger:
    """Return the ledger of the settings, reached through an engine; `views` gives the views of a topology."""
    if engine.name == "embedded" or settings.commit == "files":
        from windrow.ledger.files_ledger import FilesLedger

        return FilesLedger(engine, settings, views)
    from windrow.ledger.spark import SparkLedger

    return SparkLedger(engine, settings, views)
