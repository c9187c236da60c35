from pathlib import Path

import pytest

from windrow.errors import RulesError, SettingsError
from windrow.example import settings_file
from windrow.settings import Settings


class TestSources:
    def test_flags_over_environment_over_file_over_defaults(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        Each source wins over the ones behind it.
        """
        file = tmp_path / "windrow.toml"
        file.write_text('depot = "file"\nledger = "file"\nretries = 1\n[rules]\nwindow = "20s"\n')
        monkeypatch.setenv("WINDROW_LEDGER", "environment")
        monkeypatch.setenv("WINDROW_DEPOT", "environment")
        settings = Settings.load(file, depot="flag")
        assert (settings.depot, settings.ledger, settings.retries) == ("flag", "environment", 1)
        assert (settings.rules.window, settings.rules.max_delay) == (20_000_000, 5_000_000)

    def test_nested_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """
        WINDROW_RULES__WINDOW sets window in [rules].
        """
        monkeypatch.setenv("WINDROW_RULES__WINDOW", "1m")
        assert Settings().rules.window == 60_000_000

    @pytest.mark.parametrize(("text", "microseconds"), [("never", None), ("90m", 5_400_000_000)])
    def test_how_often_tables_are_maintained(
        self, monkeypatch: pytest.MonkeyPatch, text: str, microseconds: int | None
    ) -> None:
        """
        `maintain_every` is an hour unless it is said, a duration, or never.
        """
        assert Settings().run.maintain_every == 3_600_000_000
        monkeypatch.setenv("WINDROW_RUN__MAINTAIN_EVERY", text)
        assert Settings().run.maintain_every == microseconds

    def test_file_in_working_directory_is_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """
        Without --config the windrow.toml of the working directory is read.
        """
        (tmp_path / "windrow.toml").write_text('depot = "here"\n')
        monkeypatch.chdir(tmp_path)
        assert Settings.load().depot == "here"


class TestDepot:
    def test_table_with_columns(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """
        [depot] names the table beside its columns; a flag names another table, a variable one more column.
        """
        file = tmp_path / "windrow.toml"
        file.write_text('[depot]\ntable = "main.bronze.events"\n[depot.columns]\nkey = "device"\n')
        monkeypatch.setenv("WINDROW_DEPOT_COLUMNS__TYPE", "'x'")
        settings = Settings.load(file, depot="other")
        assert (settings.depot, settings.depot_columns) == ("other", {"key": "device", "type": "'x'"})

    def test_written_and_read_again(self, tmp_path: Path) -> None:
        """
        The file that is written for a depot with columns of its own gives the same settings.
        """
        settings = Settings(depot="main.bronze.events", depot_columns={"key": 'concat(a, "\'")', "type": "'é'"})
        file = tmp_path / "windrow.toml"
        file.write_text(settings_file(settings), encoding="utf-8")
        assert Settings.load(file).model_dump() == settings.model_dump()


class TestMistakes:
    @pytest.mark.parametrize(
        ("content", "says"),
        [
            ("retires = 3", "retries"),
            ("[rules]\nwindwo = '1s'", "rules.window"),
            ("[rules]\nwindow = '10 apples'", "not a duration"),
            ("[rules]\nwindow = -1", "out of range"),
            ("max_messages = 0", "greater than or equal to 1"),
            ("engine = 'flink'", "'spark'"),
            ("depot = [", "not TOML"),
            ("keep = 'long'", "not a duration"),
        ],
    )
    def test_says_what_is_wrong(self, tmp_path: Path, content: str, says: str) -> None:
        """
        A setting that is unknown or has no meaning is an error that names it, and the nearest known name.
        """
        file = tmp_path / "windrow.toml"
        file.write_text(content)
        with pytest.raises(SettingsError) as caught:
            Settings.load(file)
        assert says in str(caught.value)

    def test_unknown_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """
        An environment variable WINDROW_... that nobody knows is an error with the nearest name.
        """
        monkeypatch.setenv("WINDROW_LEGDER", "x")
        with pytest.raises(SettingsError, match="WINDROW_LEDGER"):
            Settings()

    def test_rules_that_contradict_themselves(self) -> None:
        """
        A window without a length is refused when the settings are read, not when the job runs.
        """
        with pytest.raises(RulesError, match="window is 0"):
            Settings(rules={"window": "0s"})

    def test_missing_file(self, tmp_path: Path) -> None:
        """
        A settings file that was named and is not there is an error.
        """
        with pytest.raises(SettingsError, match="cannot be read"):
            Settings.load(tmp_path / "absent.toml")


class TestExample:
    def test_reads_back_as_it_was_written(self, tmp_path: Path) -> None:
        """
        The file that init writes holds exactly the settings it was made from.
        """
        settings = Settings(
            depot='a "quoted" depot',
            idle_grace="never",
            rules={"window": "1h30m"},
            ingest={"columns": {"key": "'k'"}},
            run={"maintain_every": "never"},
        )
        file = tmp_path / "windrow.toml"
        file.write_text(settings_file(settings), encoding="utf-8")
        assert Settings.load(file).model_dump() == settings.model_dump()

    def test_docs_show_it(self) -> None:
        """
        docs/settings.md shows the file as it is written for the defaults.
        """
        page = Path(__file__).parents[1] / "docs" / "settings.md"
        assert settings_file(Settings()) in page.read_text(encoding="utf-8")
