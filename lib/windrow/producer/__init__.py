"""The producer: messages into a depot, batched on the way, without a JVM.

A commit to a Delta table takes some ten milliseconds, whatever it carries. So nobody commits message by message: a
*queue* holds what is sent for up to `linger_ms` or until enough is there, and the one committer thread that a depot has
in a process writes it in one commit. Whoever sent a message holds a future of its acknowledgement, which says in which
depot version it lies and what number it has.

Each commit records in the depot's log up to which number its producer has come. So a producer that starts again knows
where it was, a commit whose reply was lost is recognised, and two processes with one id find out: the second one to
commit is *fenced*, and says so to all who wait.
"""

from windrow.producer.delivery import Ack, Position
from windrow.producer.metrics import Metrics
from windrow.producer.producer import Producer
from windrow.producer.raw import RawProducer
from windrow.producer.state import State

__all__ = ["Ack", "Metrics", "Position", "Producer", "RawProducer", "State"]
