"""The packages of docs/howto/rows.md: short, the same for any cutting, and the same on both engines."""

from __future__ import annotations

import io
import re
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from tests.formats.test_howto import ROOT, outcome, windrow
from windrow.formats.format import format_of
from windrow.formats.settings import FormatSettings
from windrow.testing import check_format
from windrow.testing.formats import RawLedger

pytestmark = pytest.mark.ci

PAGE = (ROOT / "docs" / "howto" / "rows.md").read_text(encoding="utf-8")
MODULES = {"windrow_json_array": 0, "windrow_avro": 1, "windrow_arrow": 2}  # the block of each
FIELDS = {"ts": "timestamp[us]", "device": "string", "litres": "float64"}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {"ts": NOON, "device": f"pump-{number}", "litres": None if number == 1 else number / 4} for number in range(5)
]
MARKER = b"0123456789abcdef"
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("device", pa.string()), ("litres", pa.float64())])


def blocks(language: str) -> list[str]:
    """Return the page's blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def install(packages: Path) -> None:
    """Put the modules and the entry points of the page's project into a directory."""
    project = tomllib.loads(blocks("toml")[0])["project"]
    described = packages / f"windrow_rows-{project['version']}.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
    [(group, entries)] = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (described / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for name, number in MODULES.items():
        (packages / f"{name}.py").write_text(blocks("python")[number], encoding="utf-8")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with the page's settings and file, and beside it the package as pip would install it."""
    (tmp_path / "home").mkdir()
    install(tmp_path / "packages")
    (tmp_path / "home" / "windrow.toml").write_text(blocks("toml")[1], encoding="utf-8")
    assert windrow(tmp_path / "home", program=blocks("python")[3]).returncode == 0
    return tmp_path / "home"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the formats of the page known to this process."""
    install(tmp_path / "packages")
    monkeypatch.syspath_prepend(tmp_path / "packages")


def avro(rows: list[dict[str, Any]]) -> bytes:
    kinds = {
        "ts": {"type": "long", "logicalType": "timestamp-micros"},
        "device": "string",
        "litres": ["null", "double"],
    }
    schema = {"type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}
    file = io.BytesIO()
    fastavro.writer(file, schema, rows, sync_marker=MARKER, codec="deflate")
    return file.getvalue()


def arrow(rows: list[dict[str, Any]] | None, schema: pa.Schema = SCHEMA) -> bytes:
    file = io.BytesIO()
    with pa.ipc.new_stream(file, schema) as writer:
        if rows is not None:
            writer.write_batch(pa.RecordBatch.from_pylist(rows, schema))
    return file.getvalue()


def behind(start: bytes, whole: bytes, end: bytes = b"") -> bytes:
    """Return what a file has between its start and its end."""
    return whole.removeprefix(start).removesuffix(end)


def test_short() -> None:
    """Each of the page's packages has at most 40 lines."""
    assert max(len(blocks("python")[number].splitlines()) for number in MODULES.values()) <= 40


def test_commands(home: Path) -> None:
    """The page's commands print what the page says, and each row becomes a message."""
    for command in re.split(r"^\$ windrow ", blocks("console")[0], flags=re.MULTILINE)[1:]:
        line, _, output = command.partition("\n")
        result = windrow(home, *line.split())
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith(output)
    expected = [(f"pump-{number}", f"{Decimal(number) / 4:.2f}") for number in range(6)]
    assert sorted(outcome(home, "ledger")) == sorted(expected)
    assert windrow(home, "verify").returncode == 0


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "json-array": lambda: {
        "good": [b'[{"device": "a", "litres": 1.50}, {"litres": 2}]\n', b'[{"device": "]"}]\n'],
        "bad": [b'[{"litres": 1}, {"litres": "x"}]\n', b"[1]\n", b"{]\n"],
    },
    "avro": lambda: {
        "start": avro([]),
        "good": [behind(avro([]), avro(rows)) for rows in (ROWS[:2], ROWS[2:])],
        "bad": [b"\x02\x02x" + MARKER],
        "malformed": [b"\1", b"\xff" * 30],
    },
    "arrow": lambda: {
        "start": arrow(None)[:-8],
        "good": [behind(arrow(None)[:-8], arrow(rows), arrow(None)[-8:]) for rows in (ROWS[:2], ROWS[2:])],
        "malformed": [b"\xff" * 20, b"\xff\xff\xff\xff\x10\0\0\0" + bytes(40)],
    },
}


@pytest.mark.parametrize("type_", CASES)
@pytest.mark.usefixtures("packages")
def test_kit(type_: str) -> None:
    """Cut anywhere, in any order, over any microbatches and with any damage: the same rows and rejects, all bytes."""
    rows = check_format({"type": type_, "fields": FIELDS}, **CASES[type_]())
    if type_ == "json-array":
        assert [row["litres"] for row in rows] == [1.5, 2, None]
    else:
        assert rows == ROWS


@pytest.mark.parametrize(("type_", "content"), [("avro", avro(ROWS)), ("arrow", arrow(ROWS))], ids=["avro", "arrow"])
@pytest.mark.usefixtures("packages")
def test_all_or_nothing(type_: str, content: bytes) -> None:
    """A block is rejected with all of its bytes if one value in one of its rows is bad; the detail says which."""
    ledger = RawLedger.of(format_of(FormatSettings(type=type_, fields=FIELDS | {"litres": "int8"})), [[content]])
    assert ledger.fields() == []
    (reject,) = ledger.rejects()
    assert (reject["reason"], reject["field"]) == ("format_cast", "litres")
    assert reject["detail"].endswith("litres: '0.0' is not a valid int8, in row 0")


@pytest.mark.usefixtures("packages")
def test_dictionaries() -> None:
    """A batch of a stream with dictionaries is rejected, as the page says."""
    schema = pa.schema([("device", pa.dictionary(pa.int8(), pa.string()))])
    content = arrow([{"device": "a"}], schema)
    ledger = RawLedger.of(format_of(FormatSettings(type="arrow", fields={"device": "string"})), [[content]])
    assert (ledger.fields(), {row["reason"] for row in ledger.rejects()}) == ([], {"format_syntax"})


@pytest.mark.slow
@pytest.mark.spark
def test_executors(home: Path) -> None:
    """Spark gives the same messages and rejects as the embedded engine, on executors where lines end the records."""
    lines = [b'[{"ts": "2026-01-31T12:00:00Z", "device": "a", "litres": 1.5}, {"device": "b"}]\n'] * 3 + [b"[1]\n"]
    (home / "arrays.json").write_bytes(b"".join(lines))
    chosen = {"WINDROW_INGEST__CHUNK_BYTES": "50", "WINDROW_FORMAT__EXECUTOR_CHUNKS": "2"}
    arrays = chosen | {"WINDROW_FORMAT__TYPE": "json-array", "WINDROW_DEPOT__TABLE": "data/arrays"}
    for name, file, own, path in (
        ("arrays", "arrays.json", arrays, "executors"),
        ("blocks", "pumps.avro", chosen, "driver"),
    ):
        kind = "json" if name == "arrays" else "avro"
        result = windrow(home, "ingest", file, "--format", kind, **own)
        assert result.returncode == 0, result.stderr
        for engine in ("embedded", "spark"):
            result = windrow(home, "run", "--once", "--engine", engine, "--ledger", f"data/{name}-{engine}", **own)
            assert result.returncode == 0, result.stderr
            assert windrow(home, "verify", "--ledger", f"data/{name}-{engine}", **own).returncode == 0
        assert outcome(home, f"{name}-spark") == outcome(home, f"{name}-embedded") != []
        from deltalake import DeltaTable

        rows = DeltaTable(str(home / "data" / f"{name}-spark")).to_pyarrow_table().to_pylist()
        assert [row["processed_on"] for row in rows if row["state"] == "microbatch"] == [path]
