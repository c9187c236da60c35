# Databricks notebook source
# MAGIC %md
# MAGIC # Explore closed batches
# MAGIC
# MAGIC A closed batch is one row, with its messages inside. This notebook queries closed batches in SQL and as
# MAGIC DataFrames, explodes their messages, and draws one key. It writes to no table.
# MAGIC
# MAGIC Parameters: `ledger` (path or catalog name), `key`, `begin` (ISO 8601, UTC) and `seconds` for the picture.
# MAGIC [tables.md](../docs/tables.md) explains the columns.

# COMMAND ----------

from windrow.errors import NotFoundError
from windrow.notebook import Notebook
from windrow.reading import plot

at = Notebook(globals())
spark = at.spark
at.views()  # closed_batches, open_batches, closed_messages, rejected_messages, microbatches, ledger

# COMMAND ----------

# MAGIC %md
# MAGIC ## How many, how large, how long
# MAGIC
# MAGIC `open_reason` says why a window began: with a message, or because a second message of a type (`conflict`) or too
# MAGIC many bytes (`size`) split the previous window.

# COMMAND ----------

# MAGIC %sql
# MAGIC SELECT
# MAGIC   key,
# MAGIC   count(*) AS batches,
# MAGIC   count_if(open_reason = 'conflict') AS split,
# MAGIC   sum(message_count) AS messages,
# MAGIC   round(avg(message_count), 1) AS messages_each,
# MAGIC   sum(bytes) AS bytes,
# MAGIC   min(window_start) AS first_window,
# MAGIC   max(window_end) AS last_window
# MAGIC FROM closed_batches
# MAGIC GROUP BY key
# MAGIC ORDER BY batches DESC

# COMMAND ----------

# MAGIC %md
# MAGIC ## The messages inside
# MAGIC
# MAGIC `closed_messages` has one row for each message. The DataFrame below explodes the messages by hand, to show which
# MAGIC types arrive late.

# COMMAND ----------

# MAGIC %sql
# MAGIC SELECT key, window_start, type, event_time, received_at, payload
# MAGIC FROM closed_messages
# MAGIC ORDER BY key, window_start, event_time, type
# MAGIC LIMIT 20

# COMMAND ----------

from pyspark.sql import functions as F

messages = spark.table("closed_batches").select("key", F.explode("messages").alias("message"))
delay = F.unix_millis("message.received_at") - F.unix_millis("message.event_time")
by_type = (
    messages.groupBy("key", "message.type")
    .agg(
        F.count("*").alias("messages"),
        F.median(delay).alias("delay_ms"),
        F.max(delay).alias("longest_delay_ms"),
    )
    .orderBy(F.desc("longest_delay_ms"), "key", "type")
)
at.show(by_type)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Messages in no batch
# MAGIC
# MAGIC Each source's share of rejected messages. [why_rejected](why_rejected.py) explains single messages.

# COMMAND ----------

# MAGIC %sql
# MAGIC WITH counted AS (
# MAGIC   SELECT source, 'in a batch' AS outcome, sum(message_count) AS messages
# MAGIC   FROM ledger WHERE state IN ('open', 'closed') GROUP BY source
# MAGIC   UNION ALL
# MAGIC   SELECT source, reason, count(*) FROM rejected_messages GROUP BY source, reason
# MAGIC )
# MAGIC SELECT *, round(100 * messages / sum(messages) OVER (PARTITION BY source), 2) AS percent
# MAGIC FROM counted
# MAGIC ORDER BY source, messages DESC

# COMMAND ----------

# MAGIC %md
# MAGIC ## A picture of one key
# MAGIC
# MAGIC Event time is above, processing time below; each message is a line between them, and windows are boxes. Without
# MAGIC parameters the picture shows the key with the most batches, from its first window on.

# COMMAND ----------

batches = spark.sql("SELECT * FROM ledger WHERE state IN ('open', 'closed')")
rejected = spark.table("rejected_messages")

streams = batches.groupBy("key").agg(F.count("*").alias("batches"), F.min(F.unix_micros("window_start")).alias("begin"))
key_parameter = at.parameter("key")
matching = streams.where(F.col("key") == key_parameter) if key_parameter else streams
most = matching.orderBy(F.desc("batches"), "key").first()
if most is None:
    raise NotFoundError("the ledger has no batch of this key", "Choose another key, or run `windrow run`.")
key, _, first = most
chosen = at.time_parameter("begin")
start = first if chosen is None else chosen
end = start + int(at.parameter("seconds", "120")) * 1_000_000

of_key = batches.where(F.col("key") == key)
within = of_key.where((F.unix_micros("timeout_at") >= start) & (F.unix_micros("window_start") < end))
beside = rejected.where((F.col("key") == key) & (F.unix_micros("event_time").between(start, end)))
chart = plot.timeline(
    at.arrow(within), at.arrow(beside), title=f"{key}: from event time to arrival", start=start, end=end
)
at.show(chart, "timeline")
