"""Run microbatches: prime, plan, process, commit; the loop around them; control; and table maintenance.

Why there are states
====================

A driver may die at any instruction, lose the reply to a commit, or find that another driver was faster. It must then do
what the ledger says, and not what it remembers. So everything that decides is in the ledger. What a driver remembers is
where it stands in this table, and each state says what may be believed in it.

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
planned   what one microbatch takes, and in a topology that    processed, or repeated
          every later attempt takes the same (`saved_plan.py`)
processed the rows to commit, of the primed version            committed, moved, repeated
committed the reply came: the ledger has the rows              read: the next slice, from what the driver knows of the
                                                               positions; before it is written, it is primed
moved     the ledger refused the commit, as it has changed     primed, without counting an attempt; moved twice on the
                                                               same version is an error that ends the run
repeated  nothing: it failed, or the reply was lost            primed after a pause, as the next attempt; after the last
                                                               one the run ends
ticked    as committed, without messages                       read, in the next round
idle      there was nothing to do                              primed, in the next round
========= ==================================================== =======================================================

`primed_attempt` is the only way from one microbatch to the next, whoever committed the last one, so no other path can
be wrong. A lost reply needs no state of its own: the next prime finds the commit, and the driver counts it as somebody
else's (`RunSummary.others`). A stop that is requested takes effect between two microbatches.

Where it is
===========

`loop.py` goes through the states; `driver.py` primes, records and repeats (`retry.py`); `control.py` is what is done
without reading: pause, resume, tick, flush. `microbatch.py` goes from primed to committed. `opening.py` comes first.
"""
