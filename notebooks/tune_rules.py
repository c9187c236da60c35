# Databricks notebook source
# MAGIC %md
# MAGIC # Which window, which max_delay?
# MAGIC
# MAGIC This notebook batches the depot's messages under other rules and shows how many batches and rejections result,
# MAGIC and how long messages wait. Only the algorithm runs, on the driver, over the last `messages` messages. It writes
# MAGIC to no table. A depot at a path needs no Spark.
# MAGIC
# MAGIC Parameters: `depot`, `ledger`, `key`, `windows` and `delays` (durations separated by commas; empty: chosen to
# MAGIC suit the messages), `keep_percent` (percentage that should not be too old), `messages`.
# MAGIC [tune.md](../docs/howto/tune.md) explains the results.

# COMMAND ----------

from windrow.notebook import Notebook
from windrow.reading import plot
from windrow.reading.tuning import Trial, advise, advise_repeats, sweep

at = Notebook(globals())
messages = at.messages(int(at.parameter("messages", "1000000")))
rules = at.rules  # those that the ledger has in force
at.show(f"{messages.num_rows:,} messages, and the rules in force:")
at.show(rules)

# COMMAND ----------

# MAGIC %md
# MAGIC ## A row for each pair of rules
# MAGIC
# MAGIC `too_old` depends only on `max_delay`. The window says what belongs together; window and `max_delay` together
# MAGIC decide how long a message waits.

# COMMAND ----------

windows, delays = (
    [part.strip() for part in at.parameter(name).split(",") if part.strip()] for name in ("windows", "delays")
)
trial = Trial.of(messages, key=at.parameter("key") or None, rules=rules)
tuned = sweep(trial, windows, delays, rules)
costs = [
    "rejected_percent",
    "too_old",
    "batch_count",
    "slivers",
    "batch_messages_mean",
    "wait_seconds_median",
    "wait_seconds_p95",
]
at.show(tuned.select(["window", "max_delay", *costs]))

# COMMAND ----------

# MAGIC %md
# MAGIC ## Rounds of measurements that stay whole
# MAGIC
# MAGIC In percent, for each `split_at`, for `on_repeat = "keep"` and for `window_anchor = "aligned"`.

# COMMAND ----------

rounds = {f"intact_rounds_percent_{way}": way for way in ("message", "midpoint", "keep", "aligned")}
at.show(tuned.select(["window", "max_delay", *rounds]).rename_columns(["window", "max_delay", *rounds.values()]))

# COMMAND ----------

chart = plot.tuning(tuned, rules)
at.show(chart, "tuning")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The shortest max_delay that keeps enough

# COMMAND ----------

advice = advise(trial, rules, float(at.parameter("keep_percent", "99")))
at.show("\n".join([*advice.why, *advise_repeats(tuned.to_pylist()[-1])]))

# COMMAND ----------

# MAGIC %md
# MAGIC ## One pair, batch by batch
# MAGIC
# MAGIC `windrow.batch` is the algorithm itself: a pure function from messages to batches. Under the advised
# MAGIC `max_delay`:

# COMMAND ----------

from dataclasses import replace

import windrow

long_enough = max(rules.window, advice.max_delay_us + rules.max_lead + 1_000_000)
advised = replace(rules, max_delay=advice.max_delay_us, window=long_enough)
result = windrow.batch(messages, advised)
at.show(result.batches.select(["key", "window_start", "window_end", "state", "message_count"]).slice(0, 20))
