from tests.cli.conftest import Command


class TestFlush:
    def test_closes_everything(self, filled: Command) -> None:
        """After a flush nothing is open, and the history has recorded it."""
        document = filled("tick", "--all", "--json").json()
        assert (document["closed"], document["microbatches"][0]["kind"]) == (1, "flush")
        assert "Nothing new" in filled("tick", "--all").out
