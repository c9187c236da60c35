"""Records end where they end, wherever the bytes were cut."""

import csv
import io
import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import SettingsError
from windrow.formats.automaton import Automaton
from windrow.formats.grammar import delimiter_automaton, objects

AUTOMATA = {
    "csv": delimiter_automaton(b"\n", b",", b'"'),
    "csv with backslashes": delimiter_automaton(b"\n", b",", b'"', b"\\"),
    "long delimiters": delimiter_automaton(b"\r\n", b"--", b'"'),
    "delimiters of one kind": delimiter_automaton(b"aab", b"aac"),
    "lines": delimiter_automaton(b"\n"),
    "json": objects(4),
}
BYTES = st.lists(st.sampled_from(b'a"",\n\r\\-b{}[]c'), max_size=120).map(bytes)


def buffer(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def followed(automaton: Automaton, data: bytes, state: int = 0) -> tuple[np.ndarray, int]:
    scan = automaton.follow(buffer(data), 0, state, 0, len(data) + 1)
    return scan.ends, scan.state


def ends(automaton: Automaton, data: bytes, state: int = 0) -> list[int]:
    return followed(automaton, data, state)[0].tolist()


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


@pytest.mark.parametrize("name", AUTOMATA)
@given(data=BYTES, cuts=st.lists(st.integers(0, 200)))
def test_any_cuts(name, data, cuts):
    """Bytes in pieces, each begun in the state in which the one before ended, give the ends of the whole."""
    automaton, state, start, positions = AUTOMATA[name], 0, 0, []
    for piece in pieces(data, cuts):
        here, state = followed(automaton, piece, state)
        positions += (here + start).tolist()
        start += len(piece)
    assert positions == ends(automaton, data)


@pytest.mark.parametrize("name", AUTOMATA)
@given(data=BYTES, cuts=st.lists(st.integers(0, 200)))
def test_summaries(name, data, cuts):
    """Summaries say for each state what a run from it does, and one after the other they end in the state of the
    whole.
    """
    automaton = AUTOMATA[name]
    whole = automaton.summary(buffer(data))
    for state in range(automaton.states):
        positions, after = followed(automaton, data, state)
        assert whole.after[state] == after
        assert whole.first[state] == (positions[0] if len(positions) else -1)
        assert whole.last[state] == (positions[-1] if len(positions) else -1)
        assert whole.longest[state] == max((b - a for a, b in pairwise(positions.tolist())), default=0)
        reached = state
        for piece in pieces(data, cuts):
            reached = automaton.summary(buffer(piece)).after[reached]
        assert reached == after


def test_long_runs():
    """In long runs, where states meet, each comes out as if it had been followed by itself."""
    automaton = AUTOMATA["csv"]
    data = (b'1,"a",b\n' * 700 + b'x"y,\n' * 300 + b'"open,\n' + b"2,b\n" * 900) * 3
    whole = automaton.summary(buffer(data))
    for state in range(automaton.states):
        positions, after = followed(automaton, data, state)
        first, last = (positions[0], positions[-1]) if positions.size else (-1, -1)
        assert (whole.first[state], whole.last[state], whole.after[state]) == (first, last, after)


@given(st.lists(st.lists(st.text('ab,"\n ', min_size=1), min_size=1, max_size=4), max_size=8))
def test_written_csv(rows):
    """What a writer of RFC 4180 writes has one record for each of its rows."""
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    data = written.getvalue().encode()
    positions = ends(AUTOMATA["csv"], data)
    records = [data[start:end].decode() for start, end in zip([0, *positions], positions, strict=False)]
    assert [
        next(csv.reader([record])) if "\n" not in record[:-1] else rows[at] for at, record in enumerate(records)
    ] == rows


@pytest.mark.parametrize(
    ("data", "records"),
    [
        (b'1,"a\nb"\n2,c\n', [b'1,"a\nb"\n', b"2,c\n"]),
        (b'1,a"b\n2,"c""d"\n', [b'1,a"b\n', b'2,"c""d"\n']),
        (b'1\n2,"a"b"\n3\n', [b"1\n"]),
        (b'1,"a" ,"b"\r\n2\n', [b'1,"a" ,"b"\r\n', b"2\n"]),
        (b'1,"a"\r,2\n', []),
        (b'1,"open\n2\n', []),
        (b"\n\n", [b"\n", b"\n"]),
    ],
    ids=[
        "in quotes",
        "quote inside",
        "behind a quote",
        "blank behind a quote",
        "return behind a quote",
        "open",
        "empty",
    ],
)
def test_quotes(data, records):
    """A quote opens at the begin of a field only, a delimiter in quotes is none, and a malformed record has no end."""
    positions = ends(AUTOMATA["csv"], data)
    assert [data[start:end] for start, end in zip([0, *positions], positions, strict=False)] == records


@given(
    st.lists(
        st.recursive(
            st.text('a{"\\'),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("k}"), inner, max_size=2),
            max_leaves=3,
        ).filter(lambda value: isinstance(value, list | dict))
    )
)
def test_objects(values):
    """Objects and arrays of JSON that stand one behind the other are as many records."""
    data = "".join(map(json.dumps, values)).encode()
    positions = ends(objects(9), data)
    assert [json.loads(data[start:end]) for start, end in zip([0, *positions], positions, strict=False)] == values


def test_deepest_objects():
    """Values may nest as deep as the settings allow."""
    deepest = 200
    value = b"[" * deepest + b"]" * deepest
    assert ends(objects(deepest), value * 2) == [2 * deepest, 4 * deepest]


@pytest.mark.parametrize(
    "wrong",
    [
        {"record": b""},
        {"record": b"\n", "quote": b"''"},
        {"record": b"--", "field": b"-"},
        {"record": b"\r\n", "field": b"\n"},
        {"record": b"\n", "field": b'"', "quote": b'"'},
    ],
    ids=["none", "long quote", "begins", "ends", "quote"],
)
def test_refused(wrong):
    """Delimiters that are none or cannot be told apart are refused."""
    with pytest.raises(SettingsError):
        delimiter_automaton(**wrong)


def test_quote_as_escape():
    """To escape a quote with a quote is to double it."""
    data = b'1,"a""b\n"\n2,"c"\n'
    assert ends(delimiter_automaton(b"\n", b",", b'"', b'"'), data) == ends(AUTOMATA["csv"], data) == [10, 16]


def test_few_states():
    """The tables are as small as the format allows."""
    assert [automaton.states for automaton in AUTOMATA.values()] == [7, 8, 10, 3, 1, 13]


def test_count_of_reachable_vectors():
    """Of CSV there are few vectors of states that any bytes can bring about, and they are closed under composition."""
    automaton = AUTOMATA["csv"]
    steps = [automaton.summary(buffer(bytes([byte]))) for byte in b'a",\n\r ']
    vectors = {tuple(step.after) for step in steps}
    while True:
        more = {tuple(np.array(step.after)[list(vector)]) for vector in vectors for step in steps} | vectors
        if more == vectors:
            break
        vectors = more
    assert len(vectors | {tuple(range(automaton.states))}) < 200
