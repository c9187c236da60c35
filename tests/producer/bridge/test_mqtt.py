"""A bridge with a real broker."""

import re
import socket
import subprocess
import sys
import threading

import pytest

import windrow
from tests.producer.bridge.conftest import messages
from windrow.errors import BrokerError, DeliveryTimeoutError, ProducerFencedError
from windrow.producer.bridge import mqtt_connection
from windrow.producer.bridge.mqtt import MqttBridge
from windrow.producer.bridge.reader import BASE64
from windrow.settings.settings import Settings

NEVER = "1h"
ACCEPTED = b"\x20\x03\x00\x00\x00"


class Answering:
    """A broker that answers each packet of a connection with bytes, whatever it says, and then hangs up."""

    def __init__(self, *connections):
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._connections = connections

    def __enter__(self):
        threading.Thread(target=self._answer, daemon=True).start()
        return self._socket.getsockname()[1]

    def __exit__(self, *raised):
        self._socket.close()

    def _answer(self):
        for answers in self._connections:
            connection, _ = self._socket.accept()
            with connection:
                for answer in answers:
                    connection.recv(10_000)
                    connection.sendall(answer)


def bridge(depot, port):
    """Return a bridge to a port."""
    mqtt_settings = {"broker": f"127.0.0.1:{port}", "topics": ["plant/{key}/{type...}"]}
    return MqttBridge(Settings(depot=depot, ledger=f"{depot}-ledger", mqtt=mqtt_settings))


def payloads(depot):
    return messages(depot)["payload"].to_pylist()


class TestMessages:
    def test_columns(self, start, publisher, depot):
        """A message is in the depot with what its topic and payload say, and is acknowledged then."""
        running = start(topics=["collectd/{source}/{type...}"], event_time="collectd")
        running.until(lambda counts: counts.connections == 1, "it is connected")
        publisher.publish_all(("collectd/edge-b/load/load", b"1769860800.250:1:2\0"))
        running.until(lambda counts: counts.acknowledged == 1, "it is acknowledged")
        running.stop()
        (row,) = messages(depot).to_pylist()
        assert row["event_time"].isoformat() == "2026-01-31T12:00:00.250000+00:00"
        assert [row[name] for name in ("source", "key", "type", "payload", "sequence")] == [
            "edge-b",
            "edge-b",
            "load/load",
            "1769860800.250:1:2\0",
            1,
        ]

    def test_kept_while_away(self, start, publisher, depot):
        """What is published while the bridge is away comes when it is back, and nothing comes again."""
        first = start()
        first.until(lambda counts: counts.connections == 1, "it is connected")
        publisher.publish_all(*[("plant/a/b", str(number)) for number in range(50)])
        first.until(lambda counts: counts.acknowledged == 50, "all is acknowledged")
        first.stop()
        publisher.publish_all(*[("plant/a/b", str(number)) for number in range(50, 100)])
        second = start()
        second.until(lambda counts: counts.acknowledged == 50, "the rest is acknowledged")
        summary = second.stop()
        assert (summary.received, summary.redelivered, summary.connections) == (50, 0, 1)
        assert payloads(depot) == [str(number) for number in range(100)]

    def test_slow_broker(self, start, broker, publisher, depot, faults, gate):
        """
        A bridge that is stopped waits until the broker has read its acknowledgements: nothing comes again.

        With more to send, a broker drops the acknowledgements of a closed connection that it has not read.
        """
        faults.before = gate
        first = start(receive_maximum=50)
        first.until(lambda counts: counts.connections == 1, "it is connected")
        publisher.publish_all(*[("plant/a/b", str(number)) for number in range(100)])
        first.until(lambda counts: counts.received == 50, "half of it has come")
        gate.await_commit()
        with broker.paused():
            gate.open()
            first.until(lambda counts: counts.acknowledged == 50, "half of it is acknowledged")
            first.ask_to_stop(0.5)
        first.stop()
        second = start()
        second.until(lambda counts: counts.acknowledged >= 50, "the rest is acknowledged")
        assert second.stop().received == 50
        assert sorted(map(int, payloads(depot))) == list(range(100))

    def test_silent_broker(self, start, broker, publisher, monkeypatch):
        """A broker that reads nothing holds up a stopped bridge for `CONNECT_TIMEOUT_SECONDS` at most."""
        monkeypatch.setattr(mqtt_connection, "CONNECT_TIMEOUT_SECONDS", 0.5)
        running = start()
        running.until(lambda counts: counts.connections == 1, "it is connected")
        publisher.publish_all(("plant/a/b", "one"))
        running.until(lambda counts: counts.received == 1, "it has come")
        with broker.paused():
            assert running.stop().acknowledged == 1

    def test_invalid(self, start, publisher, depot, tmp_path):
        """What is no message is in the depot, holds up nothing behind it, and is among the rejected ones afterwards."""
        running = start(event_time="json:at", producer={"max_message_bytes": 1_000})
        running.until(lambda counts: counts.connections == 1, "it is connected")
        good = '{"at": "2026-01-31T12:00:00Z"}'
        bad = [("plant/a", good), ("plant/a/b", b"\xff"), ("plant/a/b", "noon"), ("plant/a/b", "x" * 5_000)]
        publisher.publish_all(*bad, ("plant/a/b", good))
        running.until(lambda counts: counts.acknowledged == 5, "all is acknowledged")
        assert running.stop().invalid == 4
        rows = messages(depot)
        assert rows["payload"].to_pylist() == [good, BASE64 + "/w==", "noon", "x" * 5_000, good]
        assert rows["key"].to_pylist() == ["plant/a", "a", "a", "a", "a"]
        assert rows["type"].to_pylist() == [None, "b", "b", "b", "b"]
        settings = Settings(depot=depot, ledger=str(tmp_path / "ledger"), engine="embedded")
        summary = windrow.run(settings, once=True)
        assert summary.total("message_count") == 5
        reasons = [microbatch.reasons for microbatch in summary.microbatches]
        assert reasons[0]["invalid"] == 4

    def test_without_acknowledgement(self, start, publisher, depot):
        """What is published with QoS 0 is in the depot as well."""
        running = start()
        running.until(lambda counts: counts.connections == 1, "it is connected")
        for number in range(20):
            publisher.publish("plant/a/b", str(number), qos=0)
        running.until(lambda counts: counts.committed == 20, "all is in the depot")
        assert running.stop().acknowledged == 0
        assert payloads(depot) == [str(number) for number in range(20)]


class TestDepot:
    def test_full_house(self, start, publisher, depot):
        """When the broker waits for acknowledgements of all that it may send, nobody waits for `linger`."""
        running = start(receive_maximum=5, producer={"linger": NEVER})
        running.until(lambda counts: counts.connections == 1, "it is connected")
        publisher.publish_all(*[("plant/a/b", str(number)) for number in range(50)])
        running.until(lambda counts: counts.acknowledged == 50, "all is acknowledged")
        running.stop()
        assert payloads(depot) == [str(number) for number in range(50)]

    def test_no_room(self, start, publisher, depot, faults, gate, monkeypatch):
        """While the depot hangs no more is taken than there is room for, and the connection stays; then all comes."""
        faults.before = gate
        monkeypatch.setattr(mqtt_connection, "KEEPALIVE_SECONDS", 1)
        running = start(producer={"max_buffer_bytes": 4_000, "max_message_bytes": 1_000, "linger": "0s"})
        running.until(lambda counts: counts.connections == 1, "it is connected")
        publisher.publish_all(*[("plant/a/b", "x" * (20_000 if number == 30 else 500)) for number in range(50)])
        gate.await_commit()
        running.until(lambda counts: counts.received > 4, "the buffer is full")
        assert running.counts.received <= 8
        gate.open()
        running.until(lambda counts: counts.acknowledged == 50, "all is acknowledged")
        running.stop()
        assert len(payloads(depot)) >= 50
        assert "x" * 20_000 in payloads(depot)

    def test_takes_nothing(self, start, publisher, depot, faults):
        """
        A depot that takes nothing ends the bridge with the error, and the broker keeps what was not acknowledged.

        An attempt that goes on beyond the timeout may still commit; then the messages are there twice.
        """

        def fail(attempt):
            raise OSError("no space left on device")

        start().stop()
        faults.before = fail
        running = start(producer={"delivery_timeout": "300ms"})
        running.until(lambda counts: counts.connections == 1, "it is connected")
        publisher.publish_all(*[("plant/a/b", str(number)) for number in range(10)])
        assert isinstance(running.fails(), DeliveryTimeoutError)
        faults.before = lambda attempt: None
        again = start()
        again.until(lambda counts: counts.acknowledged == 10, "all is acknowledged")
        again.stop()
        assert sorted(set(payloads(depot))) == [str(number) for number in range(10)]

    def test_fenced(self, start, publisher, depot):
        """Another process that writes under the same id ends the bridge, and nothing is lost by it."""
        running = start()
        publisher.publish_all(("plant/a/b", "first"))
        running.until(lambda counts: counts.connections == 1, "it is connected")
        other = f"Producer({depot!r}, 'mqtt:windrow-bridge')"
        program = f"from windrow import Producer\nwith {other} as p: p.send(key='k', type='t')"
        subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
        publisher.publish_all(("plant/a/b", "second"))
        assert isinstance(running.fails(), ProducerFencedError)
        again = start()
        again.until(lambda counts: counts.acknowledged >= 1, "the rest is acknowledged")
        again.stop()
        assert "second" in payloads(depot)


class TestConnection:
    def test_broker_comes_later(self, start, broker, publisher, depot):
        """A bridge waits for a broker that is not there yet, or away."""
        publisher.close()
        broker.stop()
        running = start()
        broker.start()
        running.until(lambda counts: counts.connections == 1, "it is connected")
        broker.stop()
        broker.start()
        running.until(lambda counts: counts.connections == 2, "it is connected again")
        running.stop()

    def test_comes_again(self, start, broker, publisher, depot, faults, gate):
        """What the broker sends again while it is on its way into the depot is not sent there again, and acknowledged
        over the connection that brought it last.
        """
        faults.before = gate
        running = start(producer={"linger": "0s"})
        running.until(lambda counts: counts.connections == 1, "it is connected")
        publisher.publish_all(*[("plant/a/b", "same") for _ in range(20)])
        running.until(lambda counts: counts.received == 20, "all has come")
        gate.await_commit()
        broker.stop()
        broker.start()
        running.until(lambda counts: counts.redelivered == 20, "all has come again")
        gate.open()
        running.until(lambda counts: counts.acknowledged == 20, "all is acknowledged")
        summary = running.stop()
        assert (summary.received, summary.committed) == (20, 20)
        assert len(payloads(depot)) == 20
        nothing = start()
        nothing.until(lambda counts: counts.connections == 1, "it is connected")
        assert nothing.stop().received == 0

    def test_session_lost(self, start, broker, publisher, depot, faults, gate):
        """When the broker forgets the session while messages are on their way, what comes next under the same ids is
        new: it is acknowledged when the depot has it, and what came before never is.
        """
        faults.before = gate
        running = start(producer={"linger": "0s"})
        running.until(lambda counts: counts.connections == 1, "it is connected")
        publisher.publish_all(*[("plant/a/b", "same") for _ in range(20)])
        running.until(lambda counts: counts.received == 20, "all has come")
        gate.await_commit()
        broker.stop()
        broker.forget()
        broker.start()
        running.until(lambda counts: counts.connections == 2, "it is connected again")
        publisher.publish_all(*[("plant/a/b", "same") for _ in range(30)])
        running.until(lambda counts: counts.received == 50, "the new ones have come")
        assert running.counts.acknowledged == 0
        gate.open()
        running.until(lambda counts: counts.acknowledged == 30, "all new ones are acknowledged")
        summary = running.stop()
        assert (summary.redelivered, summary.acknowledged, len(payloads(depot))) == (0, 30, 50)

    def test_shared(self, start, publisher, tmp_path):
        """Bridges of one group share what is published: each message comes to one of them."""
        depots = [str(tmp_path / name) for name in ("one", "two")]
        running = [start(into=depot, client_id=depot[-3:], share_name="g") for depot in depots]
        for child in running:
            child.until(lambda counts: counts.connections == 1, "it is connected")
        publisher.publish_all(*[("plant/a/b", str(number)) for number in range(100)])
        running[0].until(
            lambda counts: sum(child.counts.acknowledged for child in running) == 100, "all is acknowledged"
        )
        shares = [child.stop().received for child in running]
        assert sum(shares) == 100
        assert min(shares) > 0
        assert sorted(int(payload) for depot in depots for payload in payloads(depot)) == list(range(100))


class TestRefused:
    @pytest.mark.parametrize(
        ("answers", "says"),
        [
            ([b"\x20\x03\x00\x87\x00"], "Not authorized"),
            ([b"\x20\x02\x00\x01"], "Unsupported protocol version"),
            ([ACCEPTED, b"\x90\x04\x00\x01\x00\x87"], "refuses a subscription to 'plant/+/#'"),
            ([ACCEPTED, b"\x90\x04\x00\x01\x00\x00"], "refuses a subscription to 'plant/+/#'"),
            ([ACCEPTED, b"\xe0\x02\x8e\x00"], "another client took over the session of 'windrow-bridge'"),
        ],
    )
    def test_for_good(self, depot, answers, says):
        """A broker that will not have this bridge ends it, and the error says what was refused."""
        with (
            Answering(answers) as port,
            pytest.raises(BrokerError, match=re.escape(says)),
            bridge(depot, port) as refused,
        ):
            refused.run()

    def test_for_now(self, depot):
        """A broker that is busy is asked again, and so is one that closes the connection."""
        busy = [b"\x20\x03\x00\x89\x00"]
        answering = Answering(busy, [], [ACCEPTED, b"\xe0\x02\x8b\x00"], [b"\x20\x03\x00\x87\x00"])
        refused = pytest.raises(BrokerError, match="Not authorized")
        with answering as port, refused, bridge(depot, port) as going_on:
            going_on.run()


def test_extra(tmp_path):
    """Without paho-mqtt the command says which extra has it."""
    program = (
        "import sys; sys.modules['paho'] = None; from windrow.cli import main; "
        "sys.exit(main(['bridge', 'mqtt', '--topic', 'a/{key}']))"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "WINDROW-MISSING-EXTRA" in ended.stderr
    assert "windrow-delta[mqtt]" in ended.stderr
