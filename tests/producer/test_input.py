"""Lines from a file or a pipe, as they come."""

import os
import random
import threading
from contextlib import contextmanager

import pytest

from windrow.errors import InputFileError
from windrow.producer.input import Fingerprint, LineInput, StopSignal

NEVER = 3_600.0


@contextmanager
def piped(most_bytes=1_000):
    """Give an input, the end of the pipe to write to, and its stop."""
    stop, (descriptor, write) = StopSignal(), os.pipe()
    with os.fdopen(write, "wb", buffering=0) as writer:
        yield LineInput(descriptor, stop, most_bytes), writer, stop
    os.close(descriptor)
    stop.close()


def take_lines(line_input, rows=10):
    lines = []
    while portion := line_input.take(rows, 1_000_000, 0):
        assert len(portion) <= rows
        lines += portion
    return lines


class TestLines:
    def test_any_cut(self):
        """The lines do not depend on how the bytes are cut; a last line without a newline is reported."""
        random.seed(7)
        content = b"\n".join(b"x" * random.randrange(40) for _ in range(200)) + b"rest"
        for _ in range(20):
            with piped() as (line_input, writer, _):
                lines = []
                rest = content
                while rest:
                    part = rest[: random.randrange(1, 400)]
                    rest = rest[len(part) :]
                    writer.write(part)
                    while line_input.ready():
                        lines += line_input.take(random.randrange(1, 9), 50, 0)
                writer.close()
                lines += take_lines(line_input)
                assert lines == content.split(b"\n")
                assert line_input.unfinished

    @pytest.mark.parametrize(
        ("content", "lines", "unfinished"),
        [
            (b"", [], False),
            (b"\n", [b""], False),
            (b"a\n\nb\n", [b"a", b"", b"b"], False),
            (b"a", [b"a"], True),
            (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", [b"a", b"\xef\xbb\xbfb"], False),
        ],
    )
    def test_ends(self, content, lines, unfinished):
        """Each newline ends a line, even an empty one; a byte-order mark before the first line is removed."""
        with piped() as (line_input, writer, _):
            writer.write(content)
            writer.close()
            assert take_lines(line_input) == lines
            assert line_input.unfinished is unfinished

    def test_large(self):
        """Only the beginning of an oversize line is kept in memory."""
        with piped(most_bytes=10) as (line_input, writer, _):

            def write():
                for _ in range(100):
                    writer.write(b"x" * 1_000_000)
                writer.write(b"\nafter\n")
                writer.close()

            thread = threading.Thread(target=write)
            thread.start()
            large, after = take_lines(line_input)
            thread.join(60)
            assert 10 < len(large) < 3_000_000
            assert after == b"after"

    def test_waits_for_more(self):
        """`take` returns as soon as there are enough lines; the others are returned next time."""
        with piped() as (line_input, writer, _):
            writer.write(b"1\n2\n3\n")
            assert line_input.take(2, 1_000, NEVER) == [b"1", b"2"]
            assert line_input.take(1_000, 1_000, 0) == [b"3"]
            writer.write(b"444\n5\n")
            assert line_input.take(1_000, 3, NEVER) == [b"444", b"5"]
            assert not line_input.ready()

    def test_stop(self):
        """A stop ends a wait, after the lines that were read are returned."""
        with piped() as (line_input, writer, stop):
            writer.write(b"1\n2\n3\n")
            assert line_input.take(1, 1_000, NEVER) == [b"1"]
            threading.Timer(0.05, stop.stop).start()
            assert line_input.take(1_000, 1_000, NEVER) == [b"2", b"3"]
            assert line_input.take(1_000, 1_000, NEVER) == []
            assert line_input.stopped

    def test_unreadable(self, tmp_path):
        """An unreadable input is an error."""
        stop, descriptor = StopSignal(), os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(InputFileError):
            LineInput(descriptor, stop, 10).take(1, 1, 0)
        os.close(descriptor)
        stop.close()


class TestFingerprint:
    def test_same(self):
        """The same lines have the same fingerprint, however they are taken, ended and cut."""
        first, second = Fingerprint(), Fingerprint()
        whole = first.add([b"a", b"b" * 2_000, b"c"])
        second.add([b"a\r"])
        assert second.add([b"b" * 1_500, b"c"]) == whole
        assert 0 <= whole < 2**63

    @pytest.mark.parametrize("lines", [[b"a"], [b"a", b"b", b""], [b"ab"], [b"b", b"a"], [b"a", b"c"], [b"", b"ab"]])
    def test_other(self, lines):
        """Other lines have another one."""
        assert Fingerprint().add(lines) != Fingerprint().add([b"a", b"b"])
