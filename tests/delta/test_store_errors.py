"""What is said of a store that does not answer."""

from __future__ import annotations

import pytest

from windrow.delta.store_errors import explain_store_error

SLOW = "Generic S3 error: Server returned non-2xx status code: 503 Service Unavailable: <Code>SlowDown</Code>"
FAILED = "Error performing PUT in 1s: Server returned non-2xx status code: 500 Internal Server Error"
BROKEN = "Error getting list response body: error reading a body from connection: end of file before message length"


@pytest.mark.parametrize(
    ("error", "words"),
    [(SLOW, "throttling"), (FAILED, "the store failed"), (BROKEN, "the store failed"), ("else", None)],
)
def test_busy(error: str, words: str | None) -> None:
    """A store that is busy or breaks off is told apart from others, and never said to have written nothing."""
    cause = explain_store_error(OSError(error), "s3://bucket/ledger")
    assert (cause is None) == (words is None)
    if cause is not None:
        assert words is not None
        assert words in cause[0]
        assert "Nothing was" not in cause[1]


def test_java_frames() -> None:
    """What only the stack trace of Java says is not said by a store."""
    called = "\n\tat org.apache.spark.sql.QueryExecution$.withInternalError(QueryExecution.scala:872)"
    frames = f"{called}\n\tat a.B.c(B.scala:503)"
    assert explain_store_error(OSError("[DELTA_PROTOCOL_CHANGED] by a concurrent update" + frames), "main.a.b") is None
    assert explain_store_error(OSError(f"503 SlowDown{frames}"), "main.a.b") is not None


def test_local() -> None:
    """A local table has no store."""
    assert explain_store_error(OSError(SLOW), "/ledger") is None
