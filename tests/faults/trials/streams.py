"""Faults of a stream through `windrow.foreach_batch`: its driver is killed, its checkpoint loses its newest files."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

import windrow
from tests.engine.processes import Driver
from tests.engine.streamer import pass_files
from tests.faults.trials.trial import Counted, Trial
from tests.messages import table
from windrow.settings.settings import Settings

PARTS = ("offsets", "commits", "sources/0")
STREAMS = 12  # of a driver, whose start takes as long as several of them, measured
KILLS = 5  # of each stream: checking its tables takes as long as a kill of all of them, a guess
FILES = 2  # that arrive for each driver
SECONDS_A_MICROBATCH = 5  # of twelve streams side by side on two cores, as of as many ledgers


class Stream:
    """Files that arrive one by one, and the checkpoint of whoever reads them."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.files, self.checkpoint = trial, trial.folder / "files", trial.folder / "checkpoint"
        self.files.mkdir()
        self.values: dict[str, Any] = {"depot": trial.world.depot, "ledger": trial.world.ledger, "engine": "spark"}
        self.values |= {"idle_timeout": "never", **trial.settings}

    def arrive(self, versions: int) -> None:
        """Let files arrive, the next of the log; Spark reads the oldest first."""
        for rows in self.trial.taken(versions):
            number = len(list(self.files.iterdir()))
            pq.write_table(table(rows), self.files / f"{number}.parquet")
            os.utime(self.files / f"{number}.parquet", (number, number))

    def run(self, function: Callable[..., None]) -> None:
        """Read all files, one or two at once; if Spark names empty files of the checkpoint, delete these first."""
        at_once = self.trial.random.randint(1, 2)
        arguments = self.trial.factory.session, str(self.files), str(self.checkpoint), at_once, function
        try:
            pass_files(*arguments).awaitTermination()
        except StreamingQueryException as error:
            empty = [file for part in PARTS for file in (self.checkpoint / part).iterdir() if not file.stat().st_size]
            if "Failed to read log file" not in str(error) or not empty:
                raise
            for file in empty:
                _remove(file)
            pass_files(*arguments).awaitTermination()

    @property
    def order(self) -> dict[str, Any]:
        """Return the order for a process of its own, which reads one file at a time."""
        return self.values | {"files": str(self.files), "checkpoint": str(self.checkpoint), "at_once": 1}

    def killed(self) -> None:
        """Read in a process of its own, which is killed after an append to the depot or a commit of the ledger."""
        before = DeltaTable(self.trial.world.depot).version()
        with closing(Driver("streamer", json.dumps([self.order]))) as driver:
            if self.trial.random.random() < 0.5:
                appended = Path(self.trial.world.depot, "_delta_log", f"{before + 1:020}.json")
                while not appended.exists() and driver.running():
                    pass
            else:
                driver.hear("committed")
            driver.kill()
            if driver.status() != -signal.SIGKILL:
                raise RuntimeError("the stream ended before it was killed")

    def damage(self) -> None:
        """Take the newest files of the checkpoint, or what is in them, as a power cut does."""
        newest = max(int(file.name) for file in (self.checkpoint / "offsets").iterdir() if file.name.isdigit())
        parts = self.trial.random.choice([PARTS, PARTS, ("commits",)])
        emptied = self.trial.random.random() < 0.5
        for part in parts:
            file = self.checkpoint / part / str(newest)
            if file.exists() and emptied:
                os.truncate(file, 0)
                file.with_name(f".{newest}.crc").unlink(missing_ok=True)
            elif file.exists():
                _remove(file)


def _remove(file: Path) -> None:
    file.unlink()
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def killed(trial: Trial) -> None:
    """Kill drivers of many streams, each of which is somewhere else by then; the next driver continues them."""
    trials = [Trial(trial.folder / str(n), trial.random.randrange(2**32), trial.factory) for n in range(STREAMS)]
    for stream_trial in trials:
        stream_trial.lengthen(FILES * KILLS + 1, 5)
    streams = [Stream(stream_trial) for stream_trial in trials]
    struck = 0
    for _ in range(KILLS):
        for stream in streams:
            stream.arrive(FILES)
        struck += _streams_killed(trial.random, [stream.order for stream in streams])
    for stream in streams:
        stream.arrive(100)
        stream.run(windrow.foreach_batch(Settings(**stream.values)))
        stream.trial.read_again = True
    counted = Counted.sum(stream_trial.counted() for stream_trial in trials)
    trial.result = replace(counted, struck=struck, strikes=KILLS * STREAMS)


def _streams_killed(random: Random, orders: list[dict[str, Any]]) -> int:
    """Kill a driver at a random moment; return how many of its streams had not ended."""
    with closing(Driver("streamer", json.dumps(orders))) as driver:
        said = driver.words_until("committed", random.randrange(1, 2 * STREAMS))
        time.sleep(random.uniform(0, SECONDS_A_MICROBATCH))
        driver.kill()
        running = driver.status() == -signal.SIGKILL
        return running * (STREAMS - sum(word.startswith("done") for word in (*said, *driver.words())))


def checkpoint_damaged(trial: Trial) -> None:
    """Damage the checkpoint of a stream between runs, whose function may be the same object, or after a kill."""
    stream_ = Stream(trial)
    function = windrow.foreach_batch(Settings(**stream_.values))
    stream_.arrive(2)
    if trial.random.random() < 0.5:
        stream_.killed()
    else:
        stream_.run(function)
    for _ in range(2):
        stream_.damage()
        stream_.arrive(1)
        again = trial.random.random() < 0.5
        stream_.run(function if again else windrow.foreach_batch(Settings(**stream_.values)))
    stream_.arrive(100)
    stream_.run(function)
    trial.read_again = trial.struck = True
