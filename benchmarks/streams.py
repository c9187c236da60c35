"""Messages of other streams than those of the peers: like collectd's, at one high rate, and of very many keys."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from benchmarks.peers.inputs import START, Ints, arrived, named

SECOND = 1_000_000
GATEWAYS = 1_000


def collectd(streams: int, types: int, seconds: int) -> pa.Table:
    """Return what collectd sends, as in the bundled sample: every second a burst of one message of each type.

    A burst takes a millisecond a type; a message arrives 5 ms after it was measured, one in fifty up to 8 s later.
    """
    random = np.random.default_rng(1)
    number = np.arange(streams * types * seconds)
    stream, kind = number // types % streams, number % types
    event_time = START + number // (streams * types) * SECOND + stream * SECOND // streams + kind * 1_000
    late = np.where(random.random(number.size) < 0.02, random.integers(0, 8 * SECOND, number.size), 5_000)
    host = named("host", stream, streams)
    return arrived(host, host, named("collectd", kind, types), event_time, event_time + late, _values(random, number))


def one_stream(messages: int, rate: int, types: int, latest: int = 0) -> pa.Table:
    """Return the messages of one stream at an even rate a second, its types one after the other.

    Each arrives up to `latest` microseconds after it was measured, one sooner and one later, so not in order.
    """
    random = np.random.default_rng(1)
    number = np.arange(messages)
    event_time = START + number * SECOND // rate
    key = named("device", np.zeros_like(number), 1)
    received_at = event_time + random.integers(0, latest + 1, messages)
    kind = named("measurement", number % types, types)
    return arrived(key, key, kind, event_time, received_at, _values(random, number))


def many_streams(keys: int, kind: int, offset: int = 0) -> pa.Table:
    """Return one message of each of many keys, all within a second from `offset` (microseconds) on.

    Whose clock it is, is one of a thousand gateways.
    """
    random = np.random.default_rng(kind)
    number = np.arange(keys)
    event_time = START + offset + number * SECOND // keys
    source = named("gateway", number % GATEWAYS, GATEWAYS)
    types = named("measurement", np.full(keys, kind), kind + 1)
    return arrived(source, named("device", number, keys), types, event_time, event_time, _values(random, number))


def _values(random: np.random.Generator, number: Ints) -> pa.Array:
    return named("value", random.integers(0, 100_000, number.size), 100_000)
