"""How engines write what they commit."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.clocks import NOW
from tests.messages import SECOND, message

ELEMENT = "messages.list.element."


class TestEncoding:
    @pytest.mark.slow_on_spark
    @pytest.mark.parametrize("differ", [True, False], ids=["differ", "repeat"])
    def test_dictionaries(self, world, engine, differ):
        """Types have a dictionary, which keeps files small; times have none, and payloads one only where they
        repeat.
        """
        values = [str(number if differ else number % 3) for number in range(400)]
        sent = [
            message("ab"[at % 2], NOW + at * SECOND // 4, NOW + at * SECOND // 4, payload=value)
            for at, value in enumerate(values)
        ]
        world.publish(sent)
        world.runner(engine).once()
        has_dictionary = dictionaries(next(Path(world.ledger, "state=closed").glob("*/*.parquet")))
        assert {name: has_dictionary[ELEMENT + name] for name in ("type", "event_time", "received_at", "payload")} == {
            "type": True,
            "event_time": False,
            "received_at": False,
            "payload": not differ,
        }
        assert world.canonical() == world.expected()


def dictionaries(file: Path) -> dict[str, bool]:
    """Return of each column of a file whether its first values are written by a dictionary."""
    group = pq.ParquetFile(file).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {column.path_in_schema: column.has_dictionary_page for column in columns}
