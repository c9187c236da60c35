"""Make the pictures of the documentation from the bundled sample: `make pictures`, on the embedded engine, in a minute.

The batches are the same each time; the times and durations of microbatches are those of the machine.
"""  # noqa: INP001 - a script beside what it makes

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from io import StringIO
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import vl_convert
from PIL import Image
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from windrow.ingest import sample
from windrow.settings.settings import IngestSettings, Settings
from windrow.settings.template import settings_file

HERE = Path(__file__).parent
COMMAND = "import sys; from windrow.cli import main; sys.argv[0] = 'windrow'; raise SystemExit(main())"
WINDROW = [sys.executable, "-c", COMMAND]
COLUMNS, SCALE = 112, 1.4
BROWSERS, SCREEN = ("chromium", "chromium-browser", "google-chrome"), (1_200, 1_250)
STALL = ("--key", "edge-c", "--from", "2026-11-21T05:54:55Z", "--to", "2026-11-21T05:57:12Z")
LATE = (
    "--key",
    "edge-c",
    "--type",
    "collectd/edge-c/vmem/vmpage_number-mlock",
    "--event-time",
    "2026-11-21T05:55:45.208Z",
)
CURSOR = re.compile(r"\x1b\[\?25[lh]\n?")  # hidden and shown again around a progress bar
VERSION_SECONDS, PAUSED_AFTER = 5, 40  # how the recording is cut into depot versions, and after which the rules change


def main() -> None:
    """Make all of them."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        terminal(place, "demo", "demo", "--engine", "embedded")
        configured = ("--config", "demo/windrow.toml")
        shown = place / "shown.html"  # the directory of this run says nothing to a reader
        page = (place / "demo" / "report.html").read_text(encoding="utf-8")
        shown.write_text(page.replace(str(place), "/srv"), encoding="utf-8")
        screenshot(place, "report", shown.as_uri())
        live(place)
        plot(place, "timeline", *STALL, *configured)
        plot(place, "batches", "--chart", "batches", *configured)
        pairs = ("--windows", "1s,2s,5s,10s,30s", "--delays", "1s,2s,5s,10s,25s,56s")
        (place / "defaults.toml").write_text('depot = "demo/depot"\nledger = "demo/ledger"\n', encoding="utf-8")
        run(place, "tune", *pairs, "--config", "defaults.toml", "--out", str(HERE / "tuning.png"))
        terminal(place, "help", "--help")
        terminal(place, "status", "status", *configured)
        terminal(place, "show", "show", *LATE, *configured)
        catch_up(place)
        plot(place, "microbatches", "--chart", "microbatches", "--config", "live/windrow.toml")
    for picture in HERE.glob("*.png"):
        with_palette(picture)


def catch_up(place: Path) -> None:
    """Batch the recording as a backlog of many depot versions, as if it had ended just now, with a change of rules."""
    live = place / "live"
    live.mkdir()
    parts = cut(sample.copy_into(live))
    settings = live / "windrow.toml"
    chosen = Settings(
        depot="live/depot",
        ledger="live/ledger",
        engine="embedded",
        max_messages=1,
        ingest=IngestSettings(columns=shifted(int(time.time()) - last_second(live / "collectd.parquet"))),
    )
    settings.write_text(settings_file(chosen), encoding="utf-8")
    configured = ("--config", "live/windrow.toml")
    run(place, "ingest", *parts[:PAUSED_AFTER], *configured)
    run(place, "run", *configured)
    run(place, "pause", *configured)
    run(place, "resume", *configured)
    settings.write_text(
        settings.read_text(encoding="utf-8").replace('max_delay = "5s"', 'max_delay = "8s"'), encoding="utf-8"
    )
    run(place, "ingest", *parts[PAUSED_AFTER:], *configured)
    run(place, "run", *configured)
    run(place, "tick", "--all", *configured)


def cut(recording: Path) -> list[str]:
    """Cut the recording into files of some seconds, each of which becomes a depot version."""
    table = pq.read_table(recording)
    stamps = table["received_at_ns"].to_numpy()
    part = (stamps - stamps.min()) // (VERSION_SECONDS * 1_000_000_000)
    files = [recording.with_name(f"part-{number:03}.parquet") for number in np.unique(part)]
    for number, file in zip(np.unique(part), files, strict=True):
        pq.write_table(table.filter(part == number), file)
    return [str(file) for file in files]


def last_second(recording: Path) -> int:
    """Return when the recording ends."""
    return int(pq.read_table(recording, columns=["received_at_ns"])["received_at_ns"].to_numpy().max() // 1_000_000_000)


def shifted(seconds: int) -> dict[str, str]:
    """Return the columns of the sample with both times moved by some seconds; both are `timestamp_micros(...)`."""
    times = ("event_time", "received_at")
    moved = {name: f"{sample.COLUMNS[name].removesuffix(')')} + {seconds * 1_000_000})" for name in times}
    return sample.COLUMNS | moved


def plot(place: Path, name: str, *arguments: str) -> None:
    """Draw a picture as a user does."""
    run(place, "plot", "--out", str(HERE / f"{name}.png"), *arguments)


def terminal(place: Path, name: str, *arguments: str) -> None:
    """Make a picture of what a command says on a terminal."""
    said = CURSOR.sub("", run(place, *arguments)).replace(str(place), "/srv")
    console = Console(record=True, width=COLUMNS, file=StringIO())
    console.print(Text.from_ansi(f"$ windrow {' '.join(arguments)}\n{said.rstrip()}"))
    drawn = console.export_svg(title="windrow", theme=MONOKAI, font_aspect_ratio=0.61).replace("Fira Code", "monospace")
    (HERE / f"{name}.png").write_bytes(vl_convert.svg_to_png(drawn, scale=SCALE))


def live(place: Path) -> None:
    """Make a picture of the page that `windrow ui` serves."""
    command = [*WINDROW, "ui", "--json", "--duration", "1m", "--config", "demo/windrow.toml"]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as server:  # noqa: S603 - our own
        said = iter(server.stdout.readline, "}\n")
        screenshot(place, "ui", json.loads("".join(said) + "}")["address"])
        server.terminate()


def screenshot(place: Path, name: str, address: str) -> None:
    """Make a picture of the top of a page in Chromium, which must be installed."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"The picture of the report needs a browser: {', '.join(BROWSERS)}.")
    flags = ("--headless=new", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={place / 'browser'}")
    size, picture = f"--window-size={SCREEN[0]},{SCREEN[1]}", f"--screenshot={HERE / f'{name}.png'}"
    subprocess.run([browser, *flags, size, picture, address], check=True, capture_output=True)  # noqa: S603


def with_palette(picture: Path) -> None:
    """Write a picture with 256 colours, which takes an eighth of the bytes."""
    Image.open(picture).convert("RGB").quantize(256).save(picture, optimize=True)


def run(place: Path, *arguments: str) -> str:
    """Run a command and return what a terminal would show."""
    look = {"FORCE_COLOR": "1", "TTY_INTERACTIVE": "0", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    done = subprocess.run(  # noqa: S603 - our own command
        [*WINDROW, *arguments],
        cwd=place,
        env=os.environ | look,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"windrow {' '.join(arguments)}\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    main()
