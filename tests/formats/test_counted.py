"""Records of known length are found wherever the bytes were cut, and what is too long is passed over exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.test_automaton import buffer, pieces
from tests.formats.test_framing import Spans
from windrow.formats.counted import FixedFraming, LengthFraming
from windrow.formats.framing import GAP, LOST, OPEN, OVERSIZE, RECORD
from windrow.formats.prefixed import PrefixFraming

LENGTHS = LengthFraming(PrefixFraming(2, "big", most_bytes=10))
OWN = LengthFraming(PrefixFraming(1, "little", counts_itself=True, most_bytes=6))
WIDTH = FixedFraming(4, 10)


def framed(framing: FixedFraming | LengthFraming, parts: list[bytes], state: int = 0) -> Spans:
    """Frame a source in parts, and return each span: its bytes, what it is, how many bytes of the source it took."""
    found: Spans = []
    held, base = b"", 0
    for number, part in enumerate(parts, 1):
        before = base + len(held)
        held += part
        spans = framing.frame(buffer(held), len(held) - len(part), state, number == len(parts))
        known = (spans.known + base).tolist()
        assert all(before < one for one in known) or number == len(parts)
        bounds = zip(spans.begin, spans.end, spans.what.tolist(), known, strict=True)
        found += [(held[begin:end], what, at) for begin, end, what, at in bounds]
        held, state, base = held[spans.rest :], spans.state, base + spans.rest
    assert held == b""
    return found


@pytest.mark.parametrize("framing", [LENGTHS, OWN, WIDTH], ids=["length", "own length", "width"])
@pytest.mark.parametrize("state", [0, LOST])
@given(
    data=st.lists(st.sampled_from([0, 0, 0, 1, 2, 3, 5, 12, 40]), max_size=60).map(bytes),
    cuts=st.lists(st.integers(0, 60)),
)
def test_any_cuts(framing, state, data, cuts):
    """
    A source cut anywhere has the spans of the whole, each told at the same byte, and its spans are all of its bytes.
    """
    whole = framed(framing, [data], state)
    assert framed(framing, pieces(data, cuts) or [b""], state) == whole
    assert framed(framing, [data[at : at + 1] for at in range(len(data))] or [b""], state) == whole
    assert b"".join(span for span, _, _ in whole) == data
    assert state == 0 or {what for _, what, _ in whole} <= {GAP}


def test_lengths():
    """
    A record that is too long is passed over as far as it claims; the one behind it is good.
    """
    data = b"\0\3abc" + b"\0\x0f" + b"x" * 15 + b"\0\0" + b"\0\2de" + b"\0\5f"
    found = [(span, what) for span, what, _ in framed(LENGTHS, [data])]
    assert found == [
        (b"\0\3abc", RECORD), (b"\0\x0f", OVERSIZE), (b"x" * 10, OVERSIZE), (b"x" * 5, OVERSIZE), (b"\0\0", RECORD),
        (b"\0\2de", RECORD), (b"\0\5f", OPEN),
    ]  # fmt: skip


def test_width():
    """
    What is left at the end of a source is a record of another width.
    """
    assert [(span, what) for span, what, _ in framed(WIDTH, [b"abcdefghij"])] == [
        (b"abcd", RECORD), (b"efgh", RECORD), (b"ij", RECORD),
    ]  # fmt: skip
