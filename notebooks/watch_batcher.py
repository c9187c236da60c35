# Databricks notebook source
# MAGIC %md
# MAGIC # Watch a running batcher
# MAGIC
# MAGIC This notebook shows how far the ledger has read, what waits, how long microbatches take, and whether anything
# MAGIC needs attention. Rerun it for current figures. It changes nothing.
# MAGIC
# MAGIC Parameters: `depot`, `ledger` (paths or catalog names), `minutes` for the pictures (0: all). `windrow status
# MAGIC --watch` does the same in a terminal, `windrow status --fail-if` raises alarms:
# MAGIC [operations.md](../docs/operations.md).

# COMMAND ----------

from windrow.notebook import Notebook

at = Notebook(globals())
spark = at.spark
at.views()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Position and rules

# COMMAND ----------

# MAGIC %sql
# MAGIC SELECT
# MAGIC   depot_version,
# MAGIC   microbatch,
# MAGIC   paused,
# MAGIC   start_from,
# MAGIC   get_json_object(rules, '$.window') / 1e6 AS window_seconds,
# MAGIC   get_json_object(rules, '$.max_delay') / 1e6 AS max_delay_seconds
# MAGIC FROM ledger
# MAGIC WHERE state = 'progress' AND source IS NULL

# COMMAND ----------

# MAGIC %md
# MAGIC ## What waits
# MAGIC
# MAGIC The depot versions that no microbatch has read yet.

# COMMAND ----------

waiting = at.waiting()
at.show(waiting)
at.show(f"{waiting.num_rows} versions wait.")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Clocks
# MAGIC
# MAGIC A source far behind the others is silent or late. The batches of a silent source close `idle_timeout` after they
# MAGIC are due.

# COMMAND ----------

# MAGIC %sql
# MAGIC SELECT
# MAGIC   source, clock, floor, seen_at,
# MAGIC   round((unix_millis(seen_at) - unix_millis(clock)) / 1e3, 3) AS behind_seconds
# MAGIC FROM ledger
# MAGIC WHERE state = 'progress' AND source IS NOT NULL
# MAGIC ORDER BY clock

# COMMAND ----------

# MAGIC %md
# MAGIC ## The last microbatches

# COMMAND ----------

# MAGIC %sql
# MAGIC SELECT
# MAGIC   microbatch, kind, attempt, depot_version, message_count, accepted, rejected, opened, closed, engine,
# MAGIC   processed_on, started_at,
# MAGIC   round(prime_ms) AS prime_ms, round(plan_ms) AS plan_ms, round(process_ms) AS process_ms
# MAGIC FROM microbatches
# MAGIC ORDER BY microbatch DESC
# MAGIC LIMIT 10

# COMMAND ----------

# MAGIC %md
# MAGIC ## What needs attention
# MAGIC
# MAGIC The limits are examples: set your own. For an alarm, run this cell in a job that fails if `look` is true.

# COMMAND ----------

# MAGIC %sql
# MAGIC WITH lately AS (SELECT * FROM microbatches ORDER BY microbatch DESC LIMIT 10),
# MAGIC figures AS (
# MAGIC   SELECT 'the ledger is paused' AS what, CAST(paused AS INT) AS figure, 0 AS at_most
# MAGIC   FROM ledger WHERE state = 'progress' AND source IS NULL
# MAGIC   UNION ALL
# MAGIC   SELECT 'rejected in the last 10 microbatches, percent', 100 * sum(rejected) / sum(message_count), 1
# MAGIC   FROM lately
# MAGIC   UNION ALL
# MAGIC   SELECT 'attempts of a microbatch', max(attempt), 1 FROM lately
# MAGIC   UNION ALL
# MAGIC   SELECT 'open batches', count(*), 1000 FROM open_batches
# MAGIC   UNION ALL
# MAGIC   SELECT 'slowest of the last 10 microbatches, seconds', max(prime_ms + plan_ms + process_ms) / 1000, 60
# MAGIC   FROM lately
# MAGIC )
# MAGIC SELECT what, round(figure, 2) AS figure, at_most, coalesce(figure > at_most, false) AS look
# MAGIC FROM figures
# MAGIC ORDER BY look DESC, what

# COMMAND ----------

# MAGIC %md
# MAGIC ## Pictures: messages, phases, lag
# MAGIC
# MAGIC `newest_ms` and `oldest_ms` are the age of the newest message at the start of a microbatch, for the source
# MAGIC furthest ahead and the source furthest behind. While a backlog is worked off, the line falls. The duration of a
# MAGIC commit is computed from its time in Delta's log, as far back as the log goes.

# COMMAND ----------

from windrow.reading import plot

at.commits()
history = at.arrow(
    spark.sql("""
        SELECT
          microbatch, kind, attempt, message_count, accepted, rejected, opened, closed, engine, started_at,
          prime_ms, plan_ms, process_ms,
          greatest(unix_millis(timestamp) - unix_millis(started_at) - prime_ms - plan_ms - process_ms, 0) AS commit_ms,
          if(kind = 'data', unix_millis(started_at) - unix_millis(array_max(clocks.clock)), NULL) AS newest_ms,
          if(kind = 'data', unix_millis(started_at) - unix_millis(array_min(clocks.clock)), NULL) AS oldest_ms
        FROM microbatches
        LEFT JOIN (SELECT microbatch, max(timestamp) AS timestamp FROM commits GROUP BY microbatch) USING (microbatch)
        ORDER BY microbatch
    """)
)
minutes = int(at.parameter("minutes", "60"))
if minutes and history.num_rows:
    last = history["started_at"].cast("int64").to_numpy()
    history = history.filter(last >= last.max() - minutes * 60_000_000)
chart = plot.microbatches(history)
at.show(chart, "microbatches")
