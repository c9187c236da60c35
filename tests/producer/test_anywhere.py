"""If any step fails now and then, all other messages arrive, and no buffer space stays reserved."""

import itertools
import threading

import pytest

from tests.producer.conftest import empty, messages
from windrow import Producer
from windrow.errors import IncompatibleTableError
from windrow.producer import delivery as batch
from windrow.producer.delivery import Batch

SENDERS, EACH = 4, 60


def sometimes(every, error):
    """Return a function that raises at each `every`-th call."""
    numbers = itertools.count(1)

    def fail(*_):
        if next(numbers) % every == 0:
            raise error

    return fail


def failing(function, fail):
    """Return a function that may fail before it does anything."""

    def failing_now_and_then(*arguments, **named):
        fail()
        return function(*arguments, **named)

    return failing_now_and_then


def injected(where, faults, patch):
    """Let a step fail now and then."""
    if where == "reserve":
        patch.setattr(Batch, "reserve", failing(Batch.reserve, sometimes(7, MemoryError())))
    elif where == "build":
        patch.setattr(batch, "table_of", failing(batch.table_of, sometimes(3, MemoryError())))
    elif where == "commit":
        faults.before = sometimes(3, OSError("no space left on device"))
    elif where == "commit, for good":
        faults.before = sometimes(3, IncompatibleTableError("no", "no"))
    elif where == "reply":
        faults.after = sometimes(2, OSError("the connection is gone"))


@pytest.mark.parametrize("where", ["reserve", "build", "commit", "commit, for good", "reply", "acknowledge"])
def test_fails_now_and_then(depot, faults, monkeypatch, where):
    """Every future ends. Acknowledged messages are in the depot once, in their sender's order and under their numbers;
    failed ones are not, and all buffer space is free again.
    """
    injected(where, faults, monkeypatch)
    fail = sometimes(5, ValueError("of a callback")) if where == "acknowledge" else lambda _: None
    sent, refused = {}, []

    def send(sender):
        for number in range(EACH):
            payload = f"{sender}:{number:03}"
            try:
                sent[payload] = producer.send(key="k", type="t", payload=payload)
            except MemoryError:
                refused.append(payload)
                continue
            sent[payload].add_done_callback(fail)

    with Producer(depot, "p", max_commit_rows=7, max_buffer_bytes=2_000, max_message_bytes=100) as producer:
        senders = [threading.Thread(target=send, args=(sender,)) for sender in range(SENDERS)]
        for thread in senders:
            thread.start()
        for thread in senders:
            thread.join(60)
        assert producer.flush(60)
        assert empty(producer)
    ended = {payload: future.exception(0) for payload, future in sent.items()}
    failed = {payload for payload, error in ended.items() if error is not None}
    assert bool(failed or refused) == (where in {"reserve", "build", "commit, for good"})
    assert {type(ended[payload]) for payload in failed} <= {MemoryError, IncompatibleTableError}
    there = dict(zip(*(messages(depot)[name].to_pylist() for name in ("sequence", "payload")), strict=True))
    assert there == {sent[payload].result(0).sequence: payload for payload in sent.keys() - failed}
    assert list(there) == list(range(1, len(there) + 1))
    for sender in range(SENDERS):
        mine = [payload for _, payload in sorted(there.items()) if payload.startswith(f"{sender}:")]
        assert mine == sorted(mine)
    assert len(sent) + len(refused) == SENDERS * EACH
