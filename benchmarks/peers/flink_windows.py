"""Flink's tumbling and session windows, in SQL: a batch is what a window of a key holds once the watermark passed."""

MESSAGES = """
CREATE TABLE messages (
  source STRING, `key` STRING, type STRING, event_time BIGINT, received_at BIGINT, payload STRING,
  measured AS TO_TIMESTAMP_LTZ(event_time / 1000, 3), WATERMARK FOR measured AS measured - INTERVAL '5' SECOND
) WITH ('connector' = 'filesystem', 'format' = 'json', 'path' = '{source}'{follow})"""
FOLLOW = ", 'source.monitor-interval' = '200 ms'"

BATCHES = """
CREATE TABLE batches (
  source STRING, `key` STRING, start_seconds BIGINT,
  messages ARRAY<ROW<type STRING, event_time BIGINT, received_at BIGINT, payload STRING>>
) WITH (
  'connector' = 'filesystem', 'format' = 'json', 'path' = '{batches}',
  'sink.rolling-policy.rollover-interval' = '200 ms', 'sink.rolling-policy.check-interval' = '200 ms'
)"""

INSERT = """
INSERT INTO batches
SELECT source, `key`, EXTRACT(EPOCH FROM window_start), ARRAY_AGG(CAST(ROW(type, event_time, received_at, payload)
       AS ROW<type STRING, event_time BIGINT, received_at BIGINT, payload STRING>))
FROM TABLE({window}) GROUP BY source, `key`, window_start, window_end"""

TUMBLE = "TUMBLE(TABLE messages, DESCRIPTOR(measured), INTERVAL '10' SECOND)"
SESSION = "SESSION(TABLE messages PARTITION BY (source, `key`), DESCRIPTOR(measured), INTERVAL '10' SECOND)"


def statements(window: str, source: str, batches: str, follow: bool) -> list[str]:
    """Return what creates the tables and starts the job; `follow` waits for new files until the job is cancelled."""
    tables = MESSAGES.format(source=source, follow=FOLLOW if follow else ""), BATCHES.format(batches=batches)
    return ["DROP TABLE IF EXISTS messages", "DROP TABLE IF EXISTS batches", *tables, INSERT.format(window=window)]
