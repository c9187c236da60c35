import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windrow.batching.numbering import number
from windrow.columnar.order import group_by_id, sort_groups

SLOTS = st.lists(st.tuples(st.integers(0, 3), st.integers(-4, 4), st.integers(0, 3)), max_size=60)


@given(SLOTS, st.sampled_from((0, 2**62)))
def test_number(slots: list[tuple[int, int, int]], epoch: int) -> None:
    """Positions are the distinct times of a stream, places those of a type of a stream, both one behind the other."""
    slots = sorted(((stream, epoch + time, kind) for stream, time, kind in slots), key=lambda slot: slot[0])
    stream, event_time, kind = (np.array([slot[part] for slot in slots], np.int64) for part in range(3))
    ranked, start = group_by_id(stream, 4)
    sort_groups(ranked, start, event_time, kind)
    position, list_of, place, time_at, position_start, place_begin, position_at = number(
        ranked, start, event_time, kind.astype(np.int32), 4
    )
    positions = sorted({(s, t) for s, t, _ in slots})
    assert [positions.index((s, t)) for s, t, _ in slots] == position.tolist()
    assert time_at.tolist() == [t for _, t in positions]
    assert position_start.tolist() == [sum(s < stream for s, _ in positions) for stream in range(5)]
    of_list = dict(zip(list_of.tolist(), [(s, k) for s, _, k in slots], strict=True))
    lists = {(s, k) for s, _, k in slots}
    assert set(of_list.values()) == lists
    assert sorted(of_list) == list(range(len(lists)))
    streams = [of_list[value][0] for value in sorted(of_list)]
    assert streams == sorted(streams)
    places = [
        (of_list[value], t)
        for value in sorted(of_list)
        for t in sorted({t for s, t, k in slots if (s, k) == of_list[value]})
    ]
    assert place.tolist() == [places.index(((s, k), t)) for s, t, k in slots]
    assert np.diff(place_begin).tolist() == [sum(of == of_list[value] for of, _ in places) for value in sorted(of_list)]
    assert position_at.tolist() == [positions.index((of[0], t)) for of, t in places]
