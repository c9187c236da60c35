from __future__ import annotations

from pathlib import Path

import pytest

from windrow.settings.template import effective_settings


@pytest.fixture
def effective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, str]]:
    """Settings from every source, with their origins."""
    file = tmp_path / "windrow.toml"
    file.write_text(
        'max_retries = 2\nretention = "10d"\n'
        '[rules]\nmax_delay = "3s"\n[depot]\ntable = "d"\n[depot.columns]\nkey = "k"\n'
    )
    monkeypatch.setenv("WINDROW_MAX_RETRIES", "3")
    monkeypatch.setenv("windrow_rules__window", "30s")
    monkeypatch.setenv("WINDROW_DEPOT_COLUMNS__TYPE", "t")
    monkeypatch.setenv("WINDROW_RUN", '{"trigger_interval": "5s"}')
    return {setting.name: (setting.value, setting.origin) for setting in effective_settings(file, ledger="here")}


@pytest.mark.parametrize(
    ("name", "value", "origin"),
    [
        ("ledger", '"here"', "flag --ledger"),
        ("max_retries", "3", "variable WINDROW_MAX_RETRIES"),
        ("rules.window", '"30s"', "variable windrow_rules__window"),
        ("run.trigger_interval", '"5s"', "variable WINDROW_RUN"),
        ("depot_columns.type", '"t"', "variable WINDROW_DEPOT_COLUMNS__TYPE"),
        ("retention", '"10d"', "windrow.toml"),
        ("rules.max_delay", '"3s"', "windrow.toml"),
        ("depot", '"d"', "windrow.toml"),
        ("depot_columns.key", '"k"', "windrow.toml"),
        ("max_messages", "1000000", "default"),
        ("rules.max_lead", '"1s"', "default"),
    ],
)
def test_each_source(effective: dict[str, tuple[str, str]], name: str, value: str, origin: str) -> None:
    """A setting is listed with its effective value, as in windrow.toml, and the source that won."""
    assert effective[name][0] == value
    assert effective[name][1].endswith(origin)


def test_field_named_like_a_duration(tmp_path: Path) -> None:
    """A field of a format may have the name of a setting that is a duration."""
    file = tmp_path / "windrow.toml"
    file.write_text('[format]\ntype = "csv"\nfields = { pause = "int64", window = "string" }\n')
    values = {setting.name: setting.value for setting in effective_settings(file)}
    assert (values["format.fields.pause"], values["format.fields.window"]) == ('"int64"', '"string"')
