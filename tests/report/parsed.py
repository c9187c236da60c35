"""A page as a browser reads it: its tags, its texts, and what it would load."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "img", "rect", "link", "br", "input"}


class ParsedPage(HTMLParser):
    """The texts of each section, the cells of each row in it, and all tags with their attributes."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.rows: dict[str, list[list[str]]] = {}
        self._open: list[str] = []
        self._section = ""
        self.feed(content)
        self.close()
        assert not self._open, "each tag is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the tag, and where the section, row or cell begins."""
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "section":
            self._section = attributes["id"] or ""
        elif tag == "tr":
            self.rows.setdefault(self._section, []).append([])
        elif tag in {"td", "th"}:
            self.rows[self._section][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the tag, which has no end."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Check that it is the one which was opened last."""
        assert self._open.pop() == tag
        if tag == "section":
            self._section = ""

    def handle_data(self, data: str) -> None:
        """Add a text to its section and cell."""
        if data.strip() and "style" not in self._open:
            self.texts.setdefault(self._section, []).append(data.strip())
            if {"td", "th"} & set(self._open):
                self.rows[self._section][-1][-1] += data.strip()

    def text(self, section: str) -> str:
        """Return all text of a section."""
        return " ".join(self.texts[section])

    def column(self, section: str, place: int) -> list[str]:
        """Return a column of the table in a section, without its head and without lines of their own."""
        [head, *rows] = self.rows[section]
        return [row[place] for row in rows if len(row) == len(head) and row != head]  # folded rows have a head too

    def images(self) -> list[str]:
        """Return the addresses of the images."""
        return [attributes["src"] or "" for tag, attributes in self.tags if tag == "img"]


def parsed(file: Path) -> ParsedPage:
    """Read a page, of which every text is in UTF-8."""
    return ParsedPage(file.read_text(encoding="utf-8"))
