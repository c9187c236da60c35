"""What may be acknowledged, against a broker that loses connections, sessions and acknowledgements."""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from windrow.producer.bridge.mqtt_session import InFlightMessage, Session

IDS = 4


@dataclass
class Outgoing:
    """A message as the broker has it."""

    number: int
    content: bytes
    sent: bool = False
    again: bool = False


@dataclass
class Broker:
    """Sends messages under few ids, again after each connection, until they are acknowledged."""

    waiting: list[Outgoing] = field(default_factory=list)
    in_flight: dict[int, Outgoing] = field(default_factory=dict)
    acknowledged: list[int] = field(default_factory=list)

    def next(self) -> tuple[int, Outgoing] | None:
        """Return what is sent next, None when nothing may be."""
        for id_, outgoing in self.in_flight.items():
            if not outgoing.sent:
                return id_, outgoing
        free = [id_ for id_ in range(1, IDS + 1) if id_ not in self.in_flight]
        if not self.waiting or not free:
            return None
        self.in_flight[free[0]] = self.waiting.pop(0)
        return free[0], self.in_flight[free[0]]


class Bridging(RuleBasedStateMachine):
    """A bridge and a broker; contents are few, so that different messages look alike."""

    def __init__(self) -> None:
        super().__init__()
        self.broker, self.session = Broker(), Session()
        self.session.connected(kept=False)
        self.published = 0
        self.open = True
        self.on_the_way: list[tuple[InFlightMessage, int]] = []
        self.depot: list[int] = []
        self.order: list[int] = []

    @rule(content=st.sampled_from([b"on", b"off"]))
    def publish(self, content: bytes) -> None:
        """A message comes to the broker."""
        self.published += 1
        self.broker.waiting.append(Outgoing(self.published, content))

    @precondition(lambda self: self.open)
    @rule()
    def deliver(self) -> None:
        """A message comes to the bridge."""
        delivery = self.broker.next()
        if delivery is None:
            return
        id_, outgoing = delivery
        again, outgoing.sent, outgoing.again = outgoing.again, True, True
        self.order.append(outgoing.number)
        if self.session.is_redelivery(id_, again, outgoing.content):
            known = [number for _, number in self.on_the_way] + self.depot
            assert outgoing.number in known, "a new message was taken for one that is known"
            return
        self.on_the_way.append((self.session.received(id_, outgoing.content, 1), outgoing.number))

    @precondition(lambda self: self.on_the_way)
    @rule()
    def commit(self) -> None:
        """A message comes into the depot."""
        entry, number = self.on_the_way.pop(0)
        self.depot.append(number)
        self.session.settled(entry)

    @precondition(lambda self: self.open)
    @rule(arrives=st.booleans())
    def acknowledge(self, arrives: bool) -> None:
        """An acknowledgement that does not arrive is lost with its connection."""
        for id_ in self.session.due():
            outgoing = self.broker.in_flight[id_]
            assert outgoing.number in self.depot, "acknowledged before it is in the depot"
            assert outgoing.sent, "acknowledged over a connection that did not bring it"
            if arrives:
                del self.broker.in_flight[id_]
                self.broker.acknowledged.append(outgoing.number)
        if not arrives:
            self.lose()

    @precondition(lambda self: self.open)
    @rule()
    def lose(self) -> None:
        """The connection is lost."""
        self.open = False
        self.session.lost()

    @precondition(lambda self: not self.open)
    @rule(kept=st.booleans())
    def connect(self, kept: bool) -> None:
        """There is a new connection, with the session or without."""
        self.open = True
        self.session.connected(kept)
        self.order = []
        for value in self.broker.in_flight.values():
            value.sent = False
        if not kept:  # its messages are for others, or lost by the broker
            self.broker.in_flight.clear()

    @invariant()
    def held(self) -> None:
        """What is held is what is on its way."""
        assert self.session.uncommitted_count == self.session.held_bytes == len(self.on_the_way)

    @invariant()
    def never_too_early(self) -> None:
        """What is acknowledged is in the depot."""
        assert set(self.broker.acknowledged) <= set(self.depot)

    def teardown(self) -> None:
        """In the end all that the broker has is in the depot and acknowledged."""
        if not self.open:
            self.connect(kept=True)
        while self.broker.next() is not None or self.on_the_way:
            if self.broker.next() is not None:
                self.deliver()
            while self.on_the_way:
                self.commit()
            self.acknowledge(arrives=True)
        self.acknowledge(arrives=True)
        assert not self.broker.in_flight


TestBridging = Bridging.TestCase


def test_order() -> None:
    """Acknowledgements go out in the order in which messages came, whichever is in the depot first."""
    session = Session()
    session.connected(kept=False)
    entries = [session.received(id_, b"", 1) for id_ in (3, 1, 2)]
    session.settled(entries[1])
    assert list(session.due()) == []
    session.settled(entries[0])
    assert list(session.due()) == [3, 1]
    session.settled(entries[2])
    assert list(session.due()) == [2]


def test_without_id() -> None:
    """What nobody waits for is held, and never acknowledged."""
    session = Session()
    session.connected(kept=False)
    entry = session.received(0, b"", 7)
    assert session.held_bytes == 7
    session.settled(entry)
    assert (session.held_bytes, list(session.due())) == (0, [])
