"""Run microbatches: prime, plan, process, commit; the loop around them; control; and table maintenance.

Why there are states
====================

A driver may die at any instruction, lose the reply to a commit, or find that another driver was faster. It must then
follow the ledger, not its memory. So everything that decisions depend on is in the ledger. A driver remembers only its
state in this table, and each state says what the driver may believe.

========= ==================================================== =======================================================
state     what the driver may believe                          what follows
========= ==================================================== =======================================================
opened    there is a ledger, and it belongs to these depots    primed
primed    the live rows of one table version                   folded, if a fold is due; settled, if the recorded
                                                               settings differ; paused, if the ledger is; else read
folded    nothing: the ledger has another version              primed
settled   the settings are those of this driver                primed
paused    nothing is written until `resume`                    primed, in the next round
read      what the depots added up to the last look            planned; ticked, at the ends of all depots; idle
planned   what one microbatch reads, and in a topology that    processed, or repeated
          every later attempt reads the same (`saved_plan.py`)
processed the rows to commit, of the primed version            committed, moved, repeated
committed the reply came: the ledger has the rows              read: the next slice, from the positions that the driver
                                                               knows; it is primed before it is written
moved     the ledger has changed, and refused the commit       primed, without counting an attempt; moved twice on the
                                                               same version is an error that ends the run
repeated  nothing: the attempt failed, or its reply was lost   primed after a pause, as the next attempt; after the last
                                                               one the run ends
ticked    as committed, without messages                       read, in the next round
idle      there was nothing to do                              primed, in the next round
========= ==================================================== =======================================================

`primed_attempt` is the only way from one microbatch to the next, whoever committed the last one, so no other path can
be wrong. A lost reply needs no state of its own: the next prime finds the commit, and the driver counts it as another
driver's (`RunSummary.others`). A requested stop takes effect between two microbatches.

Where it is
===========

`loop.py` goes through the states; `driver.py` primes, records and repeats (`retry.py`); `control.py` does what needs no
reading: pause, resume, tick, flush. `microbatch.py` goes from primed to committed. `opening.py` runs first.
"""
