from pathlib import Path

from tests.cli.conftest import Command


class TestRecover:
    def test_goes_back(self, filled: Command, tmp_path: Path) -> None:
        """It says what would be set aside, sets it aside, and the next run makes it again."""
        log = tmp_path / "data" / "ledger" / "_delta_log"
        wrong = filled("recover", "--depot", "nowhere")
        assert (wrong.status, "there is no depot" in wrong.err) == (3, True)
        max(log.glob("*.json")).write_bytes(b"")
        result = filled("recover", "--dry-run")
        assert "would go back to version 0: version 1 would be set aside." in result.out
        document = filled("recover", "--json").json()
        assert (document["version"], document["first"], document["last"], document["dry_run"]) == (0, 1, 1, False)
        assert Path(document["directory"]).is_dir()
        assert filled("run", "--json").json()["message_count"] == 5
        assert "Nothing to do" in filled("recover").out
        assert filled("verify").status == 0
