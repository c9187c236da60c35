"""Windrow's rules as a StatefulProcessor of Spark: state and timers are Spark's, the rules are written by hand.

One stream's open windows and its clock are in its state. A window closes at its timeout by the stream's own clock, or
by a timer, when other streams have moved the watermark of `received_at` past it. Rejected messages are rows as well.
Not here: sizes, and a clock that goes on while everything is silent.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

WINDOW, MAX_DELAY, MAX_LEAD = 10_000_000, 5_000_000, 1_000_000
MESSAGE = "type string, event_time bigint, received_at bigint, payload string"
OUTPUT = f"state string, source string, key string, start bigint, end bigint, messages array<struct<{MESSAGE}>>"
COLUMNS = [part.split()[0] for part in OUTPUT.split(",")[:5]] + ["messages"]
TIME = "timestamp_micros"
TIMED = f"""transform(messages, m -> struct(m.type AS type, {TIME}(m.event_time) AS event_time,
    {TIME}(m.received_at) AS received_at, m.payload AS payload)) AS messages"""

Message = tuple[str, int, int, str]


@dataclass
class PeerWindow:
    """An open window [start, end) and its messages by type."""

    start: int
    end: int
    messages: dict[str, Message] = field(default_factory=dict)


class PeerStream:
    """The open windows of one stream, in order, and what has left them."""

    def __init__(self, clock: int, windows: list[PeerWindow]) -> None:
        """Go on from what was kept."""
        self.clock, self.windows = clock, windows
        self.done: list[tuple[str, int, int, list[Message]]] = []

    def close(self, now: int) -> None:
        """Let go of the windows whose timeout is due."""
        due = [window for window in self.windows if window.end + MAX_DELAY <= now]
        self.windows = [window for window in self.windows if window.end + MAX_DELAY > now]
        self.done += [("closed", window.start, window.end, list(window.messages.values())) for window in due]

    def take(self, message: Message) -> None:
        """Put a message into a window, or reject it."""
        kind, time, received_at, _ = message
        self.clock = max(self.clock, received_at)
        self.close(self.clock)
        if time < self.clock - MAX_DELAY:
            return self._reject("too_old", message)
        if time > self.clock + MAX_LEAD:
            return self._reject("too_far_ahead", message)
        window = self._holding(time) or self._opened(time)
        twin = window.messages.get(kind)
        if twin and twin[1] == time:
            return self._reject("duplicate", message)
        if twin:
            self._split(window, max(time, twin[1]))
            window = self._holding(time)
        window.messages[kind] = message
        return None

    def _reject(self, reason: str, message: Message) -> None:
        self.done.append((reason, message[1], message[1], [message]))

    def _holding(self, time: int) -> PeerWindow | None:
        return next((window for window in self.windows if window.start <= time < window.end), None)

    def _opened(self, time: int) -> PeerWindow:
        start = max([self.clock - MAX_DELAY, *(window.end for window in self.windows if window.end <= time)])
        start = start if time < start + WINDOW else time
        end = min([start + WINDOW, *(window.start for window in self.windows if window.start > time)])
        return self._added(PeerWindow(start, end))

    def _split(self, window: PeerWindow, time: int) -> None:
        following = [other.start for other in self.windows if other.start > window.start]
        fresh = PeerWindow(time, min([max(time + WINDOW, window.end), *following]))
        fresh.messages = {kind: message for kind, message in window.messages.items() if message[1] >= time}
        window.end = time
        window.messages = {kind: message for kind, message in window.messages.items() if message[1] < time}
        self._added(fresh)

    def _added(self, window: PeerWindow) -> PeerWindow:
        self.windows = sorted([*self.windows, window], key=lambda other: other.start)
        return window


class Batching(StatefulProcessor):
    """Keeps a Stream in Spark's state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Name the state: the clock, and the messages with the window that each is in."""
        self.handle = handle
        self.clock = handle.getValueState("clock", "clock bigint")
        self.open = handle.getListState("open", f"start bigint, end bigint, {MESSAGE}")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803 - Spark's
        """Take the new messages of one stream, in the order of their arrival."""
        stream = self._kept()
        arrived = pd.concat(rows).sort_values(["received_at", "event_time", "type"])
        for message in arrived[["type", "event_time", "received_at", "payload"]].itertuples(index=False, name=None):
            stream.take(message)
        yield self._keep(key, stream)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803 - Spark's
        """Close what is due by the watermark."""
        stream = self._kept()
        stream.close(timerValues.getCurrentWatermarkInMs() * 1_000)
        yield self._keep(key, stream)

    def _kept(self) -> PeerStream:
        clock = self.clock.get()[0] if self.clock.exists() else 0
        windows: dict[int, PeerWindow] = {}
        for start, end, *message in self.open.get() if self.open.exists() else ():
            windows.setdefault(start, PeerWindow(start, end)).messages[message[0]] = tuple(message)
        return PeerStream(clock, [windows[start] for start in sorted(windows)])

    def _keep(self, key: Any, stream: PeerStream) -> pd.DataFrame:
        self.clock.update((int(stream.clock),))
        kept = [(open_.start, open_.end, *value) for open_ in stream.windows for value in open_.messages.values()]
        self.open.put(kept) if kept else self.open.clear()
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        for window in stream.windows:
            self.handle.registerTimer(-(-(window.end + MAX_DELAY) // 1_000))
        return pd.DataFrame([(state, *key, *rest) for state, *rest in stream.done], columns=COLUMNS)


def batched(messages: DataFrame) -> DataFrame:
    """Return a row for each closed batch and each rejected message."""
    as_numbers = [f"unix_micros({name}) AS {name}" for name in ("event_time", "received_at")]
    watermarked = messages.withColumn("at", messages.received_at).withWatermark("at", "0 seconds")
    outcomes = (
        watermarked.selectExpr("source", "key", "type", *as_numbers, "payload", "at")
        .groupBy("source", "key")
        .transformWithStateInPandas(Batching(), OUTPUT, outputMode="Append", timeMode="EventTime")
    )
    return outcomes.selectExpr("state", "source", "key", f"{TIME}(start) AS start", f"{TIME}(end) AS end", TIMED)


def run(spark: SparkSession, depot: Path, into: Path, files_at_once: int) -> list[dict]:
    """Batch what is new in the depot and stop; return the progress of each microbatch."""
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    try:
        messages = spark.readStream.format("delta").option("maxFilesPerTrigger", files_at_once).load(str(depot))
        query = batched(messages).writeStream.format("delta").outputMode("append")
        query = query.option("checkpointLocation", str(into / "checkpoint")).trigger(availableNow=True)
        started = query.start(str(into / "batches"))
        started.awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.stateStore.providerClass")
    return [dict(row) for row in started.recentProgress]
