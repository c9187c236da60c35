import json
import logging
from datetime import UTC, datetime
from io import StringIO

import pytest
from rich.console import Console

import windrow
from tests.messages import log as messages
from windrow.operate.log import log, logging_to, without_secrets


def console(terminal=False):
    return Console(file=StringIO(), force_terminal=terminal, width=40, color_system="standard", no_color=None)


class TestWritten:
    def test_json(self):
        """A line of JSON has event, level, the time in UTC and the fields, however narrow the console is."""
        out, path = console(), "a [b] \N{BATTERY}\n" + "c" * 100
        with logging_to(out):
            log.info("microbatch", number=7, reasons={"too_old": 1}, processed_on=path, lag_ms=None)
        [line] = out.file.getvalue().splitlines()
        document = json.loads(line)
        timestamp = datetime.fromisoformat(document.pop("timestamp"))
        assert timestamp.tzinfo == UTC
        assert document == {
            "event": "microbatch",
            "level": "info",
            "number": 7,
            "reasons": {"too_old": 1},
            "processed_on": path,
            "lag_ms": None,
        }

    @pytest.mark.parametrize(
        ("format_", "terminal", "pretty"),
        [("auto", False, False), ("auto", True, True), ("pretty", False, True), ("json", True, False)],
    )
    def test_format(self, format_, terminal, pretty):
        """`auto` is pretty on a terminal and JSON elsewhere; colours are for terminals only."""
        out = console(terminal)
        with logging_to(out, format_):
            log.info("microbatch", number=7)
        [line] = out.file.getvalue().splitlines()
        assert line.startswith("{") is not pretty
        assert ("\x1b[" in line) is (pretty and terminal)
        assert "microbatch" in line

    def test_level(self):
        """Records below the level are not written, and afterwards the logger is as before."""
        out, logger = console(), logging.getLogger("windrow")
        before = logger.level, logger.propagate, list(logger.handlers)
        with logging_to(out, "json", "warning"):
            log.info("microbatch")
            log.warning("retry")
        assert [json.loads(line)["event"] for line in out.file.getvalue().splitlines()] == ["retry"]
        assert (logger.level, logger.propagate, list(logger.handlers)) == before

    def test_text_has_the_fields(self, caplog):
        """The text of a record, which is all that a program without logging of its own shows, has name and fields."""
        log.warning("retry", attempt=1, error="no\x1bdisk")
        assert caplog.messages == ["retry attempt=1 error=no\\x1bdisk"]
        assert [(record.msg, record.attempt) for record in caplog.records] == [("retry", 1)]

    def test_a_library_is_silent(self, world, embedded, capfd):
        """`windrow.run` in a program that configured no logging prints nothing."""
        world.publish(*messages(versions=1))
        windrow.run(world.settings(embedded), clock=world.clock)
        assert capfd.readouterr() == ("", "")


class TestSecrets:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("s3://bucket/depot", "s3://bucket/depot"),
            ("abfss://container@account.dfs/depot", "abfss://container@account.dfs/depot"),
            ("https://me:hunter2@host/depot", "https://me:***@host/depot"),
            ("az://c/depot?sv=1&sig=hunter2 failed", "az://c/depot?*** failed"),
            ("aws_secret_access_key=hunter2, region=x", "aws_secret_access_key=***, region=x"),
            ('{"AccountKey": "hunter 2", "a": 1}', '{"AccountKey": ***, "a": 1}'),
            ("https://me:hun@ter2@host/depot", "https://me:***@host/depot"),
            ("container/depot?sv=1&sig=hunter2 failed", "container/depot?sv=1&sig=*** failed"),
            ("aws_session_token=hunter2, passwd: hunter2", "aws_session_token=***, passwd: ***"),
            ("Authorization: Bearer hunter2hunter2", "Authorization: Bearer ***"),
            ("the ledger's token moved", "the ledger's token moved"),
        ],
    )
    def test_taken_out(self, text, shown, caplog):
        """No record has the password or query of a URL, or the value of anything called a key or a secret."""
        assert without_secrets(text) == shown
        log.warning("retry", error=text)
        assert [record.error for record in caplog.records] == [shown]
