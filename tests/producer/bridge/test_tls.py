"""A broker that wants TLS, certificates and a password, and a bridge that says none of it to anybody."""

import ssl
import subprocess
from pathlib import Path

import pytest
from paho.mqtt.client import Client

from tests.cli.conftest import Command
from tests.producer.bridge.broker import PATIENCE_SECONDS, Broker, Publisher, program, until
from tests.producer.bridge.command import Process
from tests.producer.bridge.conftest import messages
from tests.producer.bridge.tls_server import RefusingServer
from windrow.errors import BrokerError
from windrow.producer.bridge.mqtt import MqttBridge
from windrow.settings.settings import Settings

pytestmark = pytest.mark.ci

PASSWORD = "cherry-blossom-77"


class Certificates:
    """An authority, and what it has signed: `server`, `client`; `stranger` it has not."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        for name in ("ca", "stranger"):
            new = ("-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key")
            self._openssl("req", "-x509", *new, "-out", f"{name}.pem", *subject(name))
        for name in ("server", "client"):
            self._sign(name)

    def __getitem__(self, name: str) -> str:
        return str(self._folder / name)

    def _sign(self, name: str) -> None:
        (self._folder / "names").write_text("subjectAltName = IP:127.0.0.1\n")
        request = ("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        self._openssl(*request, *subject(name))
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", "-extfile", "names"),
            *("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
        )

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._folder, check=True, capture_output=True)


def subject(name: str) -> tuple[str, str]:
    return "-subj", f"/CN={name}"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Certificates that the tests make."""
    return Certificates(tmp_path_factory.mktemp("tls") / "certificates")


@pytest.fixture
def broker(tmp_path, certificates):
    """A broker that wants everything."""
    folder = tmp_path / "broker"
    folder.mkdir()
    passwords = folder / "passwords"
    subprocess.run([program("mosquitto_passwd"), "-b", "-c", str(passwords), "edge", PASSWORD], check=True)
    config_lines = [f"password_file {passwords}", "allow_anonymous false", "require_certificate true"]
    files = {"cafile": "ca.pem", "certfile": "server.pem", "keyfile": "server.key"}
    server = Broker(folder, *config_lines, *(f"{name} {certificates[file]}" for name, file in files.items()))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def configure(tmp_path, broker, certificates):
    """Write the settings of a bridge that may; a test changes some."""

    def write(**changed):
        """Write them."""
        chosen = {
            "broker": f"'mqtts://127.0.0.1:{broker.port}'",
            "topics": "['plant/{key}/{type}']",
            "username": "'edge'",
            "ca_file": f"'{certificates['ca.pem']}'",
            "certificate_file": f"'{certificates['client.pem']}'",
            "key_file": f"'{certificates['client.key']}'",
        } | changed
        lines = [f"{name} = {value}".replace("PORT", str(broker.port)) for name, value in chosen.items()]
        (tmp_path / "windrow.toml").write_text("\n".join(["depot = 'depot'", "ledger = 'ledger'", "[mqtt]", *lines]))

    return write


def secret(tmp_path):
    """Give the password as a file, as a service has it."""
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    return f"'file:{file}'"


@pytest.mark.parametrize("where", ["file", "variable"])
def test_let_in(tmp_path, broker, configure, certificates, where):
    """With certificate and password messages come through, and no word of the password is said at any level of the
    log.
    """
    configure(**({"password": secret(tmp_path)} if where == "file" else {}))
    variables = {"WINDROW_MQTT__PASSWORD": PASSWORD} if where == "variable" else {}
    running = Process(tmp_path, environment=variables)
    running.await_connection()

    def set_up(client):
        client.tls_set(certificates["ca.pem"], certificates["client.pem"], certificates["client.key"])
        client.username_pw_set("edge", PASSWORD)

    publisher = Publisher(broker.port, set_up)
    publisher.publish_all(("plant/a/b", "1"))
    publisher.close()
    depot = str(tmp_path / "depot")
    until(lambda: messages(depot).num_rows == 1, "the message is in the depot")
    assert running.stop()["acknowledged"] == 1
    assert PASSWORD not in running.log


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"password": "'hollow-reed-12'"}, "refuses the connection of 'windrow-bridge': Not authorized"),
        ({"username": "'nobody'", "password": f"'{PASSWORD}'"}, "Not authorized"),
        ({"ca_file": "stranger.pem"}, "TLS verification failed"),
        ({"certificate_file": "", "key_file": ""}, "TLS verification failed"),
        ({"broker": "'mqtts://localhost:PORT'"}, "TLS verification failed"),
    ],
)
def test_refused(tmp_path, configure, certificates, changed, says):
    """A broker that does not let the bridge in, or that it does not trust, ends it with the reason, without the
    secret.
    """
    files = {name: f"'{certificates[value] if value else ''}'" for name, value in changed.items() if "_file" in name}
    configure(**(changed | files))
    running = Process(tmp_path)
    assert running.status() == 3
    assert "\nWINDROW-BROKER: " in running.log
    assert says in running.log
    assert PASSWORD not in running.log
    assert "hollow-reed-12" not in running.log


def refusing(certificates, **chosen):
    """Return a server that refuses clients without a certificate, in its own way."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificates["server.pem"], certificates["server.key"])
    context.load_verify_locations(certificates["ca.pem"])
    context.verify_mode = ssl.CERT_REQUIRED
    return RefusingServer(context, **chosen)


def without_certificate(folder, certificates, server):
    """Return a bridge that trusts a server, and has no certificate."""
    part = {"broker": f"mqtts://127.0.0.1:{server.port}", "topics": ["plant/{key}"]}
    tls = {"ca_file": certificates["ca.pem"]}
    return MqttBridge(Settings(depot=str(folder / "depot"), ledger=str(folder / "ledger"), mqtt=part | tls))


@pytest.mark.parametrize("slow", [False, True], ids=["fast client", "slow client"])
@pytest.mark.parametrize("chosen", [{}, {"resets": True}, {"after": 0.5}, {"after": 0.5, "resets": True}])
def test_refused_after_handshake(tmp_path, certificates, monkeypatch, chosen, slow):
    """The reason may arrive before or after the bridge writes, and the connection may be gone by then: the first
    attempt ends the bridge with the reason.
    """
    server = refusing(certificates, **chosen)
    really = Client._ssl_wrap_socket

    def wait(self, sock):
        """Write nothing before the server has closed the connection."""
        wrapped = really(self, sock)
        server.closed.wait(PATIENCE_SECONDS)
        server.closed.clear()
        return wrapped

    if slow:
        monkeypatch.setattr(Client, "_ssl_wrap_socket", wait)
    refused = pytest.raises(BrokerError, match=r"TLS verification failed.*CERTIFICATE_REQUIRED")
    with server.running(), without_certificate(tmp_path, certificates, server) as bridge, refused:
        bridge.run(10)
    assert server.connections == 1


@pytest.mark.parametrize("resets", [False, True])
def test_closed_without_a_reason(tmp_path, certificates, resets):
    """A connection that ends without a word may be a broker that starts again: the bridge goes on trying."""
    server = refusing(certificates, tells=False, resets=resets)
    with server.running(), without_certificate(tmp_path, certificates, server) as bridge:
        assert bridge.run(2).connections == 0
    assert server.connections > 1


def test_traceback(tmp_path, configure):
    """No traceback shows the password either."""
    configure(password="'hollow-reed-12'")
    running = Process(tmp_path, "--debug")
    assert running.status() != 0
    assert "Traceback" in running.log
    assert "hollow-reed-12" not in running.log


def test_plain(tmp_path, configure):
    """A bridge that does not speak TLS to a broker that does goes on trying, and says so."""
    configure(broker="'mqtt://127.0.0.1:PORT'", ca_file="''", certificate_file="''", key_file="''")
    running = Process(tmp_path, "--duration", "2s")
    assert running.status() == 0
    assert '"no connection"' in running.log


def test_settings(windrow: Command, monkeypatch, tmp_path):
    """Neither the settings that are shown nor the file that is written have the password."""
    monkeypatch.setenv("WINDROW_MQTT__PASSWORD", PASSWORD)
    result = windrow("settings", "--json")
    (shown,) = [setting for setting in result.json() if setting["name"] == "mqtt.password"]
    assert shown == {"name": "mqtt.password", "value": '"***"', "origin": "variable WINDROW_MQTT__PASSWORD"}
    assert windrow("init", "--json").status == 0
    assert PASSWORD not in (tmp_path / "windrow.toml").read_text() + result.out + windrow("settings").out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f"password = ['{PASSWORD}']", "mqtt.password"),
        (f"password = '{PASSWORD}'\nca_file = 'x'", "mqtts://"),
        (f"password = '{PASSWORD}'\nbrokre = 1", "mqtt.broker"),
        ("password = 'file:absent'", "cannot be read"),
        (f"broker = 'windrow:{PASSWORD}@10.0.0.7'", "HOST:PORT"),
        ("broker = 'mqtts://127.0.0.1'\nca_file = 'absent'", "certificates of [mqtt]"),
        ("certificate_file = 'x'", "must be set together"),
        ("share_name = 'a/b'", "share_name"),
        ("event_time = 'noon'", "event_time"),
        ("topics = ['a/{b}']", "level 2"),
    ],
)
def test_mistake(windrow: Command, tmp_path, line, says):
    """A setting that has no meaning is an error before anything is connected to, and it does not show the password."""
    topics = "" if "topics" in line else "topics = ['a/{key}']\n"
    (tmp_path / "windrow.toml").write_text(f"[mqtt]\n{topics}{line}\n")
    result = windrow("bridge", "mqtt")
    assert result.status == 2
    assert "WINDROW-SETTINGS" in result.err
    assert says in result.err
    assert PASSWORD not in result.err
