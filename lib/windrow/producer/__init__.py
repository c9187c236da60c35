"""The producer: sends messages to a depot in batches, without a JVM.

A commit to a Delta table takes about ten milliseconds, whatever its size. So messages are not committed one by one: a
*queue* holds them for up to `linger` or until a batch is full, and the depot's committer thread writes them in one
commit. Each process has one such thread per depot. The sender of a message gets a future of its acknowledgement, which
contains the depot version and the message's number.

Each commit records in the depot's log the number of the producer's last message. So a restarted producer knows where it
was, and a commit whose reply was lost is recognised. If two processes use the same id, the second one to commit is
*fenced*: its waiting messages fail with an error.
"""

from windrow.producer.buffer import Buffer
from windrow.producer.delivery import Ack, Position
from windrow.producer.metrics import ProducerMetrics
from windrow.producer.producer import Producer, RawProducer
from windrow.producer.queue import ProducerState

__all__ = ["Ack", "Buffer", "Position", "Producer", "ProducerMetrics", "ProducerState", "RawProducer"]
