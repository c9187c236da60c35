"""A `StatefulProcessor` written by hand, with a clock for each stream, which records what it rejects."""

from benchmarks.peers import stateful
from tests.conformance.systems import spark


def main() -> None:
    """Write one row for each closed batch and one for each rejected message."""
    depot, output, checkpoint = spark.directories()
    rows = stateful.batched(spark.read_messages(spark.local_session(), depot))
    spark.run_to_end(rows.writeStream.format("delta").option("path", f"{output}/batches"), checkpoint)


if __name__ == "__main__":
    main()
