"""Try every interleaving of drivers on the real code, over a depot and a ledger in memory.

What is explored
================

`runtime` knows tables by two protocols, `Source` and `Ledger`. `tables.py` implements them over versions in memory with
the semantics of Delta: a version is put once, a reader sees one version, a RESTORE adds a version with old content, a
MERGE is refused if rows were added since it read. `scheduler.py` runs each process of a scenario in a thread, and stops
it before each of its calls to these tables. At each stop every process may be the next, and a write may also

- be refused, with an error before anything is written;
- be applied, and its reply be lost;
- be the last thing that its process does: killed before it, or killed after it.

`exploration.py` goes through all schedules with at most so many of these faults. A schedule that leads to a state that
was seen before is not followed: the tables have the same content, and each process has seen the same. After every
commit, and at the end of every schedule, the invariants of `invariants.py` are checked.

`scenarios.py` says which processes there are: two or three drivers, ticks and flushes, a pause, folds, changed rules, a
depot that grows, a RESTORE of the ledger, a clock that is an hour fast; `topologies.py` the same of topologies, with
timers.

`search.py` explores all of them briefly. `defects.py` does so with each planted bug (`bugs.toml`), and without each
guard (`tests.guards`), to see what is found; `page.py` writes the tables of docs/reference/exploration.md.

What is not
===========

- The files below the protocols: Parquet, Delta's log, delta-rs, Spark. `make faults` and the tests of `engine` try
  these; `test_explorer.py` holds the tables in memory to what the real ones do in the same race.
- Wall clocks that move. Each process has a clock that stands still, one of them an hour ahead in some scenarios.
- Topologies in step, or with several depots, and events.
- What is decided within a process between two calls: nothing there is visible to another process.
- More faults than the bound, and more messages than the few of a scenario: `test_machine.py` tries long random
  histories on the real tables.
"""
