# Databricks notebook source
# MAGIC %md
# MAGIC # Why was my message rejected?
# MAGIC
# MAGIC A message is in exactly one batch, or in `rejected_messages` with the reason. This notebook looks one up: what
# MAGIC happened to it, how far it missed the limit, what would have kept it, and a picture of the time around it. It
# MAGIC writes to no table.
# MAGIC
# MAGIC Parameters: `ledger` (path or catalog name), `key`, `type`, and `time` (the message's event time, ISO 8601,
# MAGIC UTC). An empty parameter matches any; of several messages, the one that missed the limit most is shown.
# MAGIC [batching.md](../docs/batching.md) explains the rules.

# COMMAND ----------

from pyspark.sql import functions as F

from windrow.notebook import Notebook
from windrow.reading import plot

at = Notebook(globals())
spark = at.spark
at.views()

key, type_, time = at.parameter("key"), at.parameter("type"), at.time_parameter("time")
rejected = spark.table("rejected_messages")
for name, value in (("key", key), ("type", type_)):
    rejected = rejected.where(F.col(name) == value) if value else rejected
if time is not None:
    rejected = rejected.where(F.unix_micros("event_time") == time)
rejected.createOrReplaceTempView("asked")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The reasons
# MAGIC
# MAGIC `raised` counts messages that arrived after others, or a tick, had advanced their source's clock. If most
# MAGIC rejections are of this kind, give each device its own `source`.

# COMMAND ----------

# MAGIC %sql
# MAGIC SELECT
# MAGIC   source,
# MAGIC   reason,
# MAGIC   count(*) AS messages,
# MAGIC   count_if(floor_raise_us > 0) AS raised,
# MAGIC   round(max(missed_by_us) / 1e6, 3) AS missed_by_seconds_at_most,
# MAGIC   min(event_time) AS first,
# MAGIC   max(event_time) AS last
# MAGIC FROM asked
# MAGIC GROUP BY source, reason
# MAGIC ORDER BY messages DESC

# COMMAND ----------

# MAGIC %md
# MAGIC ## Every arrival of the message
# MAGIC
# MAGIC The same key, type and event time may have arrived more than once: the first one wins.

# COMMAND ----------

times = ("event_time", "received_at", "processing_time")
exact = rejected.select("*", *(F.unix_micros(name).alias(f"{name}_us") for name in times))
mine = exact.orderBy(F.desc("missed_by_us"), "id").first()

if mine is None:
    at.show("No rejected message matches the parameters. `windrow show --key K --event-time TIME` finds any message.")
else:
    in_batches = spark.sql(
        "SELECT source, key, state AS outcome, id, message.* FROM ledger "
        "LATERAL VIEW explode(messages) AS message WHERE state IN ('open', 'closed')"
    )
    columns = ["outcome", "event_time", "received_at", "sequence", "payload", "id"]
    arrivals = in_batches.unionByName(
        spark.table("rejected_messages").withColumn("outcome", F.col("reason")), allowMissingColumns=True
    )
    arrivals = arrivals.where(F.unix_micros("event_time").eqNullSafe(F.lit(mine["event_time_us"])))
    for name in ("source", "key", "type"):
        arrivals = arrivals.where(F.col(name).eqNullSafe(F.lit(mine[name])))
    at.show(arrivals.select(columns).orderBy("received_at"))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Why, and what would have kept it

# COMMAND ----------

from windrow.reading import explain

if mine is not None:
    then = spark.table("microbatches").where(F.col("microbatch") == mine["microbatch"])
    rules = then.select(F.get_json_object("rules", "$.max_delay"), F.get_json_object("rules", "$.max_lead")).first()
    answer = explain(mine, *(int(value) for value in rules))
    at.show(f"{mine['key']} {mine['type']}: {mine['reason']}\n{answer.reason};\n{answer.hint}.")

# COMMAND ----------

# MAGIC %md
# MAGIC ## What `max_delay` would have kept
# MAGIC
# MAGIC This covers the messages that were too old, by their age when processed. [tune_rules](tune_rules.py) tries other
# MAGIC rules on all messages.

# COMMAND ----------

# MAGIC %sql
# MAGIC WITH late AS (
# MAGIC   SELECT source, (unix_micros(processing_time) - unix_micros(event_time)) / 1e6 AS age
# MAGIC   FROM asked
# MAGIC   WHERE reason = 'too_old'
# MAGIC )
# MAGIC SELECT
# MAGIC   source,
# MAGIC   count(*) AS too_old,
# MAGIC   round(percentile(age, 0.5), 1) AS half_needs_seconds,
# MAGIC   round(percentile(age, 0.9), 1) AS most_need_seconds,
# MAGIC   ceil(max(age)) AS all_need_seconds
# MAGIC FROM late
# MAGIC GROUP BY source
# MAGIC ORDER BY too_old DESC

# COMMAND ----------

# MAGIC %md
# MAGIC ## A picture of the time around it

# COMMAND ----------

chart = None
if mine is not None and mine["processing_time"] is not None:
    margin = 10_000_000
    ends = mine["event_time_us"], mine["processing_time_us"]
    start, end = min(ends) - margin, max(ends) + margin
    stream = (F.col("source") == mine["source"]) & (F.col("key") == mine["key"])
    batches = spark.sql("SELECT * FROM ledger WHERE state IN ('open', 'closed')").where(stream)
    batches = batches.where((F.unix_micros("timeout_at") >= start) & (F.unix_micros("window_start") < end))
    beside = spark.table("rejected_messages").where(stream)
    beside = beside.where((F.unix_micros("processing_time") >= start) & (F.unix_micros("event_time") < end))
    chart = plot.timeline(
        at.arrow(batches),
        at.arrow(beside),
        title=f"{mine['key']}: around a message that was {mine['reason']}",
        start=start,
        end=end,
    )
    at.show(chart, "rejected")
