from tests.cli.conftest import Command


class TestTick:
    def test_to_a_time_closes_what_is_due(self, filled: Command) -> None:
        """A tick to a time closes every batch whose timeout it passes."""
        document = filled("tick", "--to", "1970-01-01T00:10:00Z", "--json").json()
        assert (document["closed"], document["microbatches"][0]["kind"]) == (1, "tick")
        assert filled("tick", "--to", "1970-01-01T00:10:00", "--json").json()["microbatches"] == []

    def test_time_that_is_none(self, filled: Command) -> None:
        """A time that cannot be read is wrong usage, with an example."""
        result = filled("tick", "--to", "noon")
        assert (result.status, "2026-01-31T12:00:00Z" in result.err) == (2, True)
