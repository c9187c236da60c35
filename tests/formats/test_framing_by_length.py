"""Records of known length are found wherever the bytes were cut, and what is too long is passed over exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.test_automaton import buffer, pieces
from tests.formats.test_framing import Spans
from windrow.formats.framing import AFTER_GAP, GAP, OPEN, OVERSIZE, RECORD
from windrow.formats.framing_by_length import MAX_LENGTH, FixedFraming, LengthFraming

LENGTHS = LengthFraming(2, "big", counts_itself=False, max_record_bytes=10)
OWN = LengthFraming(1, "little", counts_itself=True, max_record_bytes=6)
WIDTH = FixedFraming(4, 10)
FRAMINGS = st.builds(
    LengthFraming,
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(["little", "big"]),
    st.booleans(),
    st.integers(1, 40),
)


def framed(framing: FixedFraming | LengthFraming, parts: list[bytes], state: int = 0) -> Spans:
    """Frame a source in parts, and return each span: its bytes, what it is, how many bytes of the source it took."""
    all_spans: Spans = []
    pending, base = b"", 0
    for number, part in enumerate(parts, 1):
        before = base + len(pending)
        pending += part
        spans = framing.frame(buffer(pending), len(pending) - len(part), state, number == len(parts))
        known = (spans.decided_after + base).tolist()
        assert all(before < known_row for known_row in known) or number == len(parts)
        bounds = zip(spans.start, spans.end, spans.kind.tolist(), known, strict=True)
        all_spans += [(pending[start:end], what, at) for start, end, what, at in bounds]
        pending, state, base = pending[spans.tail :], spans.state, base + spans.tail
    assert pending == b""
    return all_spans


@pytest.mark.parametrize("framing", [LENGTHS, OWN, WIDTH], ids=["length", "own length", "width"])
@pytest.mark.parametrize("state", [0, AFTER_GAP])
@given(
    data=st.lists(st.sampled_from([0, 0, 0, 1, 2, 3, 5, 12, 40]), max_size=60).map(bytes),
    cuts=st.lists(st.integers(0, 60)),
)
def test_any_cuts(framing, state, data, cuts):
    """A source cut anywhere has the spans of the whole, each told at the same byte, and its spans are all of its
    bytes.
    """
    whole = framed(framing, [data], state)
    assert framed(framing, pieces(data, cuts) or [b""], state) == whole
    assert framed(framing, [data[at : at + 1] for at in range(len(data))] or [b""], state) == whole
    assert b"".join(span for span, _, _ in whole) == data
    assert state == 0 or {what for _, what, _ in whole} <= {GAP}


def test_lengths():
    """A record that is too long is passed over as far as it claims; the one behind it is good."""
    data = b"\0\3abc" + b"\0\x0f" + b"x" * 15 + b"\0\0" + b"\0\2de" + b"\0\5f"
    spans = [(span, what) for span, what, _ in framed(LENGTHS, [data])]
    assert spans == [
        (b"\0\3abc", RECORD), (b"\0\x0f", OVERSIZE), (b"x" * 10, OVERSIZE), (b"x" * 5, OVERSIZE), (b"\0\0", RECORD),
        (b"\0\2de", RECORD), (b"\0\5f", OPEN),
    ]  # fmt: skip


def test_width():
    """What is left at the end of a source is a record of another width."""
    assert [(span, what) for span, what, _ in framed(WIDTH, [b"abcdefghij"])] == [
        (b"abcd", RECORD), (b"efgh", RECORD), (b"ij", RECORD),
    ]  # fmt: skip


def written(framing: LengthFraming, bodies: list[bytes]) -> bytes:
    """Put records one behind the other, each after its length."""
    own = framing.width if framing.counts_itself else 0
    return b"".join((len(body) + own).to_bytes(framing.width, framing.order) + body for body in bodies)


def cut_records(framing: LengthFraming, data: bytes) -> tuple[list[bytes], set[int]]:
    """Return the content of the records of a source, and where what is cut off begins."""
    spans = framing.frame(buffer(data), 0, 0, last=True)
    start, end = framing.content(buffer(data), spans.start, spans.end)
    whole = spans.kind == RECORD
    bounds = zip(start[whole].tolist(), end[whole].tolist(), strict=True)
    return [data[start:end] for start, end in bounds], set(spans.start[~whole].tolist())


def oracle(framing: LengthFraming, data: bytes) -> tuple[list[bytes], set[int]]:
    """Cut bytes the slow way: the content of whole records, and where those begin that are too long."""
    whole, refused, at = [], set(), 0
    while len(data) - at >= framing.width:
        length = int.from_bytes(data[at : at + framing.width], framing.order)
        length = min(length, MAX_LENGTH) - (framing.width if framing.counts_itself else 0)
        body = at + framing.width
        if not 0 <= length <= framing.max_record_bytes:
            refused.add(at)
        elif body + length > len(data):
            break
        else:
            whole.append(data[body : body + length])
        at = body + max(length, 0)
    return whole, refused


@given(FRAMINGS, st.lists(st.binary(max_size=50), max_size=12))
def test_written(framing, bodies):
    """What was written with a length before it is what is cut, and what is too long is passed over to the byte."""
    bodies = [body for body in bodies if len(body) + framing.width < 256]
    whole, cut_off = cut_records(framing, written(framing, bodies))
    assert whole == [body for body in bodies if len(body) <= framing.max_record_bytes]
    assert bool(cut_off) == (len(whole) < len(bodies))


@given(FRAMINGS, st.binary(max_size=80) | st.lists(st.sampled_from([0, 1, 4, 255]), max_size=80).map(bytes))
def test_oracle(framing, data):
    """Any bytes are cut as one hop after the other says."""
    whole, refused = oracle(framing, data)
    records, cut_off = cut_records(framing, data)
    assert records == whole
    assert refused <= cut_off


def test_most_records():
    """A run may be nothing but empty records, however many."""
    spans = LengthFraming(1, "big", counts_itself=False, max_record_bytes=1).frame(buffer(bytes(100_000)), 0, 0, False)
    assert (spans.end.size, spans.tail) == (100_000, 100_000)
