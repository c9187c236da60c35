"""Bridges that are killed, brokers that are started again, and a real collectd: nothing is lost."""

import signal
import subprocess
import threading

import pytest
from deltalake import DeltaTable
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.cli.conftest import Command
from tests.producer.bridge.broker import PATIENCE_SECONDS, Stream, program, until
from tests.producer.bridge.command import Process
from tests.producer.bridge.conftest import messages

pytestmark = pytest.mark.ci

HOSTS = ("edge-a", "edge-b")
COLLECTD = """
Hostname "{host}"
BaseDir "{folder}"
PIDFile "{folder}/collectd.pid"
PluginDir "/usr/lib/collectd"
TypesDB "/usr/share/collectd/types.db"
Interval 0.2
LoadPlugin memory
LoadPlugin load
LoadPlugin uptime
LoadPlugin mqtt
<Plugin mqtt>
  <Publish "windrow">
    Host "127.0.0.1"
    Port {port}
    ClientId "{host}"
    Prefix "collectd"
    QoS 1
  </Publish>
</Plugin>
"""


def version(depot: str) -> int:
    """Return the version of a depot, -1 before there is one."""
    return DeltaTable(depot).version() if DeltaTable.is_deltatable(depot) else -1


def test_killed(tmp_path, broker, publisher, depot, at_end):
    """The bridge is killed again and again at any moment, and the broker started again in between, while messages are
    published: each of them is in the depot.
    """
    options = ("--broker", broker.place, "--topic", "plant/{key}/{type}", "--depot", depot)

    def started():
        bridge = Process(tmp_path, *options)
        at_end.callback(bridge.kill)
        bridge.await_connection()
        return bridge

    running = started()
    stream = Stream(publisher)
    at_end.callback(stream.stop)
    for round_ in range(4):
        await_commits(depot, 4)
        if round_ == 1:
            broker.stop()
            broker.start()
            running.await_connection(2)
        running.kill()
        running = started()
    stream.stop()
    until(lambda: set(messages(depot)["payload"].to_pylist()) >= stream.taken, "all is in the depot")
    summary = running.stop()
    assert summary["received"] == summary["committed"] == summary["acknowledged"]
    assert len(stream.taken) > 100
    assert stream.taken <= set(messages(depot)["payload"].to_pylist()) <= stream.published


class Collectd:
    """A real collectd that sends what this machine does, five times a second."""

    def __init__(self, folder, host, port):
        folder.mkdir()
        settings = folder / "collectd.conf"
        settings.write_text(COLLECTD.format(host=host, folder=folder, port=port))
        with (folder / "collectd.log").open("w") as log:
            self._process = subprocess.Popen([program("collectd"), "-f", "-C", str(settings)], stdout=log, stderr=log)

    def stop(self):
        """End it; it sends what it has."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE_SECONDS)


class Watching:
    """Another client of the broker, which sees all that is published below a topic."""

    def __init__(self, port, below):
        self.seen = set()
        subscribed = threading.Event()
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3_600
        self._client = Client(CallbackAPIVersion.VERSION2, "watching", protocol=MQTTProtocolVersion.MQTTv5)
        self._client.on_connect = lambda client, *_: client.subscribe(f"{below}/#", qos=1)
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.on_message = lambda _, __, message: self.seen.add((message.topic, message.payload.decode()))
        self._client.reconnect_delay_set(1, 1)
        self._client.connect("127.0.0.1", port, clean_start=False, properties=properties)
        self._client.loop_start()
        assert subscribed.wait(PATIENCE_SECONDS)

    def stop(self):
        """Look on no longer."""
        self._client.disconnect()
        self._client.loop_stop()


def stored_messages(depot):
    """Return what is in a depot, as it was published."""
    rows = messages(depot)
    sources, types, payloads = (rows[name].to_pylist() for name in ("source", "type", "payload"))
    return {
        (f"collectd/{source}/{type_}", payload) for source, type_, payload in zip(sources, types, payloads, strict=True)
    }


def test_collectd(tmp_path, broker, publisher, depot, windrow: Command, at_end):
    """What two collectd measure goes through broker, bridge and depot into closed batches, also when the bridge is
    killed and the broker started again in between: all that the broker took is in the depot, and the books are
    right.
    """
    (tmp_path / "windrow.toml").write_text(
        f'depot = "{depot}"\nledger = "{tmp_path}/ledger"\n[rules]\nwindow = "2m"\nmax_delay = "1m"\n'
        f'[mqtt]\nbroker = "127.0.0.1:{broker.port}"\n'
        'topics = ["collectd/{source}/{type...}"]\nevent_time = "collectd"\n'
    )

    def started():
        bridge = Process(tmp_path)
        at_end.callback(bridge.kill)
        bridge.await_connection()
        return bridge

    watching = Watching(broker.port, "collectd")
    at_end.callback(watching.stop)
    running = started()
    measuring = [Collectd(tmp_path / host, host, broker.port) for host in HOSTS]
    for collectd in measuring:
        at_end.callback(collectd.stop)
    await_commits(depot, 3)
    running.kill()
    broker.stop()
    broker.start()
    running = started()
    await_commits(depot, 3)
    for collectd in measuring:
        collectd.stop()
    last = ("collectd/test/last", "1769860800:1")
    publisher.publish_all(last)
    until(lambda: last in watching.seen and last in stored_messages(depot), "all has come")
    assert running.stop()["invalid"] == 0
    assert watching.seen <= stored_messages(depot)
    assert {topic.split("/")[1] for topic, _ in watching.seen} == {*HOSTS, "test"}
    ran = windrow("run", "--once", "--json").json()
    assert ran["message_count"] == messages(depot).num_rows
    assert set(ran["microbatches"][0]["reasons"]) <= {"duplicate", "too_old"}
    assert windrow("tick", "--all", "--json").json()["closed"] > 2
    verified = windrow("verify", "--json")
    assert verified.status == 0, verified.out


def await_commits(depot, number):
    """Wait until a depot has so many more versions."""
    seen = version(depot)
    until(lambda: version(depot) >= seen + number, "some commits")
