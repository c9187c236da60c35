"""Check the chain of the history, and that the commits of the depot are those that its rows name."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from windrow.model.chain import CHAIN, in_order, links, row_digests
from windrow.model.commits import differs
from windrow.verify.log import Log
from windrow.verify.report import Difference, difference_in_rows


def check_links(history: pa.Table, last: str | None) -> Iterator[Difference]:
    """Check that each row of the history has the link that follows from it and from the row before.

    `last` is the link in the progress row. A row that was changed is the only one that is said to be wrong.
    """
    rows = in_order(history)
    before, wrong = None, []
    for id_, digest, link in zip(rows["id"].to_pylist(), row_digests(rows), rows[CHAIN].to_pylist(), strict=True):
        [expected] = links([digest], before)
        if link != expected:
            wrong.append({"id": id_, "expected": expected, "found": link})
        before = link
    if before != last:
        wrong.append({"id": "progress", "expected": before, "found": last})
    expected = "the link that follows from the row and the one before"
    yield from difference_in_rows("chain", expected, pa.Table.from_pylist(wrong), "rows with another link")


def check_fingerprints(versions: pa.Table, depot: Log) -> Iterator[Difference]:
    """Check that the commits of the depot are those that the history names, as far as the depot's log has them.

    `versions` has the columns `version, fingerprint`.
    """
    named = zip(versions["version"].to_pylist(), versions["fingerprint"].to_pylist(), strict=True)
    wrong = [
        {"version": version, "expected": fingerprint, "found": depot.marks[version]}
        for version, fingerprint in named
        if version in depot.marks and differs(fingerprint, depot.marks[version])
    ]
    expected = "the commits that were read"
    yield from difference_in_rows("depot commits", expected, pa.Table.from_pylist(wrong), "versions that were replaced")
