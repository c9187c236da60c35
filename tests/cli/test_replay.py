from pathlib import Path

from deltalake import DeltaTable

from tests.cli.conftest import Command


class TestReplay:
    def test_equal(self, filled: Command) -> None:
        """The same rules give the same digest, and exit status 0; nothing is left behind."""
        before = set(Path.cwd().iterdir())
        result = filled("replay")
        assert result.status == 0, result.err
        assert "5 messages of depot versions 1 to 1, under the recorded rules, with the recorded ticks" in result.out
        assert "equal, to the last byte" in result.out
        assert set(Path.cwd().iterdir()) == before

    def test_different(self, filled: Command) -> None:
        """A ledger that was changed by hand ends it with exit status 1, and the batch and both values are named."""
        DeltaTable("data/ledger").update(updates={"open_reason": "'size'"}, predicate="state = 'closed'")
        result = filled("replay")
        assert result.status == 1
        assert "must be equal" in result.out
        assert "open_reason: size -> message" in result.out
        assert filled("replay", "--json").json()["ok"] is False

    def test_other_rules(self, filled: Command) -> None:
        """Other rules list what changes and where messages went; the new ledger stays and can be looked at."""
        result = filled("replay", "--window", "20s", "--max-delay", "12s", "--into", "other")
        assert result.status == 0, result.err
        assert "too_old -> batch/" in result.out
        assert "appear" in result.out
        assert "The new ledger is other" in result.out
        assert filled("verify", "--ledger", "other").status == 0
        assert filled("show", "--rejected", "--ledger", "other", "--json").json() == []

    def test_rules_of_a_file(self, filled: Command) -> None:
        """Rules come from a file, and flags go over them."""
        Path("other.toml").write_text('[rules]\nwindow = "20s"\nmax_delay = "6s"\n')
        rules = filled("replay", "--rules", "other.toml", "--max-delay", "12s", "--json").json()["rules"]
        assert (rules["window"], rules["max_delay"]) == (20_000_000, 12_000_000)

    def test_json(self, filled: Command) -> None:
        """One document has the digests of both sides, and says when there is nothing to compare."""
        document = filled("replay", "--json", "--key", "k").json()
        assert (document["ok"], document["equal"], document["keys"]) == (True, True, ["k"])
        assert document["recorded"]["digest"] == document["replayed"]["digest"]
        assert document["recorded"]["rejected_by_reason"] == {"too_old": 1}
        assert document["comparison"] is None

    def test_usage(self, filled: Command) -> None:
        """What cannot be is told with the flag."""
        for arguments, what in (
            (("--max-delay", "5x"), "--max-delay"),
            (("--from", "yesterday"), "--from"),
            (("--rules", "nowhere.toml"), "nowhere.toml"),
            (("--key", "nobody"), "nobody"),
            (("--from", "9"), "from 9"),
        ):
            result = filled("replay", *arguments)
            assert result.status == 2
            assert what in result.err
