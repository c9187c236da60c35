"""What the Spark engine does with a session's settings."""

from __future__ import annotations

from typing import Any

from windrow.engine.configured import configured

PARTITIONS, STATIC = "spark.sql.shuffle.partitions", "spark.sql.warehouse.dir"


def test_settings_for_one_statement(spark: Any) -> None:
    """
    What is set for a statement is gone after it: a setting that was there comes back, another one is unset.
    """
    before = spark.conf.get(PARTITIONS)
    with configured(spark, {PARTITIONS: "7", "spark.windrow.test": "x"}):
        assert (spark.conf.get(PARTITIONS), spark.conf.get("spark.windrow.test")) == ("7", "x")
    assert spark.conf.get(PARTITIONS) == before
    assert spark.conf.get("spark.windrow.test", None) is None


def test_session_that_takes_none(spark: Any) -> None:
    """
    Where a setting is refused, as serverless refuses all, the statement runs without any of them.
    """
    before = spark.conf.get(PARTITIONS)
    with configured(spark, {PARTITIONS: "7", STATIC: "/elsewhere"}):
        assert spark.conf.get(PARTITIONS) == before
    assert spark.conf.get(PARTITIONS) == before
