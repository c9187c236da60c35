import re
from pathlib import Path
from typing import Any

import pytest

import windrow.settings.settings as settings_module
from windrow.errors import RulesError, SettingsError, UsageError
from windrow.formats.format import format_of
from windrow.settings.settings import FormatSettings, Settings
from windrow.settings.template import settings_file


class TestSources:
    def test_flags_over_environment_over_file_over_defaults(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each source overrides the ones after it."""
        file = tmp_path / "windrow.toml"
        file.write_text('depot = "file"\nledger = "file"\nmax_retries = 1\n[rules]\nwindow = "20s"\n')
        monkeypatch.setenv("WINDROW_LEDGER", "environment")
        monkeypatch.setenv("WINDROW_DEPOT", "environment")
        settings = Settings.load(file, depot="flag")
        assert (settings.depot, settings.ledger, settings.max_retries) == ("flag", "environment", 1)
        assert (settings.rules.window, settings.rules.max_delay) == (20_000_000, 5_000_000)

    def test_nested_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """WINDROW_RULES__WINDOW sets window in [rules]."""
        monkeypatch.setenv("WINDROW_RULES__WINDOW", "1m")
        assert Settings().rules.window == 60_000_000

    @pytest.mark.parametrize(("text", "microseconds"), [("never", None), ("90m", 5_400_000_000)])
    def test_how_often_tables_are_maintained(
        self, monkeypatch: pytest.MonkeyPatch, text: str, microseconds: int | None
    ) -> None:
        """`maintenance_interval` defaults to an hour, and may be a duration or never."""
        assert Settings().run.maintenance_interval == 3_600_000_000
        monkeypatch.setenv("WINDROW_RUN__MAINTENANCE_INTERVAL", text)
        assert Settings().run.maintenance_interval == microseconds

    def test_file_in_working_directory_is_found(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without --config the windrow.toml of the working directory is read."""
        (tmp_path / "windrow.toml").write_text('depot = "here"\n')
        monkeypatch.chdir(tmp_path)
        assert Settings.load().depot == "here"


class TestDepot:
    def test_table_with_columns(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """[depot] has the table and its columns; a flag overrides the table, a variable adds a column."""
        file = tmp_path / "windrow.toml"
        file.write_text('[depot]\ntable = "main.bronze.events"\n[depot.columns]\nkey = "device"\n')
        monkeypatch.setenv("WINDROW_DEPOT_COLUMNS__TYPE", "'x'")
        settings = Settings.load(file, depot="other")
        assert (settings.depot, settings.depot_columns) == ("other", {"key": "device", "type": "'x'"})

    def test_written_and_read_again(self, tmp_path: Path) -> None:
        """The file written for a depot with mapped columns gives the same settings."""
        settings = Settings(depot="main.bronze.events", depot_columns={"key": 'concat(a, "\'")', "type": "'é'"})
        file = tmp_path / "windrow.toml"
        file.write_text(settings_file(settings), encoding="utf-8")
        assert Settings.load(file).model_dump() == settings.model_dump()


class TestMistakes:
    @pytest.mark.parametrize(
        ("content", "says"),
        [
            ("max_retires = 3", "max_retries"),
            ("[rules]\nwindwo = '1s'", "rules.window"),
            ("[rules]\nwindow = '10 apples'", "not a duration"),
            ("[rules]\nwindow = -1", "no unit"),
            ("[rules]\nwindow = 10", "10 has no unit; write it like 500ms, 10s, 5m or 1h30m"),
            ("idle_timeout = 10", "no unit"),
            ("[run]\ntrigger_interval = 0.5", "no unit"),
            ("max_messages = 0", "greater than or equal to 1"),
            ("engine = 'flink'", "'spark'"),
            ("depot = [", "not TOML"),
            ('depot = "d"\n[depot.columns]\nevent_time = "ts"', 'write [depot] and table = "..."'),
            ("retention = 'long'", "not a duration"),
        ],
    )
    def test_says_what_is_wrong(self, tmp_path: Path, content: str, says: str) -> None:
        """An unknown or invalid setting is an error that names it and the nearest known name."""
        file = tmp_path / "windrow.toml"
        file.write_text(content)
        with pytest.raises(SettingsError) as caught:
            Settings.load(file)
        assert says in str(caught.value)

    @pytest.mark.parametrize(
        ("content", "line", "says"),
        [
            ("# first\n\nmax_retries = 'x'", 3, "max_retries = 'x'"),
            ("[rules]\n# why\nwindow = '10 apples'\n", 3, "rules.window"),
            (
                "[log]\nlevel = 'info'\n[format]\nquote_char = '''\n\n'''\nmax_read_bytes = 0",
                7,
                "format.max_read_bytes",
            ),
            ("[format]\nfields = { a = 1 }", 2, "format.fields.a"),
            ("[format.fields]\na = 'int8'\n\"b c\" = 1", 3, "format.fields.b c"),
            ("[format]\ndelimeter = ';'", 2, "format.delimiter"),
            ("format.max_read_bytes = 0", 1, "format.max_read_bytes"),
            ("[depot]\ntable = 'x'\n[depot.columns]\nkey = 1", 4, "depot_columns.key"),
            ("[mqtt]\r\nbroker = ''\r\n", 2, "mqtt.broker"),
            ("depot = 'a\u2028b'\nmax_retries = -1", 2, "max_retries"),
            ("[mqtt]\nshare_name = 'a'\nkey_file = 'x'", 1, "certificate_file"),
        ],
    )
    def test_says_in_which_line(self, tmp_path: Path, content: str, line: int, says: str) -> None:
        """An error about a setting of the file names its line, or the line of its table."""
        file = tmp_path / "windrow.toml"
        file.write_text(content)
        with pytest.raises(SettingsError) as caught:
            Settings.load(file)
        assert caught.value.message.startswith(f"{file}, line {line}: ")
        assert says in str(caught.value)

    def test_no_line_of_others(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An error about a flag or a variable names no line of the file, even if the file has that setting."""
        file = tmp_path / "windrow.toml"
        file.write_text("max_retries = 3\n[rules]\nwindow = '1s'\n")
        with pytest.raises(SettingsError) as caught:
            Settings.load(file, max_retries=-1)
        assert "line" not in str(caught.value)
        monkeypatch.setenv("WINDROW_RULES__WINDOW", "apples")
        with pytest.raises(SettingsError) as caught:
            Settings.load(file)
        assert "line" not in str(caught.value)

    @pytest.mark.parametrize(
        ("message", "line"),
        [
            ("field 'b': unknown type 'x'", 5),
            ("[format] field 'absent': is missing", 3),
            ("a delimiter contains the quote", 2),
            ("the quote is two", 1),
            ("[format] nothing fits", 1),
        ],
    )
    def test_telling_where(self, tmp_path: Path, message: str, line: int) -> None:
        """An error that is found when the format is built names the line of its field or setting."""
        file = tmp_path / "windrow.toml"
        file.write_text("[format]\ndelimiter = ';'\n[format.fields]\na = 'string'\nb = 'x'\n")
        settings = Settings.load(file).model_copy(update={"max_retries": 1})
        with pytest.raises(SettingsError) as caught, settings.locating_errors("format", named="fields"):
            raise SettingsError(message, "hint")
        text = message.removeprefix("[format] ")
        assert (caught.value.message, caught.value.hint) == (f"{file}, line {line}: [format] {text}", "hint")
        with pytest.raises(SettingsError) as caught, Settings().locating_errors("format", named="fields"):
            raise SettingsError(message)
        assert caught.value.message == f"[format] {text}"

    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            ("WINDROW_MAX_RETRIES", "many"),
            ("WINDROW_KAFKA__TOPICS", "[readings"),
            ("WINDROW_STORAGE_OPTIONS", "secret"),
            ("WINDROW_RETENTION", "1s"),
            ("WINDROW_START_FROM", "noon"),
            ("WINDROW_RULES__WINDOW", "0s"),
            ("WINDROW_DEPOT", "a#b"),
            ("WINDROW_PAYLOAD_TYPE", "number"),
        ],
    )
    def test_variable_is_named(self, monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
        """An error about a value from the environment names its variable."""
        monkeypatch.setenv(variable, value)
        with pytest.raises(UsageError) as caught:
            Settings()
        assert caught.value.message.startswith(f"variable {variable}: ")
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize("text", ["readings, ^plant-.*", '["readings", "^plant-.*"]'])
    def test_list_in_a_variable(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        """A variable of a list takes text with commas between, or JSON."""
        for name in ("KAFKA__TOPICS", "KAFKA__FIELD_MAP", "MQTT__TOPICS", "MAINTAIN__OTHER_LEDGERS"):
            monkeypatch.setenv(f"WINDROW_{name}", text)
        settings = Settings()
        lists = settings.kafka.topics, settings.kafka.field_map, settings.mqtt.topics, settings.maintain.other_ledgers
        assert [list(values) for values in lists] == [["readings", "^plant-.*"]] * 4

    def test_all_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """All errors of the file, the environment and the flags are told at once, each with its place."""
        file = tmp_path / "windrow.toml"
        file.write_text("colour = 1\n[run]\ntrigger_interval = 'often'\n[producer]\nmax_commit_rows = 0\n")
        monkeypatch.setenv("WINDROW_MQTT__BROKER", "x:y")
        monkeypatch.setenv("WINDROW_LEGDER", "x")
        with pytest.raises(SettingsError) as caught:
            Settings.load(file, max_retries=-1)
        first, *lines = str(caught.value).splitlines()
        assert first == "WINDROW-SETTINGS: 6 settings are invalid"
        beginnings = [
            "variable WINDROW_LEGDER: unknown variable", f"{file}, line 1: unknown", f"{file}, line 3: run.trig",
            f"{file}, line 5: producer.max_commit_rows", "variable WINDROW_MQTT__BROKER: ", "max_r",
        ]  # fmt: skip
        for beginning in beginnings:
            assert len([line for line in lines if line.startswith(beginning)]) == 1, (beginning, lines)

    def test_unknown_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """An unknown variable WINDROW_... is an error with the nearest name."""
        monkeypatch.setenv("WINDROW_LEGDER", "x")
        with pytest.raises(SettingsError, match="WINDROW_LEDGER"):
            Settings()

    def test_rules_that_contradict_themselves(self) -> None:
        """A window without a length is refused when the settings are read, not when the job runs."""
        with pytest.raises(RulesError, match="window is 0"):
            Settings(rules={"window": "0s"})

    def test_missing_file(self, tmp_path: Path) -> None:
        """A named settings file that does not exist is an error."""
        with pytest.raises(SettingsError, match="cannot be read"):
            Settings.load(tmp_path / "absent.toml")


class TestExample:
    def test_reads_back_as_it_was_written(self, tmp_path: Path) -> None:
        """The file that init writes holds exactly the settings it was made from."""
        settings = Settings(
            depot='a "quoted" depot',
            idle_timeout="never",
            rules={"window": "1h30m"},
            ingest={"columns": {"key": "'k'"}},
            run={"maintenance_interval": "never"},
        )
        file = tmp_path / "windrow.toml"
        file.write_text(settings_file(settings), encoding="utf-8")
        assert Settings.load(file).model_dump() == settings.model_dump()

    @pytest.mark.parametrize(
        "chosen",
        [
            {"type": "csv", "fields": {"a": "int8", 'b "ö" c': "timestamp[us] %d.%m.%Y"}, "null_values": ["", "NA"]},
            {"type": "lines", "fields": {"x": "string"}, "regex": r"(?P<x>\w+)", "record_delimiter": "\r\n"},
            {"delimiter": "\x7f\U0001f600", "has_header": False},
        ],
    )
    def test_format(self, tmp_path: Path, chosen: dict[str, Any]) -> None:
        """A format is read back as it was written, whatever characters its texts have."""
        settings = Settings(format=chosen)
        file = tmp_path / "windrow.toml"
        file.write_text(settings_file(settings), encoding="utf-8")
        assert Settings.load(file).model_dump() == settings.model_dump()

    def test_without_secrets(self) -> None:
        """Options and passwords that are kept secret are not written, not even as asterisks: examples take their
        place.
        """
        kafka = {"password": "secret", "properties": {"sasl.username": "windrow"}}
        settings = Settings(storage_options={"AWS_REGION": "eu-central-1"}, kafka=kafka, mqtt={"password": "secret"})
        assert settings_file(settings) == settings_file(Settings())

    def test_format_as_a_comment(self, tmp_path: Path) -> None:
        """Without a format its section is a comment; uncommented, it has all settings."""
        before, _, behind = settings_file(Settings()).partition("# [format]\n")
        section, _, _ = behind.partition("\n\n")
        file = tmp_path / "windrow.toml"
        file.write_text(before + "[format]\n" + re.sub("^# ", "", section, flags=re.MULTILINE), encoding="utf-8")
        format_settings = Settings.load(file).format
        assert format_settings.model_dump(exclude={"type", "fields"}) == FormatSettings().model_dump(
            exclude={"type", "fields"}
        )
        assert format_of(format_settings).parser.schema.names == list(format_settings.fields)

    def test_docs_show_it(self) -> None:
        """docs/settings.md shows the file as it is written for the defaults."""
        page = Path(__file__).parents[2] / "docs" / "settings.md"
        assert settings_file(Settings()) in page.read_text(encoding="utf-8")


def test_one_store_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings whose options for object stores differ from those of earlier ones are refused, not ignored."""
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setattr(settings_module, "OPTIONS_SET", {})
    first, other = (Settings(storage_options={"AWS_REGION": region}) for region in ("north", "south"))
    assert first.with_storage().with_storage() is first
    with pytest.raises(SettingsError, match="AWS_REGION differs"):
        other.with_storage()
    monkeypatch.delenv("AWS_REGION")
