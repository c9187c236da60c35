"""The site of the documentation: what its navigation and its index lead to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML

from tests.docs.pages import ROOT, pages
from tests.docs.prose import links, target
from tests.docs.test_pages import cells

DOCS = ROOT / "docs"
PAGES = [page for page in pages() if page.path.startswith("docs/")]
WORDS = {
    "message",
    "depot",
    "chunk",
    "partial",
    "ledger",
    "topology",
    "source",
    "key",
    "stream",
    "batch",
    "window",
    "rejection",
    "event_time",
    "processing_time",
    "clock",
    "floor",
    "max_delay",
    "max_lead",
    "tick",
    "flush",
    "microbatch",
    "prime",
    "plan",
    "process",
    "commit",
    "token",
    "replay",
    "verify",
}


def navigation() -> Any:
    """Return what mkdocs.yml says of the navigation."""
    return YAML(typ="rt").load(ROOT / "mkdocs.yml")["nav"]


def leaves(node: Any) -> Iterator[str]:
    """Return the pages of a part of the navigation, in their order."""
    if isinstance(node, str):
        yield node
        return
    for child in node.values() if isinstance(node, dict) else node:
        yield from leaves(child)


def test_each_page_once() -> None:
    """The navigation names every page below docs/ exactly once, and no other."""
    assert sorted(leaves(navigation())) == sorted(page.path.removeprefix("docs/") for page in PAGES)


def test_index_has_the_same_parts() -> None:
    """The four parts of the navigation are those of the index, with the same pages in the same order."""
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    _, *sections = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    index = {name: re.findall(r"\]\(([\w/-]+\.md)\)", part) for name, part in zip(*[iter(sections)] * 2, strict=True)}
    parts = {name: list(leaves(part)) for section in navigation()[1:] for name, part in section.items()}
    assert index == parts
    assert len(parts) == 4


def test_links_stay_inside() -> None:
    """A page of the site leads to no file outside of docs/, which the site does not have."""
    for page in PAGES:
        outside = [link for link in links(page) if not target(page, link)[0].is_relative_to(DOCS)]
        assert not outside, f"{page.path} leads to {outside}"


def test_glossary() -> None:
    """The glossary has each of our words, and says of each what it is here and what it is called elsewhere."""
    rows = cells("glossary.md", 6)
    assert all(all(row) for row in rows)
    words = {row[0].partition("**,")[0].strip("*").replace(" ", "_") for row in rows}
    assert words >= WORDS
