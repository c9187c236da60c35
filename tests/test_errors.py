from typing import Any

import pytest

from windrow.errors import MAX_LINE, IncompatibleTableError, first_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one\n\ntwo", "one"),
        ("", "ValueError"),
        ("An error occurred while calling o1.x\n: java.io.IOException: no", "java.io.IOException: no"),
        (
            "An error occurred while calling o1.x\n: SparkException: awaitResult: \n\tat a.b(c)\nCaused by: it: [X] x",
            "it: [X] x",
        ),
        (
            ": x.SparkException: awaitResult: \n\tat a.b(c)\nCaused by: java.io.IOException: No space",
            "java.io.IOException: No space",
        ),
        (
            "Generic error\n   \x1b[31m\u21b3\x1b[0m Unable to open\n   \x1b[31m\u21b3\x1b[0m No space\n",
            "Generic error: Unable to open: No space",
        ),
        ("x" * 1_000, "x" * MAX_LINE + "..."),
    ],
)
def test_first_line(text: str, line: str) -> None:
    """What another library says comes in one line: the first that says something, with the causes that belong to it."""
    assert first_line(ValueError(text)) == line


def test_cause_in_another_thread(spark: Any) -> None:
    """What Spark says of a thread that failed is what that thread says."""
    from pyspark.errors.exceptions.captured import convert_exception

    java = spark.sparkContext._jvm
    failed = java.org.apache.spark.SparkException(
        "Exception thrown in awaitResult: ", java.java.io.IOException("No space")
    )
    assert first_line(convert_exception(failed)) == "java.io.IOException: No space"


def test_a_kind_of_an_error_has_its_code():
    """A class below an error that has a code is a kind of it, whatever its name."""

    class NoLedger(IncompatibleTableError):
        """None."""

    assert NoLedger.code == IncompatibleTableError.code == "WINDROW-INCOMPATIBLE-TABLE"
