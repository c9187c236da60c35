"""Make the HTML of a report. Jinja escapes all text; characters that would control a terminal appear as escapes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windrow.errors import MissingExtraError, SettingsError
from windrow.model.printable import printable
from windrow.reading.status_text import short_time
from windrow.report.contents import Report
from windrow.report.problems import verdict
from windrow.report.tables import Link
from windrow.version import VERSION

if TYPE_CHECKING:
    from jinja2 import Environment

MAX_LETTERS = 2_000  # in a text that contains names
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def html(report: Report) -> str:
    """Return the page. Raises MissingExtraError without jinja2."""
    return environment().get_template("page.html").render(**context(report), policy=POLICY)


def context(report: Report) -> dict[str, Any]:
    """Return the variables that the templates need to show a report."""
    level, headline = verdict(report.problems)
    return {"title": report.title, "report": report, "level": level, "headline": headline, "version": VERSION}


def save(report: Report, path: str | Path) -> int:
    """Write the page and return its size in bytes. Raises what `require_page` does."""
    require_page(path)
    content = html(report).encode("utf-8", "backslashreplace")
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise SettingsError(f"{str(path)!r} cannot be written: {error.strerror}", "Name another file.") from error
    return len(content)


def require_page(path: str | Path) -> None:
    """Raise SettingsError unless `path` has a page's extension, MissingExtraError unless a page can be written."""
    if Path(path).suffix not in {".html", ".htm"}:
        raise SettingsError(f"{str(path)!r} is not an .html file", "Use .html.")
    if find_spec("jinja2") is None:
        raise MissingExtraError("reports need jinja2", "pip install 'windrow-delta[report]'")


def environment(*packages: str) -> Environment:
    """Return the Jinja environment for the templates of reports and of other packages."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loader = ChoiceLoader([PackageLoader(package) for package in (*packages, "windrow.report")])
    jinja = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_plain_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters["short"] = _short
    jinja.filters["short_time"] = short_time
    jinja.tests["bars"] = lambda cell: isinstance(cell, tuple)
    jinja.tests["link"] = lambda cell: isinstance(cell, Link)
    return jinja


def _plain_text(value: Any) -> Any:
    """Return a value as the page shows it; markup stays as it is."""
    return printable(value) if type(value) is str else "" if value is None else value


def _short(text: str) -> str:
    return text if len(text) <= MAX_LETTERS else f"{text[:MAX_LETTERS]}... ({len(text):,} characters)"
