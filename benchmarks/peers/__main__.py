"""`make peers`: run the peers side by side and print the tables of docs/comparison.md."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.peers import code, flink, inputs, speed
from benchmarks.peers.counts import FLINK_PEERS, PEERS, Peer, PeerCounts, three_cuts
from windrow.engine.spark.session import local_session

COUNTS = ("peer", "batches", "in batches", "on record", "gone", "told", "wait", "mixed", "longest, s")
CUTS = ("peer: one by one, at once, other order", "batches", "not the same", "gone", "again")


def main() -> None:
    """Measure what is asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000, help="messages of the backlog; 0: no speed")
    parser.add_argument("--rounds", type=int, default=3, help="how often each peer runs")
    parser.add_argument("--versions", type=int, default=20, help="depot versions of the sample, even; 0: no counts")
    parser.add_argument(
        "--no-flink", dest="flink", action="store_false", help="without Flink, which is not installed then"
    )
    parser.add_argument("--only", default="", help="only peers whose names have this, for the counts")
    chosen = parser.parse_args()
    peers = [peer for peer in (*PEERS, *(FLINK_PEERS if chosen.flink else ())) if chosen.only in peer.name]
    spark = local_session("windrow-peers", master="local[2]")
    with tempfile.TemporaryDirectory() as directory:
        if chosen.versions:
            print_counts(spark, peers, chosen.versions, Path(directory))
        if chosen.messages:
            print_speed(spark, chosen.flink, chosen.messages, chosen.rounds, Path(directory))
    print_table(("peer", "program", "lines"), ((peer.name, peer.program, code.lines(peer.program)) for peer in peers))
    spark.stop()


def print_counts(spark: SparkSession, peers: Sequence[Peer], versions: int, directory: Path) -> None:
    """Print what came of the bundled sample."""
    messages = inputs.sample()
    cuts_by_peer = {
        peer.name: three_cuts(spark, peer, messages, versions, directory / str(number))
        for number, peer in enumerate(peers)
    }
    print_table(COUNTS, (count_row(name, cuts["one by one"]) for name, cuts in cuts_by_peer.items()))
    print_table(CUTS, (cut_row(name, cuts) for name, cuts in cuts_by_peer.items()))


def print_speed(spark: SparkSession, with_flink: bool, messages: int, rounds: int, directory: Path) -> None:
    """Print how long a backlog takes that is read at once; what is compiled or started first is not counted."""
    inputs.write(directory / "warm", inputs.generated(1_000), 1)
    inputs.write(directory / "backlog", inputs.generated(messages), 10)
    with flink.started(speed.PARALLELISM) if with_flink else nullcontext() as process:
        speed.seconds(spark, process, directory / "warm", directory / "out", 1)
        taken = speed.seconds(spark, process, directory / "backlog", directory / "out", rounds)
    head = ("peer", "ratio", *(f"round {number + 1}, s" for number in range(rounds)))
    rounds = {name: [f"{seconds:.2f}" for seconds in taken[name]] for name in taken}
    print_table(head, ((name, ratio, *rounds[name]) for name, ratio in speed.ratios(taken).items()))


def count_row(name: str, counts: PeerCounts) -> tuple[object, ...]:
    """Return what came of one cut."""
    end = counts.end
    return (
        name,
        end.rows,
        end.messages,
        counts.recorded,
        counts.gone,
        counts.dropped,
        counts.waiting,
        end.mixed,
        end.longest_seconds,
    )


def cut_row(name: str, cuts: dict[str, PeerCounts]) -> tuple[object, ...]:
    """Return how the cuts differ: in batches, in those of one by one that a cut does not have, and in what is gone."""
    base = cuts["one by one"].end.batches
    missing = [len(base - cut.end.batches) for cut in cuts.values()]
    gone = [cut.gone for cut in cuts.values()]
    batches = [cut.end.rows for cut in cuts.values()]
    return (name, *(", ".join(map(str, counted)) for counted in (batches, missing, gone)), cuts["all at once"].again)


def print_table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> None:
    """Print a table in Markdown, each row as soon as it is there."""
    head = list(head)
    for row in chain((head, ["---"] * len(head)), rows):
        sys.stdout.write(
            "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row) + " |\n"
        )
        sys.stdout.flush()
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
