"""What a topic means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import SettingsError
from windrow.producer.bridge.mqtt_topics import TopicPattern, Topics

WORDS = st.sampled_from(["a", "b", "", "pump 1", "$x"])
TOPICS = st.lists(WORDS, min_size=1, max_size=5).map("/".join)
LEVELS = st.sampled_from(["a", "b", "", "+", "{key}", "$x"])
FILTERS = st.tuples(st.lists(LEVELS, max_size=4), st.sampled_from(["a", "+", "#", "{type...}", "{type}"])).map(
    lambda parts: "/".join([*parts[0], parts[1]])
)


@pytest.mark.parametrize(
    ("pattern", "topic", "columns"),
    [
        ("plant/{key}/{type}", "plant/pump-1/temperature", {"key": "pump-1", "type": "temperature"}),
        ("plant/{key}/{type}", "plant/pump-1/a/b", None),
        ("plant/{key}/{type...}", "plant/pump-1/a/b", {"key": "pump-1", "type": "a/b"}),
        ("plant/{key}/{type...}", "plant/pump-1", None),
        ("plant/{key}/#", "plant/pump-1", {"key": "pump-1"}),
        ("collectd/{source}/{type...}", "collectd/edge-b/load/load", {"source": "edge-b", "type": "load/load"}),
        ("+/{key}", "x/y", {"key": "y"}),
        ("+/{key}", "$SYS/y", None),
        ("$SYS/{key}", "$SYS/y", {"key": "y"}),
        ("{key}/x", "/x", {"key": ""}),
        ("plant", "plant", {}),
        ("plant", "Plant", None),
    ],
)
def test_columns(pattern: str, topic: str, columns: dict[str, str] | None) -> None:
    """A name takes its level, the last one all that are left, and everything else must be there letter by letter."""
    assert TopicPattern.parse(pattern).match(topic) == columns


@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        ("", "is not a topic pattern"),
        ("a/{key}/{key}", "{key} twice"),
        ("a/{colour}", "level 2: there is no column 'colour'"),
        ("{type...}/a", "level 1: {type...} takes all remaining levels"),
        ("a/#/b", "level 2: # takes all remaining levels"),
        ("a/pump-{key}/b", "level 2: 'pump-{key}' is neither"),
        ("a/b+", "level 2: 'b+' is neither"),
        ("$share/g/a", "names a group"),
        ("a\0", "is not a topic pattern"),
    ],
)
def test_mistake(pattern: str, place: str) -> None:
    """A pattern that means nothing is an error that says where."""
    with pytest.raises(SettingsError) as caught:
        Topics.parse([pattern])
    assert place in str(caught.value)


def test_none() -> None:
    """A bridge without topics is an error."""
    with pytest.raises(SettingsError, match="--topic"):
        Topics.parse([])


def test_first_wins() -> None:
    """Of patterns that overlap the first that matches says what a topic means."""
    topics = Topics.parse(["a/{key}/x", "a/{source}/{type}"])
    assert topics.match("a/1/x") == {"key": "1"}
    assert topics.match("a/1/y") == {"source": "1", "type": "y"}


def test_filters() -> None:
    """What another filter covers is not subscribed to, in whichever order they stand."""
    assert Topics.parse(["a/{key}/x", "a/{type...}", "a/b", "c/{key}", "c/+"]).filters() == ["a/#", "c/+"]


@given(patterns=st.lists(FILTERS, min_size=1, max_size=4), topic=TOPICS)
def test_filters_are_enough(patterns: list[str], topic: str) -> None:
    """What any pattern matches one of the filters that are subscribed to brings."""
    try:
        topics = Topics.parse(patterns)
    except SettingsError:
        return
    if topics.match(topic) is not None:
        assert any(TopicPattern.parse(topic_filter).match(topic) is not None for topic_filter in topics.filters())
